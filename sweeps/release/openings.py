"""The record that a sweep's test samples were looked at: in its ledger, on the disk before the first of them is read.

A crash in between counts as a look: nobody can tell what was seen. Knows nothing of how they are evaluated.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder, sweeps_in

NOTE = "test_openings"  # the ledger's attribute


@dataclass(frozen=True)
class Opening:
    """One look. `data`: the fingerprint of train and val samples, whose split decides which are the test samples;
    `samples`: of these themselves, None where the command ended before it knew."""

    time: str
    trial: int
    data: str
    acceptance: str
    host: str
    samples: str | None = None

    @property
    def day(self) -> str:
        return self.time[:16].replace("T", " ")


def openings_of(ledger: Ledger) -> list[Opening]:
    return [Opening(**noted) for noted in ledger.attribute(NOTE) or []]


def note_opening(ledger: Ledger, trial: int, data: str, acceptance: str) -> Opening:
    """Write down, durably, that the test samples are about to be read."""
    opening = Opening(datetime.now(UTC).isoformat(timespec="seconds"), trial, data, acceptance, _here())
    ledger.note(NOTE, [asdict(found) for found in [*openings_of(ledger), opening]])
    return opening


def note_samples(ledger: Ledger, opening: Opening, samples: str) -> Opening:
    """Add which samples they were."""
    known = replace(opening, samples=samples)
    ledger.note(NOTE, [asdict(known if found == opening else found) for found in openings_of(ledger)])
    return known


def opened_by_others(folder: Folder, opening: Opening) -> list[tuple[str, Opening]]:
    """Where other sweeps of the same results folder looked at the same samples, the names first."""
    found: list[tuple[str, Opening]] = []
    for other in sweeps_in(folder.path.parent):
        if other.path == folder.path:
            continue
        found += [(other.name, seen) for seen in openings_in(other) if _same(seen, opening)]
    return found


def openings_in(folder: Folder) -> Sequence[Opening]:
    """Those of a sweep as it lies there, for whoever only reads."""
    try:
        ledger = Ledger(folder.ledger)
    except Exception:  # a damaged ledger of another sweep is not this one's business
        return []
    try:
        return openings_of(ledger)
    finally:
        ledger.close()


def _same(one: Opening, other: Opening) -> bool:
    if one.samples is None or other.samples is None:
        return one.data == other.data
    return one.samples == other.samples


def _here() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
