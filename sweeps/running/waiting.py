"""Says that trials wait for a node, and keeps saying it.

A cluster that has lost its last node, or an autoscaler that has not brought one yet, looks like a sweep that hangs.
Changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from cluster.capacity import Capacity
from cluster.connect import alive

FIRST_S = 20.0  # a process needs some seconds to start, on a busy machine many
AGAIN_S = 60.0
LOOK_EVERY_S = 1.0
MOST = 1000  # trials that are looked at, the newest: those before them have ended long ago


class Waiting:
    """Mutable. wanted: what each trial needs, in words."""

    def __init__(
        self, wanted: str, there: Callable[[], Capacity] = alive, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._wanted = wanted
        self._there = there
        self._now = now
        self._since: float | None = None
        self._next = self._look_at = 0.0

    def look(self, trials: Sequence[Any]) -> str | None:
        """What to say now: nothing while any of Tune's trials runs, or none waits."""
        now = self._now()
        if now < self._look_at:
            return None
        self._look_at = now + LOOK_EVERY_S
        states = {trial.status for trial in trials[-MOST:]}
        if "RUNNING" in states or "PENDING" not in states:
            self._since = None
            return None
        if self._since is None:
            self._since, self._next = now, now + FIRST_S
        if now < self._next:
            return None
        self._next = now + AGAIN_S
        capacity = self._there()
        return (
            f"waiting for {now - self._since:.0f} s for a node that has room for a trial, {self._wanted}; there are "
            f"{capacity.where} with {capacity.cpus:g} CPU(s) and {capacity.gpus:g} GPU(s) in all"
        )
