"""B40: what Ray Tune and a crash leave lying about is never read: torn, missing or wrong, it changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.helper import Facts, folder_in
from tests.faults.test_bad_checkpoints import UNDER_WAY, Scan, cut, go_on


def states_of_tune(place: Path) -> list[Path]:
    """Tune's snapshots; where a crash came before the first, one is put there."""
    trials = folder_in(place) / "trials"
    for name in ("tuner.pkl", "experiment_state-2026-01-01_00-00-00.json", "search_gen_state-2026.json"):
        if not (trials / name).exists():
            (trials / name).write_text("{}" * 100)
    return [path for path in trials.iterdir() if path.is_file()]


def tear(file: Path) -> None:
    cut(file, 0.5)


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("harm", [empty, *(pytest.param(harm, marks=pytest.mark.soak) for harm in (tear, Path.unlink))])
def test_b40_snapshots(harm: Callable[[Path], Any], stopped: Callable[[], Path], scan: Scan, unbroken: Facts) -> None:
    """And the history's last line, which the ledger does not know yet, is torn, too."""
    place = stopped()
    for file in states_of_tune(place):
        harm(file)
    history = folder_in(place) / "history" / f"{UNDER_WAY:05d}.jsonl"
    assert history.read_bytes().count(b"\n") == 3
    history.write_bytes(history.read_bytes()[:-100])
    assert go_on(scan, place, unbroken) == ""


@pytest.mark.slow
def test_everything_of_tune_but_the_checkpoints(stopped: Callable[[], Path], scan: Scan, unbroken: Facts) -> None:
    place = stopped()
    for attempt in (folder_in(place) / "trials").iterdir():
        if attempt.is_file():
            attempt.unlink()
            continue
        for path in attempt.iterdir():
            if not path.name.startswith("checkpoint_"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert go_on(scan, place, unbroken) == ""


def test_nothing_that_is_read_knows_of_a_ray_session(half_done: Path) -> None:
    """So it does not matter that /tmp/ray is lost."""
    folder = folder_in(half_done)
    read = [folder / "ledger.db", *folder.glob("history/*"), *folder.glob("trials/*/checkpoint_*/manifest.json")]
    assert len(read) > 10
    assert [path for path in read if b"/tmp/ray" in path.read_bytes()] == []
