"""What is under examination: a task, its config, and what the questions so far have made of them.

Asks nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainable import loop
from trainable.config import TrainConfig
from trainable.task import Splits, Task


@dataclass
class Subject:
    """A task under examination, and what the questions so far have made of it."""

    task: Task
    config: TrainConfig
    load: Callable[[], Splits] | None = None  # where the splits are at hand already
    splits: Splits = field(init=False)
    run: loop.Training = field(init=False)
    batch: tuple[Tensor, ...] = field(init=False)
    loss: Tensor = field(init=False)
    start_error: Exception | None = None
    device_error: Exception | None = None

    def close(self) -> None:
        if hasattr(self, "run"):
            self.run.close()


def advance_to(run: loop.Training, step: int) -> None:
    """Train with the real loop up to `step`, over as many reports as that takes."""
    while run.state.progress.step < step:
        report = loop.advance(run, lambda: run.state.progress.step >= step)
        if report is not None and report.done:
            return


def first_samples(examples: Any, num_samples: int) -> Any:
    """The first samples as they stand in the data, stacked."""
    if isinstance(examples, tuple):
        return tuple(tensor[:num_samples] for tensor in examples)
    return torch.utils.data.default_collate([examples[i] for i in range(min(num_samples, len(examples)))])


def forward(run: loop.Training, batch: tuple[Tensor, ...], model: nn.Module | None = None) -> tuple[Any, Tensor]:
    """The task's outputs and loss for a batch, in the run's precision."""
    with run.autocast():
        outputs = run.task.predict(run.state.model if model is None else model, batch)
        return outputs, run.task.loss(outputs, batch)
