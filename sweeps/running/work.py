"""What is left to do: which trial is next, which wait for others, and when there is no sense in going on.

Knows numbers of trials and how they ended; no Ray, no ledger.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from sweeps.running.failures import Failure

PROCESS_COSTS_S = 5.0  # of CPU time, to start a process that can train
ALIKE = 3  # so many trials that all fail in one way, and nothing else has ended: the rest would too


@dataclass
class Work:
    """The numbers of the trials to run, and of those that run."""

    waiting: list[int]
    one_at_a_time: bool = False  # until one has shown how long it takes
    alone: set[int] = field(default_factory=set)  # those that ran out of memory: nothing may run beside them
    running: set[int] = field(default_factory=set)
    training_since: float | None = None
    refused: Failure | None = None  # what the checks before the first trial said
    ended: list[Failure | None] = field(default_factory=list)  # in the order in which trials ended; None: well

    def next(self) -> int | None:
        """The trial to start now, or None: there is none, or it waits for those that run."""
        if not self.waiting or self._holds_back():
            return None
        number = self.waiting.pop(0)
        self.running.add(number)
        return number

    def is_done(self) -> bool:
        return not self.waiting and not self.running  # one that runs may have to run again

    def put_back(self, number: int, *, alone: bool) -> None:
        """Run a trial again, next."""
        self.running.discard(number)
        self.waiting.insert(0, number)
        if alone:
            self.alone.add(number)

    def end(self, number: int, failure: Failure | None) -> None:
        self.running.discard(number)
        self.ended.append(failure)

    def all_fail_alike(self) -> Failure | None:
        """How the first trials to end have all failed, if in one and the same way."""
        first = self.ended[:ALIKE]
        if len(first) < ALIKE or first[0] is None:
            return None
        return first[0] if all(other is not None and first[0].is_like(other) for other in first) else None

    def _holds_back(self) -> bool:
        """Whether the next trial waits: for want of memory, or as a second process costs more than it saves."""
        if not self.running:
            return False
        if self.alone & {self.waiting[0], *self.running}:
            return True
        if self.one_at_a_time and self.training_since is not None:
            taken = time.monotonic() - self.training_since
            # The trial under way counts as one that takes at least as long as it has taken.
            self.one_at_a_time = taken * (len(self.waiting) + 1) < PROCESS_COSTS_S
        return self.one_at_a_time
