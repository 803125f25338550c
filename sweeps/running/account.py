"""What a running sweep spends, written into its ledger as it goes, and the budget that is used up, once one is.

Asked while trials run; what its answer leads to is for others. Knows no Ray.
"""

from __future__ import annotations

import dataclasses
import time

from sweeps.record.ledger import Ledger
from sweeps.running.budget import Budget, End, Spent, end_of_sweep, end_of_time, has_target

SPENT, ENDED_BY = "spent", "ended_by"  # attributes of the ledger
WRITE_EVERY_S = 2.0  # so much of the time that was spent a kill may hide


class Account:
    """Mutable. began: time.monotonic() at which this attempt of the sweep began; gpus: that each trial holds."""

    def __init__(self, ledger: Ledger, budget: Budget, began: float, gpus: float) -> None:
        self.budget = budget
        self.end: End | None = None
        self._ledger = ledger
        self._gpus = gpus
        self._spent = Spent(**(ledger.attribute(SPENT) or {}))
        self._counted_at = began
        self._written_at: float | None = None
        if ledger.attribute(ENDED_BY) is not None:  # whether it still is so is asked anew
            ledger.note(ENDED_BY, None)

    def is_used_up(self, num_running: int) -> bool:
        """By what the ledger says now. Once it is, it stays so, and `end` says why."""
        spent = self._count(num_running)
        if self.end is None:
            looks = self.budget.target or self.budget.plateau is not None
            trials = self._ledger.trials() if looks else ()
            self.end = end_of_sweep(self.budget, self._ledger.sweep, trials, spent)
        return self.end is not None

    def time_is_up(self, num_running: int) -> bool:
        """The same, by the time alone."""
        spent = self._count(num_running)
        self.end = self.end or end_of_time(self.budget, spent)
        return self.end is not None

    def close(self, num_running: int) -> list[int]:
        """Write down what was spent, and what ended the sweep; the numbers of trials that were given up by that."""
        self._written_at = None
        self._count(num_running)
        if self.end is None:
            return []
        self._ledger.note(ENDED_BY, self.end.budget)
        ended = []
        for record in self._ledger.trials() if self.end.gives_up else ():
            if record.state == "running":
                if has_target(self.budget, record):
                    self._ledger.finish(record.number, "complete", reason="reached --target")
                else:
                    self._ledger.finish(record.number, "pruned", reason=f"the sweep ended by --{self.end.budget}")
                ended.append(record.number)
        return ended

    def _count(self, num_running: int) -> Spent:
        """Up to now; trials that run are taken to have run since this was last asked."""
        now = time.monotonic()
        passed, self._counted_at = now - self._counted_at, now
        gpu_seconds = self._spent.gpu_seconds + passed * self._gpus * num_running
        self._spent = Spent(self._spent.seconds + passed, gpu_seconds)
        if self._written_at is None or now - self._written_at > WRITE_EVERY_S:
            self._ledger.note(SPENT, dataclasses.asdict(self._spent))
            self._written_at = now
        return self._spent
