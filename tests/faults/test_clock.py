"""A clock that is set back and forth decides nothing."""

from __future__ import annotations

import ast
import json
import signal
from pathlib import Path

import pytest

from tests.faults.helper import (
    STEPS_PER_EPOCH,
    Facts,
    arguments,
    assert_all_points_are_shown,
    assert_equal_to_unbroken,
    folder_in,
    log_of,
    resumed,
    run,
)
from tests.helpers.drivers import ROOT

# Who may read the clock of the wall, and what for: to say when, never to decide.
SAYS_WHEN = {
    "sweeps/running/keeper.py": "the time of a report, for MLflow's axis",
    "sweeps/command.py": "the default name",
    "sweeps/lr_scan.py": "when the command began",
    "sweeps/api.py": "when the call began",
    "sweeps/search.py": "when the command began",
    "sweeps/running/conduct.py": "how long its phases took",
    "sweeps/record/writes.py": "when a trial began and ended, for those who read the study with Optuna's tools",
    "sweeps/answers/overview.py": "how old a sweep is, in the list of them",
    "sweeps/release/openings.py": "when the test samples were opened",
    "sweeps/release/telling.py": "when a model was accepted",
    "sweeps/monitor.py": "when fresh data were looked at",
    "cluster/ask.py": "how far the clocks of nodes are apart",
    "trainable/trial.py": "when an attempt began, at the head of its log",
    "trainable/single/folder.py": "the default name",
}
YEAR_S = 365 * 86400
JUMPING = f"""
import itertools, sys, time
if any(word in " ".join(sys.orig_argv) for word in ("sweeps.lr_scan", "default_worker")):
    real, calls = time.time, itertools.count()
    def jumping():
        caller = sys._getframe(1).f_globals.get("__name__", "").partition(".")
        if caller[0] not in ("sweeps", "trainable", "mlflow", "optuna", "__main__") and caller[2][:4] != "tune":
            return real()  # Ray's own start-up waits by it
        return real() + (0, {YEAR_S}, -{YEAR_S}, 3600, -7200)[next(calls) % 5]
    time.time = jumping
"""


def test_only_these_read_it() -> None:
    found = {
        str(path.relative_to(ROOT))
        for folder in ("sweeps", "trainable", "cluster")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and ast.unparse(node) in ("time.time", "time.time_ns", "time.strftime", "datetime.now", "datetime.datetime.now")
    }
    assert found <= set(SAYS_WHEN)


@pytest.mark.soak
def test_it_jumps_by_years(tmp_path: Path, unbroken: Facts) -> None:
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock/sitecustomize.py").write_text(JUMPING)
    path = {"PYTHONPATH": f"{tmp_path / 'clock'}:{ROOT}"}
    crash = "report:10:kill"
    assert run(tmp_path, *arguments(tmp_path, 1), crash=crash, **path) == -signal.SIGKILL, log_of(tmp_path)
    assert run(tmp_path, *resumed(1), crash=crash, **path) == 0, log_of(tmp_path)
    times = [
        json.loads(line)["time_ms"] / 1000
        for file in (folder_in(tmp_path) / "history").iterdir()
        for line in file.read_text().splitlines()
    ]
    assert max(times) - min(times) > YEAR_S
    assert_equal_to_unbroken(tmp_path, unbroken, redone=STEPS_PER_EPOCH)
    assert_all_points_are_shown(tmp_path)
