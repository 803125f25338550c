"""The limit of the watchdog, and what it leaves alone; that it ends processes is tested through sweeps."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from trainable import watchdog
from trainable.watchdog import Watchdog


def test_the_limit_follows_from_the_pace(tmp_path: Path) -> None:
    dog = Watchdog(tmp_path / "stacks.txt", None)
    assert dog.limit_s() == watchdog.FIRST_S  # nothing is known yet
    with dog.watching():
        began = time.monotonic()
        dog.moved(1, began + 30)  # a slow step
        dog.moved(2, began + 31)
    assert dog.limit_s() == pytest.approx(20 * 30, rel=0.01)
    dog.close()
    assert not (tmp_path / "stacks.txt").exists()


def test_a_fast_run_has_time_all_the_same(tmp_path: Path) -> None:
    dog = Watchdog(tmp_path / "stacks.txt", None)
    with dog.watching():
        dog.moved(1, time.monotonic())
    assert dog.limit_s() == watchdog.FLOOR_S
    dog.close()


def test_what_is_asked_for_counts_and_waiting_for_others_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[float] = []
    monkeypatch.setattr(Watchdog, "_end", lambda self, seconds: ended.append(seconds))
    dog = Watchdog(tmp_path / "stacks.txt", 0.2)
    time.sleep(0.5)  # set up, not at work
    with dog.watching():
        pass
    time.sleep(0.5)  # Tune has the word
    with dog.watching(at_least_s=60):
        time.sleep(0.5)  # the checks before the first trial
    assert ended == []
    with dog.watching():
        time.sleep(1.5)  # it looks once a second where limits are long
    dog.close()
    assert ended
