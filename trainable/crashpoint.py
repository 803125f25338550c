"""Named places where a test makes this process fail on purpose, so that what follows a crash can be watched.

Off, and free, unless the environment names some when this file is imported; it is the one reader of
STEADYSWEEP_CRASH and STEADYSWEEP_CRASH_STATE. Imports no torch, and knows nothing of where it is called.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POINTS = (
    "ask",  # a trial is about to begin: its parameters and its attempt come in the next commit
    "trial-start",  # a worker is set up and has trained nothing
    "step",  # before an optimizer step
    "checkpoint-before-manifest",  # the state is in its place; handed on: the state's file
    "checkpoint-after-manifest",  # the checkpoint is whole, the folder not yet synced; the manifest's file
    "report",  # the history has a report that the ledger lacks; the history's file
    "ledger-before-commit",  # the ledger has a report's value, but the report does not count yet
    "ledger-after-commit",  # the report counts, and nobody was told
    "ship",  # MLflow has points, and the driver has not noted that
    "tell",  # before a trial's end is told
    "test-opened",  # it stands written down that the test samples are looked at, and none is read yet
    "accepted",  # a model's folder is whole, and not in its place
    "acceptance-run",  # MLflow has a run for it, which is empty
    "model-created",  # the registry has the model's name, and no version
    "version-created",  # it has the version, which has no alias
    "alias-set",  # it has all, and nobody was told
)
ACTIONS = ("kill", "term", "raise", "enospc", "torn", "sleep", "nan")
SLEEP_S = 3600.0
TORN_BYTES = 100


@dataclass(frozen=True)
class Plan:
    """At passage `count` of `point` (from 1, over all processes that share a state file) comes `action`."""

    point: str
    count: int
    action: str


def parse(text: str) -> tuple[Plan, ...]:
    """`point:count:action`, several joined by commas. ValueError for what does not exist."""
    plans = []
    for entry in filter(None, text.split(",")):
        point, _, rest = entry.partition(":")
        count, _, action = rest.partition(":")
        if point not in POINTS or action not in ACTIONS or not count.isdigit() or int(count) < 1:
            raise ValueError(
                f"STEADYSWEEP_CRASH {entry!r} is not point:count:action; "
                f"points: {', '.join(POINTS)}; actions: {', '.join(ACTIONS)}"
            )
        plans.append(Plan(point, int(count), action))
    return tuple(plans)


_PLANS = parse(os.environ.get("STEADYSWEEP_CRASH", ""))
_STATE = os.environ.get("STEADYSWEEP_CRASH_STATE")
_PASSED: dict[str, int] = {}


def crash_point(name: str, file: Path | None = None, poison: Iterable[Any] = ()) -> None:
    """Fail here, if the environment says so. file: what `torn` cuts the end off; poison: tensors that `nan` fills."""
    if not _PLANS:
        return
    if all(plan.point != name for plan in _PLANS):
        return
    count = _passed(name)
    for plan in _PLANS:
        if (plan.point, plan.count) == (name, count):
            _act(plan, file, poison)


def _passed(name: str) -> int:
    """Count this passage. The state file makes processes that die and are started again one chain."""
    if _STATE is None:
        _PASSED[name] = _PASSED.get(name, 0) + 1
        return _PASSED[name]
    import fcntl  # not on Windows, where no test does this

    with open(_STATE, "a+") as state:
        fcntl.flock(state, fcntl.LOCK_EX)
        state.seek(0)
        counts: dict[str, int] = json.loads(state.read() or "{}")
        counts[name] = counts.get(name, 0) + 1
        state.truncate(0)
        state.write(json.dumps(counts))
    return counts[name]


def _act(plan: Plan, file: Path | None, poison: Iterable[Any]) -> None:
    words = f"crash point {plan.point}, passage {plan.count}"
    if plan.action == "raise":
        raise RuntimeError(words)
    if plan.action == "enospc":
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({words})")
    if plan.action == "sleep":
        time.sleep(SLEEP_S)
    elif plan.action == "nan":
        for tensor in poison:
            tensor.data.fill_(float("nan"))
    elif plan.action == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        if plan.action == "torn" and file is not None:
            size = file.stat().st_size
            os.truncate(file, max(size // 2, size - TORN_BYTES))
        _kill()


def _kill() -> None:
    """The leader of a process group, as a driver is under test, takes all of it along; a worker dies alone."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
