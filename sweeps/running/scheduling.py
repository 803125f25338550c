"""Which trial Tune hands to a process that has become free: a new one, and not one whose own process is being started.

Tune's own choice is the oldest that waits. With trials that are shorter than the start of a process (some seconds of
imports) that one's process was stopped as soon as it was there, over and over, and one process trained all of them.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from sweeps.running.keeper import StaysHere


class FreshFirst(StaysHere, FIFOScheduler):  # type: ignore[misc]
    """Each trial is chosen once, when it comes. Where it finds no free process, one is started for it, and Tune itself
    gives it any that is free later and that no newer trial takes."""

    def __init__(self) -> None:
        super().__init__()
        self._new: deque[Any] = deque()

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self._new.append(trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        while self._new:
            trial = self._new.popleft()
            if trial.status == Trial.PENDING:
                return trial
        return None
