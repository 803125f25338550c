"""A multi-layer perceptron: what the tasks with a row of numbers for a sample have for a model. Knows no task."""

from __future__ import annotations

from torch import nn


def mlp(num_inputs: int, num_outputs: int, width: int, depth: int, dropout: float) -> nn.Sequential:
    """(B, num_inputs) to (B, num_outputs) through `depth` hidden layers of `width` units with ReLU."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(num_inputs, width), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        num_inputs = width
    return nn.Sequential(*layers, nn.Linear(num_inputs, num_outputs))
