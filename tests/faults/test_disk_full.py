"""No space left on the device, for a checkpoint and for the ledger: nothing that was written before is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.helper import (
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


@pytest.mark.soak
@pytest.mark.parametrize("at_once", [1, 2])
def test_ledger(at_once: int, tmp_path: Path, unbroken: Facts) -> None:
    """A record that cannot be kept ends the driver, in words; with room again the sweep goes on."""
    crash = "ledger-before-commit:9:enospc"
    assert run(tmp_path, *arguments(tmp_path, at_once), crash=crash) == 1
    said = log_of(tmp_path)
    assert "error: the sweep stopped, because it could not write to" in said
    assert "No space left on device" in said
    assert "go on with python -m sweeps.lr_scan --resume kept" in said
    assert "Traceback" not in said
    assert run(tmp_path, *resumed(at_once), crash=crash) == 0, log_of(tmp_path)
    assert_equal_to_unbroken(tmp_path, unbroken)
    assert_all_points_are_shown(tmp_path)


@pytest.mark.slow
def test_checkpoint(tmp_path: Path, unbroken: Facts) -> None:
    """A trial whose checkpoint found no room is tried again, from the one before; it is not to blame."""
    assert run(tmp_path, *arguments(tmp_path, 1), crash="checkpoint-before-manifest:8:enospc") == 0, log_of(tmp_path)
    assert [record.attempts for record in ledger_of(folder_in(tmp_path))] == [1, 1, 2, 1, 1, 1]
    assert_equal_to_unbroken(tmp_path, unbroken)
    assert_all_points_are_shown(tmp_path)


@pytest.mark.soak
def test_shipping(tmp_path: Path, unbroken: Facts) -> None:
    """MLflow's disk is full for a moment: the sweep notices nothing."""
    assert run(tmp_path, *arguments(tmp_path, 2), crash="ship:3:enospc,ship:5:raise") == 0, log_of(tmp_path)
    assert_equal_to_unbroken(tmp_path, unbroken, redone=0)
    assert_all_points_are_shown(tmp_path)
