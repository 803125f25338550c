"""Digits, trained slowly or badly on purpose; what is computed stays what it was."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainable.checks.before import MOST_SAMPLES
from trainable.tasks.digits import Digits


@dataclass(frozen=True)
class Moody(Digits):
    """`mood`: good, slow (sleeps at every step), bad (worse losses), raises or nan (from epoch 2 on), silent
    (evaluates to nothing), killed (its process dies once).
    `step_log`: a file that gets one line for every training step that is really taken."""

    mood: str = "good"
    sleep_s: float = 0.0
    step_log: str = ""
    raise_in_epoch: int = 2

    def augment(self, batch: tuple[Tensor, ...], generator: torch.Generator) -> tuple[Tensor, ...]:
        if len(batch[0]) <= MOST_SAMPLES:  # the checks before the first trial: no step of it
            return batch
        if self.sleep_s:
            time.sleep(self.sleep_s)
        if self.step_log:
            with Path(self.step_log).open("a") as file:
                file.write(f"{self.mood}\n")
        if self.mood == "killed" and not Path(self.step_log).with_suffix(".killed").exists():
            Path(self.step_log).with_suffix(".killed").touch()
            os.kill(os.getpid(), 9)
        return batch

    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        loss = super().loss(outputs, batch)
        if len(batch[0]) <= MOST_SAMPLES:  # the checks see no mood: it comes in training
            return loss
        training = torch.is_grad_enabled()
        if self.mood == "bad":
            return loss + 10 * len(batch[0])
        if self.mood == "raises" and not training and _calls(self) > self.raise_in_epoch:
            raise RuntimeError("the mood was bad")
        if self.mood == "nan" and training:
            return loss * float("nan")
        return loss


_COUNTS: dict[int, int] = {}


def _calls(task: Moody) -> int:
    """How often this process has evaluated the task: a validation set of one batch counts epochs."""
    _COUNTS[id(task)] = _COUNTS.get(id(task), 0) + 1
    return _COUNTS[id(task)]
