"""Digits whose steps, or whose loader workers, can be held for as long as a file exists."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from trainable.checks.before import MOST_SAMPLES
from trainable.task import Splits
from trainable.tasks.digits import Digits


@dataclass(frozen=True)
class Held(Digits):
    """`gate`: while this file exists, no step is made, from step `from_step` of each process on.
    `step_log`: a file that gets one line for every training step that is really taken.
    `loaded`: samples come from a data set, and so through loader processes; `worker_gate` holds those."""

    gate: str = ""
    from_step: int = 0
    sleep_s: float = 0.0
    step_log: str = ""
    loaded: bool = False
    worker_gate: str = ""

    def splits(self, seed: int) -> Splits:
        splits = super().splits(seed)
        if not self.loaded:
            return splits
        assert isinstance(splits.train, tuple)
        return Splits(train=Rows(splits.train, self.worker_gate), val=splits.val)

    def augment(self, batch: tuple[Tensor, ...], generator: torch.Generator) -> tuple[Tensor, ...]:
        if len(batch[0]) <= MOST_SAMPLES:  # the checks before the first trial: no step of it
            return batch
        _TAKEN.append(1)
        while self.gate and len(_TAKEN) > self.from_step and Path(self.gate).exists():
            time.sleep(0.05)
        time.sleep(self.sleep_s)
        if self.step_log:
            with Path(self.step_log).open("a") as file:
                file.write("step\n")
        return batch


class Rows(Dataset[Any]):
    """Rows of tensors; a worker that is to fetch row 700 is held by its gate."""

    def __init__(self, tensors: tuple[Tensor, ...], gate: str) -> None:
        self._tensors = tensors
        self._gate = gate

    def __len__(self) -> int:
        return len(self._tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        while index == 700 and self._gate and Path(self._gate).exists():
            time.sleep(0.05)
        return tuple(tensor[index] for tensor in self._tensors)


_TAKEN: list[int] = []
