"""Digits that fail in one way or another, some only for as long as a file named `broken` exists."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainable.checks.before import MOST_SAMPLES
from trainable.memory import OutOfMemory
from trainable.tasks.digits import Digits


@dataclass(frozen=True)
class Fragile(Digits):
    """`mood`: good; broken (raises in the second epoch while `broken` exists); memory (does not fit, once);
    and in evaluation: lacking (no `extra`), none, vector, text (an `extra` that is no number).
    `step_log`: gets a line with the mood for every training step."""

    mood: str = "good"
    broken: str = ""
    step_log: str = ""
    sleep_s: float = 0.0

    def augment(self, batch: tuple[Tensor, ...], generator: torch.Generator) -> tuple[Tensor, ...]:
        if len(batch[0]) <= MOST_SAMPLES:  # the checks before the first trial: no step of it
            return batch
        time.sleep(self.sleep_s)
        log = Path(self.step_log)
        if self.mood == "memory" and not log.with_suffix(".memory").exists():
            log.with_suffix(".memory").touch()
            raise OutOfMemory("one sample at a time does not fit in memory")
        with log.open("a") as file:
            file.write(f"{self.mood}\n")
        _STEPS.append(1)
        if self.mood == "broken" and len(_STEPS) > 10 and Path(self.broken).exists():
            raise RuntimeError("it is broken")
        return batch

    def metrics(self, outputs: Any, batch: tuple[Tensor, ...]) -> dict[str, Any]:
        found: dict[str, Any] = dict(super().metrics(outputs, batch))
        extra = {"none": None, "vector": torch.ones(2), "text": "much", "lacking": None}
        if self.mood == "lacking":
            return found
        return {**found, "extra": extra.get(self.mood, torch.tensor(float(len(batch[0]))))}


_STEPS: list[int] = []
