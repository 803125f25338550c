"""SIGKILL of the driver, with all it started, at random times: resumed, it is the sweep that nothing happened to."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from tests.faults.helper import (
    STEPS_PER_EPOCH,
    Facts,
    arguments,
    assert_all_points_are_shown,
    assert_equal_to_unbroken,
    finished_trials,
    folder_in,
    log_of,
    resumed,
    run,
    started,
)
from tests.helpers.drivers import kill, wait_until


def kill_at_random(place: Path, command: tuple[str, ...], draw: random.Random) -> bool:
    """Start a driver and kill it: one time in four while it starts, else while it trains. False if it ended first."""
    with started(place, *command) as process:
        if draw.random() < 0.25:
            time.sleep(draw.uniform(0.2, 6))
        else:
            wait_until(lambda: owns(place, process.pid), "the driver owns the sweep", process)
            time.sleep(draw.uniform(0, 7))
        ended = process.poll()
        assert ended in (None, 0), log_of(place)
        kill(process)
    return ended is None


def owns(place: Path, pid: int) -> bool:
    """Whether this driver, and not a dead one, is at work; its ledger is next."""
    try:
        return bool(json.loads((folder_in(place) / "owner.json").read_text())["pid"] == pid)
    except (OSError, ValueError):
        return False


def go_through(place: Path, unbroken: Facts, at_once: int, num_kills: int, draw: random.Random) -> int:
    """One sweep, killed up to so many times and then left to finish; how often it really was killed."""
    folder, kills = folder_in(place), 0
    before = finished_trials(folder)
    command = arguments(place, at_once)
    while kills < num_kills:
        if not kill_at_random(place, command, draw):
            break  # it was finished before
        kills += 1
        now = finished_trials(folder)
        assert before.items() <= now.items(), "a finished trial was touched"
        before = now
        # A driver that was killed before it had a ledger left nothing to resume; its name is free.
        command = resumed(at_once) if (folder / "ledger.db").exists() else arguments(place, at_once)
    else:
        assert run(place, *command) == 0, log_of(place)
    assert before.items() <= finished_trials(folder).items(), "a finished trial was trained again"
    assert_equal_to_unbroken(place, unbroken, redone=kills * at_once * STEPS_PER_EPOCH)
    assert_all_points_are_shown(place)
    return kills


@pytest.mark.slow
def test_three_times(tmp_path: Path, unbroken: Facts) -> None:
    go_through(tmp_path, unbroken, at_once=2, num_kills=3, draw=random.Random(4))


@pytest.mark.soak
@pytest.mark.parametrize("at_once", [1, 2])
def test_ten_times(at_once: int, tmp_path: Path, unbroken: Facts) -> None:
    """Twenty with both. A sweep that is finished before is compared, and another one begun."""
    draw, kills, sweeps = random.Random(at_once), 0, 0
    while kills < 10:
        place = tmp_path / str(sweeps)
        place.mkdir()
        kills += go_through(place, unbroken, at_once, min(10 - kills, 4), draw)
        sweeps += 1
