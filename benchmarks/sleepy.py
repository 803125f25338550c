"""Digits whose every step takes its time by sleeping: whatever is added to it is waiting, not computing."""

import time
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trainable.tasks.digits import Digits


@dataclass(frozen=True)
class Sleepy(Digits):
    step_s: float = 0.02

    def augment(self, batch: tuple[Tensor, ...], generator: Any) -> tuple[Tensor, ...]:
        time.sleep(self.step_s)
        return batch
