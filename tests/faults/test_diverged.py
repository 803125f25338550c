"""A loss that becomes NaN in the middle of a sweep is a finding, before and after a crash."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from pathlib import Path

import pytest

from tests.faults.helper import (
    EPOCHS,
    STEPS_PER_EPOCH,
    Facts,
    arguments,
    facts,
    finished_trials,
    folder_in,
    ledger_of,
    log_of,
    resumed,
    run,
)

CHECKED = 1  # step, which the checks before the first trial make


@pytest.mark.slow
def test_nan_from_a_step_on(tmp_path: Path, unbroken: Facts) -> None:
    """The second trial's weights become NaN before its 50th step; the driver is killed during the fourth."""
    step = 50
    crash = f"step:{CHECKED + EPOCHS * STEPS_PER_EPOCH + step}:nan,report:11:kill"
    assert run(tmp_path, *arguments(tmp_path, 1), crash=crash) == -signal.SIGKILL, log_of(tmp_path)
    before = finished_trials(folder_in(tmp_path))
    assert set(before) == {0, 1, 2}
    assert run(tmp_path, *resumed(1), crash=crash) == 0, log_of(tmp_path)
    assert before.items() <= finished_trials(folder_in(tmp_path)).items()

    found = facts(folder_in(tmp_path))
    assert found.result["best"] == unbroken.result["best"]
    others = [0, 2, 3, 4, 5]
    assert [found.histories[number] for number in others] == [unbroken.histories[number] for number in others]
    assert [found.decisions[number] for number in others] == [unbroken.decisions[number] for number in others]
    record = ledger_of(folder_in(tmp_path))[1]
    assert (record.state, record.reports, record.epochs) == ("diverged", 2, 2)
    assert f"nan at step {step - 1}" in str(record.reason)

    with contextlib.closing(sqlite3.connect(folder_in(tmp_path) / "ledger.db")) as ledger:
        states = dict(ledger.execute("select state, count(*) from trials group by 1").fetchall())
    assert states == {"COMPLETE": 5, "FAIL": 1}
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as store:
        (status,) = store.execute(
            "select r.status from runs r join tags t on t.run_uuid = r.run_uuid where t.key = 'diverged'"
        ).fetchall()
        assert status == ("KILLED",)
        assert store.execute("select count(*) from metrics where is_nan = 1 or value > 1e300").fetchone() == (0,)
