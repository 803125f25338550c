"""A small convolutional network, and the layer that turns pixels into numbers a network likes. Knows no task."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Pixels(nn.Module):
    """images: (B, C, H, W) uint8 in 0..255 to float with mean 0 and deviation 1 over the set, channel by channel.

    A layer of the model, so that it runs on the device, and goes with the weights wherever they are used.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", 255 * torch.tensor(mean)[:, None, None])
        self.register_buffer("deviation", 255 * torch.tensor(deviation)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        return (images.to(self.mean.dtype) - self.mean) / self.deviation


def with_pixels(network: nn.Module, mean: Sequence[float], deviation: Sequence[float]) -> nn.Sequential:
    """`network` behind `Pixels`: its parameters are named `network.*`."""
    return nn.Sequential(OrderedDict(pixels=Pixels(mean, deviation), network=network))


def small_cnn(num_channels: int, side: int, num_classes: int, width: int, depth: int, dropout: float) -> nn.Sequential:
    """(B, num_channels, side, side) to (B, num_classes): `depth` stages of convolution, BatchNorm, ReLU and halving.

    The first stage has `width` channels, each next one twice as many. What is left is flattened: a mean over the image
    would forget where things are, which tells digits apart.
    """
    layers: list[nn.Module] = []
    for stage in range(depth):
        num_outputs = width * 2**stage
        layers += [
            nn.Conv2d(num_channels, num_outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(num_outputs),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        num_channels = num_outputs
        side //= 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(dropout), nn.Linear(num_channels * side**2, num_classes))
