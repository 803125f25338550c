"""A search whose driver is killed goes on as if nothing had happened: proposals, pruning, seeds and answer are the
same. A Ctrl-C in a script that calls the function saves and stops, and the script goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.drivers import (
    ROOT,
    driver,
    environment,
    kill,
    result_of,
    run_command,
    wait_until,
    without_circumstances,
)

MOODY = f"{ROOT / 'tests/helpers/moody.py'}:Moody"
ONE = ["--trials-at-once", "1"]  # of several, which is first depends on the machine
FLAGS = [
    *("--task", MOODY, "--set", "task.sleep_s=0.003", "--space", "lr=log:1e-4..1e-1", "--sampler", "cmaes"),
    *("--space", "beta1=float:0.5..0.95", "--trials", "6", "--seeds", "2", "--epochs", "2", "--pruner", "median"),
    *("--name", "a"),
]


def reports_in(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (folder / "history").glob("*.jsonl"))


@pytest.mark.slow
def test_a_killed_search_gives_the_same_answer(tmp_path: Path) -> None:
    """A sampler that learns and remembers, two seeds, pruning; killed twice."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    done = run_command(*FLAGS, *ONE, cwd=whole, module="sweeps.search")
    assert done.returncode == 0, done.stderr
    expected = without_circumstances(result_of(whole / "results/a"))
    assert {trial["state"] for trial in expected["trials"]} == {"complete", "pruned"}
    folder, flags = broken / "results/a", FLAGS
    for reports in (3, 12):
        with driver(*flags, *ONE, cwd=broken, module="sweeps.search") as process:
            wait_until(lambda reports=reports: reports_in(folder) >= reports, f"{reports} reports", process)
            kill(process)
        flags = ["--resume", "a"]
    done = run_command("--resume", "a", *ONE, cwd=broken, module="sweeps.search")
    assert done.returncode == 0, done.stderr
    assert without_circumstances(result_of(folder)) == expected


SCRIPT = f"""
from sweeps import search

space = {{"lr": {{"log": [1e-3, 1e-1]}}}}
slow = {{"task.mood": "slow", "task.sleep_s": 0.05}}
found = search({MOODY!r}, space=space, trials=2, epochs=2, set=slow, trials_at_once=1, name="a")
print("after", found.status, flush=True)
found = search(resume="a", set={{"stall_s": 500}}, quiet=True)
print("again", found.status, flush=True)
"""


@pytest.mark.slow
def test_ctrl_c_in_a_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    script = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: reports_in(tmp_path / "results/a") >= 1, "a report", script)
        script.send_signal(signal.SIGINT)
        said, errors = script.communicate(timeout=120)
    finally:
        kill(script)
    assert said.splitlines() == ["after interrupted", "again finished"], errors
