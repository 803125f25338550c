"""How many processes train the trials of a sweep."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.drivers import run_command


@pytest.mark.slow
def test_trials_shorter_than_the_start_of_a_process(tmp_path: Path) -> None:
    """Two at a time are two processes, however many trials, and each trial is set up in one of them.

    A process that had become free used to take the trial for which another was being started, which was then stopped.
    """
    place = ("--trials-at-once", "2", "--cpus-per-trial", "1", "--progress", "none")
    done = run_command("--name", "many", "--lrs", "1e-5..1e-2:60", *place, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    headings = [
        re.findall(r"^.*attempt \d+ on .*, process (\d+)", log.read_text(), flags=re.MULTILINE)
        for log in (tmp_path / "results/many/logs").glob("*.txt")
    ]
    assert [len(found) for found in headings] == [1] * 60
    assert 1 <= len({process for found in headings for process in found}) <= 2
