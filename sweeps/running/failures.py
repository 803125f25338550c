"""Failures by kind, read from the text that an attempt left: whose fault it was, and how often one tries again.

Pure functions and plain values; knows no Ray and no ledger.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sweeps.record.address import LedgerLost
from trainable.objects import StoreLost, StoreRefuses

Kind = Literal["infrastructure", "out of memory", "stalled", "exception", "refused", "moved"]
# How often a trial may fail in each way, without anybody's leave, before it counts as failed.
FORGIVEN: Mapping[str, int] = {"infrastructure": 3, "out of memory": 1, "stalled": 1}
STALLED = "no progress for"  # how the watchdog's word begins, in trainable/watchdog.py
_MEMORY = re.compile(
    r"out of memory|OutOfMemory|MemoryError|can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED|running low on memory|"
    r"one sample at a time does not fit|memory monitor",
    re.IGNORECASE,
)
_LOST = re.compile(
    r"The actor died unexpectedly|actor is (temporarily )?unavailable|node .{0,80}died|worker died|worker process has "
    r"died|ActorDiedError|ActorUnavailableError|NodeDiedError|WorkerCrashedError|ObjectLostError|RaySystemError",
    re.IGNORECASE,
)
_STORAGE = re.compile(
    r"Stale file handle|Input/output error|Transport endpoint is not connected|No space left on device|"
    r"the object store \S+ did not answer"
)
_DATABASE = re.compile(r"database or disk is full|attempt to write a readonly database|disk I/O error")
NO_STORAGE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)
_REFUSED = "trainable.checks.before.Refused: "  # the checks before the first trial
_MOVED = "trainable.trial.NodeLeaves: "  # a process that is to be used again, on a node that has been given notice
_UNFIT = "trainable.trial.NodeUnfit: "  # a node that has come since, and is not as the others
_RAISED = "creation task"  # Ray says so where the trial's own code raised while it was set up


class StorageLost(OSError):
    """The driver could not write down what it must: a full disk, one that is read-only or gone."""


class Refused(ValueError):
    """The checks before the first trial have found something that every trial of this sweep would fail by."""


@dataclass(frozen=True)
class Failure:
    """How an attempt ended. `reason` is all that was said, `line` the last of it."""

    kind: Kind
    reason: str

    @property
    def line(self) -> str:
        lines = [line.strip() for line in self.reason.strip().splitlines() if line.strip()]
        return lines[-1][:500] if lines else "no message"

    def is_like(self, other: Failure) -> bool:
        return (self.kind, self.line) == (other.kind, other.line)

    def __str__(self) -> str:
        return f"{self.kind}: {self.line}"


def storage_problem(error: BaseException) -> str | None:
    """What is wrong with the disk or the ledger's database, where an error goes back to that; None for any other."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in NO_STORAGE:
            return f"{os.strerror(seen.errno)}{f' ({seen.filename})' if seen.filename else ''}"
        if isinstance(seen, LedgerLost | StoreLost | StoreRefuses):
            return str(seen)
        # SQLite and Tune have words only.
        found = _STORAGE.search(str(seen)) or _DATABASE.search(str(seen))
        if found:
            return found.group()
        seen = seen.__cause__ or seen.__context__
    return None


def classify(text: str, stacks: str = "") -> Failure:
    """`text`: what Ray tells of the end; `stacks`: what the watchdog wrote before it ended the process, if it did."""
    if stacks.startswith(STALLED):
        first, _, rest = stacks.partition("\n")
        return Failure("stalled", f"{rest}\n{first}")  # the reason's last line is its sum
    if _REFUSED in text:
        return Failure("refused", text.rpartition(_REFUSED)[2].strip())
    if _MOVED in text:
        return Failure("moved", text)
    if _UNFIT in text:
        return Failure("infrastructure", text.rpartition(_UNFIT)[2].strip())
    raised = _RAISED in text or "RayTaskError" in text
    if _MEMORY.search(text if not raised else Failure("exception", text).line):
        return Failure("out of memory", text)
    if not raised and _LOST.search(text):
        return Failure("infrastructure", text)
    if _STORAGE.search(Failure("exception", text).line):
        return Failure("infrastructure", text)
    return Failure("exception", text)


def may_try_again(failures: Sequence[Mapping[str, Any]], retries: int) -> bool:
    """Whether a trial with these failures (`kind`, and `forgiven` where the user had it run again) gets another
    attempt. `retries`: how often an exception of the user's code is tried again."""
    kind = failures[-1]["kind"]
    if kind == "refused":
        return False
    count = sum(failure["kind"] == kind and not failure.get("forgiven") for failure in failures)
    allowed = retries if kind == "exception" else FORGIVEN[kind]
    return bool(count <= allowed)
