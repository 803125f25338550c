"""A small sweep that can be made to fail, and what must be the same of it however often it was made to."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.record.trial import TERMINAL, TrialRecord
from tests.helpers.drivers import ROOT, TIMEOUT_S, environment, kill, result_of, without_circumstances

NAME = "kept"
MOODY = f"{ROOT / 'tests/helpers/moody.py'}:Moody"
LRS = ("3e-3", "1e-3", "3e-4", "1e-4", "1e-2", "3e-2")
NUM_TRIALS, EPOCHS, STEPS_PER_EPOCH = len(LRS), 3, 40  # 1258 training samples in batches of 32
STEPS = NUM_TRIALS * EPOCHS * STEPS_PER_EPOCH
KEPT_OF_A_REPORT = ("report", "epoch", "step", "total_steps", "first_step", "metrics", "curves")


def arguments(place: Path, at_once: int, sleep_s: float = 0.005) -> tuple[str, ...]:
    """The sweep, with a step log; how slow it is and how many run at a time changes nothing of its answer."""
    return (
        *("--name", NAME, "--task", MOODY, "--lrs", *LRS, "--epochs", str(EPOCHS)),
        *("--set", f"task.sleep_s={sleep_s}", "--set", f"task.step_log={place / 'steps.log'}"),
        *placed(at_once),
    )


def placed(at_once: int) -> tuple[str, ...]:
    return ("--trials-at-once", str(at_once), "--cpus-per-trial", "1")


def resumed(at_once: int) -> tuple[str, ...]:
    return ("--resume", NAME, *placed(at_once))


def folder_in(place: Path) -> Path:
    return place / "results" / NAME


@contextlib.contextmanager
def started(place: Path, *command: str, crash: str = "", **extra: str) -> Iterator[subprocess.Popen[str]]:
    """A driver under way in `place`. `crash`: what STEADYSWEEP_CRASH says; its counts go on from driver to driver."""
    told = {"STEADYSWEEP_CRASH": crash, "STEADYSWEEP_CRASH_STATE": str(place / "crash-counts")}
    with (place / "driver.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "sweeps.lr_scan", *command],
            cwd=place,
            env={**environment(), **told, **extra},
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            kill(process)


def run(place: Path, *command: str, crash: str = "", **extra: str) -> int:
    """A driver to its end, however it comes; its exit code."""
    with started(place, *command, crash=crash, **extra) as process:
        return process.wait(timeout=TIMEOUT_S)


def log_of(place: Path) -> str:
    return (place / "driver.log").read_text()[-6000:]


def steps_taken(place: Path) -> int:
    path = place / "steps.log"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def ledger_of(folder: Path) -> list[TrialRecord]:
    """What the ledger says. A copy is read: a journal that a crash left is for the next driver to find."""
    with tempfile.TemporaryDirectory() as beside:
        for path in folder.glob("ledger.db*"):
            shutil.copy(path, beside)
        ledger = Ledger(Path(beside, "ledger.db"))
        try:
            return ledger.trials()
        finally:
            ledger.close()


def finished_trials(folder: Path) -> dict[int, tuple[int, bytes]]:
    """Of the trials that have ended: how many attempts it took, and their history. Nothing may change it."""
    if not (folder / "ledger.db").is_file():
        return {}
    history = History(folder / "history")
    return {
        record.number: (record.attempts, history.path(record.number).read_bytes())
        for record in ledger_of(folder)
        if record.state in TERMINAL
    }


@dataclass(frozen=True)
class Facts:
    """What two runs of a sweep must have in common. As texts, so that NaN equals NaN."""

    result: dict[str, Any]
    histories: list[str]
    decisions: list[tuple[Any, ...]]


def facts(folder: Path) -> Facts:
    history = History(folder / "history")
    return Facts(
        result=without_circumstances(result_of(folder)),
        histories=[
            json.dumps([{key: report[key] for key in KEPT_OF_A_REPORT} for report in history.reports(number)])
            for number in range(NUM_TRIALS)
        ],
        decisions=[
            (record.number, record.params, record.state, record.reports, record.reason, record.weights_sha256)
            for record in ledger_of(folder)
        ],
    )


def assert_equal_to_unbroken(place: Path, unbroken: Facts, *, redone: int | None = None) -> None:
    """Params, histories, decisions, best and weights are those of the unbroken sweep; nothing is left RUNNING or
    shown twice. redone: how many steps may have been taken again."""
    folder = folder_in(place)
    found = facts(folder)
    assert found.result == unbroken.result
    assert found.histories == unbroken.histories
    assert found.decisions == unbroken.decisions
    if redone is not None:
        assert STEPS <= steps_taken(place) <= STEPS + redone
    assert_nothing_left_open(place)


def assert_nothing_left_open(place: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder_in(place) / "ledger.db")) as ledger:
        assert ledger.execute("select count(*) from trials where state in ('RUNNING', 'WAITING')").fetchone() == (0,)
    with contextlib.closing(sqlite3.connect(place / "mlflow.db")) as store:
        roles = store.execute("select value, count(*) from tags where key = 'steadysweep.role' group by value")
        assert dict(roles.fetchall()) == {"sweep": 1, "trial": NUM_TRIALS}
        assert store.execute("select count(*) from runs where status = 'RUNNING'").fetchone() == (0,)
        twice = "select run_uuid, key, step from metrics group by 1, 2, 3 having count(*) > 1"
        assert store.execute(twice).fetchall() == []
        losses = "select count(*) from metrics where key = 'loss' and is_nan = 0 group by run_uuid"
        assert len(store.execute(losses).fetchall()) == NUM_TRIALS


def assert_all_points_are_shown(place: Path) -> None:
    """MLflow has the loss of every step that the histories have."""
    with contextlib.closing(sqlite3.connect(place / "mlflow.db")) as store:
        found = dict(
            store.execute(
                "select t.value, count(*) from metrics m join tags t on t.run_uuid = m.run_uuid "
                "where m.key = 'loss' and t.key = 'steadysweep.trial' group by 1"
            ).fetchall()
        )
    assert found == {str(number): EPOCHS * STEPS_PER_EPOCH for number in range(NUM_TRIALS)}
