"""A sweep as it stands, read from its folder without writing to it or waiting for whoever works on it.

Imports no task: what is shown may be of code that is gone.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.record.trial import TERMINAL, TrialRecord
from sweeps.running.account import ENDED_BY
from sweeps.running.progress import spoken
from sweeps.sweep import describe


@dataclass(frozen=True)
class Overview:
    """`state` is running (a driver works on it), interrupted (trials are left, nobody works on them), finished or
    failed (all trials did). `best` is of the last answer, in words."""

    folder: Folder
    state: str
    question: str
    task: str
    metric: str
    epochs: int
    trials: Sequence[TrialRecord]
    best: str
    verdict: str
    age: str
    owner: tuple[str, str] | None
    tracking_uri: str
    drift: Sequence[str]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def done(self) -> int:
        return sum(trial.state in TERMINAL for trial in self.trials)


def look(folder: Folder) -> Overview:
    """How a sweep stands now. Raises ValueError for a ledger that cannot be read."""
    owner = _owner(folder)
    try:
        ledger = Ledger(folder.ledger)
    except Exception as error:  # a foreign or damaged database: Optuna's and SQLite's errors are many
        raise ValueError(f"{folder.name}: its ledger cannot be read ({type(error).__name__}: {error})") from error
    try:
        sweep, trials = ledger.sweep, ledger.trials()
        uri, drift = str(ledger.attribute("tracking_uri")), ledger.attribute("drift") or []
        ended_by = ledger.attribute(ENDED_BY)
    finally:
        ledger.close()
    if owner:
        state = "running"
    elif ended_by is None and any(trial.state not in TERMINAL for trial in trials):
        state = "interrupted"
    else:
        state = "failed" if all(trial.state == "failed" for trial in trials) else "finished"
    result = _result(folder.result)
    return Overview(
        folder=folder,
        state=state,
        question=sweep.question,
        task=sweep.task,
        metric=sweep.metric,
        epochs=sweep.epochs,
        trials=trials,
        best=describe((result.get("best") or {}).get("params", {})),
        verdict=str(result.get("verdict", "")),
        age=spoken(time.time() - folder.ledger.stat().st_mtime),
        owner=owner,
        tracking_uri=uri,
        drift=drift,
    )


def _result(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _owner(folder: Folder) -> tuple[str, str] | None:
    """Host and process of the driver that works on the sweep. The lock itself is left alone: trying it could turn
    a driver away that starts at this moment."""
    try:
        who = json.loads((folder.path / "owner.json").read_text())
        host, pid = str(who["host"]), int(who["pid"])
        if host == socket.gethostname():
            os.kill(pid, 0)
    except PermissionError:  # it is somebody else's, and there
        pass
    except (OSError, ValueError, KeyError, TypeError):  # none, or it was killed
        return None
    return host, str(pid)
