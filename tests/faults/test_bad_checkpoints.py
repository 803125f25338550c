"""Checkpoints that are damaged while a sweep is down: it goes on from the newest good one, or from the beginning."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.helper import (
    NAME,
    Facts,
    assert_all_points_are_shown,
    assert_equal_to_unbroken,
    finished_trials,
    folder_in,
    ledger_of,
    placed,
)

Scan = Callable[..., tuple[int, Any]]
RESUME = ("--resume", NAME, "--tracking-uri", "sqlite:///mlflow.db", *placed(1))
UNDER_WAY = 3  # the trial that was running


def checkpoints(place: Path) -> list[Path]:
    """Of the trial that was running, the newest last."""
    folders = (folder_in(place) / "trials").glob(f"{UNDER_WAY:05d}-attempt-*/checkpoint_*")
    return sorted(folders, key=lambda folder: json.loads((folder / "manifest.json").read_text())["step"])


def cut(file: Path, share: float) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def go_on(scan: Scan, place: Path, unbroken: Facts) -> str:
    """Resume, compare; what is noted of a trial that had to begin again."""
    before = finished_trials(folder_in(place))
    assert set(before) == {0, 1, 2}
    code, _ = scan(*RESUME)
    assert code == 0
    assert before.items() <= finished_trials(folder_in(place)).items()
    assert_equal_to_unbroken(place, unbroken)
    assert_all_points_are_shown(place)
    records = ledger_of(folder_in(place))
    assert [record.attempts for record in records] == [1, 1, 1, 2, 1, 1]
    return records[UNDER_WAY].notes.get("restarted", "")


@pytest.mark.parametrize(
    "share",
    [
        pytest.param(0.0, marks=pytest.mark.soak),
        pytest.param(0.01, marks=pytest.mark.soak),
        0.5,
        pytest.param(0.99, marks=pytest.mark.soak),
    ],
)
def test_newest_is_cut(share: float, stopped: Callable[[], Path], scan: Scan, unbroken: Facts) -> None:
    place = stopped()
    cut(checkpoints(place)[-1] / "state.pt", share)
    assert go_on(scan, place, unbroken) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["state.pt", "manifest.json"])
def test_a_bit_is_flipped(name: str, stopped: Callable[[], Path], scan: Scan, unbroken: Facts) -> None:
    place = stopped()
    flip(checkpoints(place)[-1] / name)
    go_on(scan, place, unbroken)


@pytest.mark.slow
def test_newest_is_gone(stopped: Callable[[], Path], scan: Scan, unbroken: Facts) -> None:
    place = stopped()
    (checkpoints(place)[-1] / "manifest.json").unlink()
    assert go_on(scan, place, unbroken) == ""


def test_all_are_bad(stopped: Callable[[], Path], scan: Scan, unbroken: Facts) -> None:
    """The trial begins again, says so, and comes to the same end; no report counts twice."""
    place = stopped()
    folders = checkpoints(place)
    assert len(folders) == 2
    for folder in folders:
        flip(folder / "state.pt")
    assert "all 2 checkpoints are bad" in go_on(scan, place, unbroken)
