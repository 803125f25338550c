"""Killed once at each of the named places where a crash is at its worst. In a driver it takes all along; in a
worker it takes the worker, and the driver goes on with another."""

from __future__ import annotations

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
    ledger_of,
    log_of,
    resumed,
    run,
)

IN_DRIVER = {"ask": 4, "report": 11, "ledger-before-commit": 11, "ledger-after-commit": 11, "ship": 3, "tell": 4}
IN_WORKER = {"trial-start": 4, "step": 450, "checkpoint-before-manifest": 11, "checkpoint-after-manifest": 11}


@pytest.mark.slow
def test_three_in_a_row(tmp_path: Path, unbroken: Facts) -> None:
    """The driver before the parameters of a trial, a worker with its checkpoint's state cut off, the driver before a
    report's commit."""
    crash = "ask:3:kill,checkpoint-before-manifest:8:torn,ledger-before-commit:14:kill"
    assert run(tmp_path, *arguments(tmp_path, 1), crash=crash) == -signal.SIGKILL
    assert [record.state for record in ledger_of(folder_in(tmp_path))][:3] == ["complete", "complete", "waiting"]
    assert run(tmp_path, *resumed(1), crash=crash) == -signal.SIGKILL
    assert run(tmp_path, *resumed(1), crash=crash) == 0, log_of(tmp_path)
    assert_equal_to_unbroken(tmp_path, unbroken, redone=3 * STEPS_PER_EPOCH)
    assert_all_points_are_shown(tmp_path)


@pytest.mark.soak  # a minute and a half; the worst three are above
def test_the_others_in_a_row(tmp_path: Path, unbroken: Facts) -> None:
    in_driver = ("report:5:kill", "ledger-after-commit:9:kill", "ship:14:kill", "tell:5:kill")
    in_worker = ("trial-start:2:kill", "step:250:kill", "checkpoint-after-manifest:9:kill")
    crash, kills = ",".join((*in_driver, *in_worker)), 0
    command = arguments(tmp_path, 1)
    while (code := run(tmp_path, *command, crash=crash)) == -signal.SIGKILL:
        kills, command = kills + 1, resumed(1)
    assert code == 0, log_of(tmp_path)
    assert kills == len(in_driver)
    assert_equal_to_unbroken(tmp_path, unbroken, redone=(kills + len(in_worker)) * STEPS_PER_EPOCH)
    assert_all_points_are_shown(tmp_path)


# Each alone, for when one of those in a row fails.
@pytest.mark.soak
@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("point", IN_DRIVER)
def test_driver(point: str, at_once: int, tmp_path: Path, unbroken: Facts) -> None:
    crash = f"{point}:{IN_DRIVER[point]}:kill"
    assert run(tmp_path, *arguments(tmp_path, at_once), crash=crash) == -signal.SIGKILL, log_of(tmp_path)
    assert run(tmp_path, *resumed(at_once), crash=crash) == 0, log_of(tmp_path)
    assert_equal_to_unbroken(tmp_path, unbroken, redone=at_once * STEPS_PER_EPOCH)
    assert_all_points_are_shown(tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("point", IN_WORKER)
def test_worker(point: str, at_once: int, tmp_path: Path, unbroken: Facts) -> None:
    assert run(tmp_path, *arguments(tmp_path, at_once), crash=f"{point}:{IN_WORKER[point]}:kill") == 0, log_of(tmp_path)
    attempts = sorted(record.attempts for record in ledger_of(folder_in(tmp_path)))
    assert attempts == [1, 1, 1, 1, 1, 2]
    assert_equal_to_unbroken(tmp_path, unbroken, redone=STEPS_PER_EPOCH)
    assert_all_points_are_shown(tmp_path)
