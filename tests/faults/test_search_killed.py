"""A search whose driver is killed goes on as if nothing had happened: proposals, pruning, seeds and answer are the
same. A Ctrl-C in a script that calls the function saves and stops, and the script goes on."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
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


TPE = [
    *("--task", MOODY, "--set", "task.sleep_s=0.003", "--space", "lr=log:1e-4..1e-1", "--sampler", "tpe"),
    *("--trials", "12", "--epochs", "4", "--pruner", "asha", "--name", "a"),
]


def reports_in(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (folder / "history").glob("*.jsonl"))


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(FLAGS, id="cmaes-median-seeds", marks=pytest.mark.soak),
        pytest.param(TPE, id="tpe-asha", marks=pytest.mark.slow),
    ],
)
def test_a_killed_search_gives_the_same_answer(flags: list[str], tmp_path: Path) -> None:
    """A sampler that learns, or remembers too, two seeds, pruning; killed twice."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    done = run_command(*flags, *ONE, cwd=whole, module="sweeps.search")
    assert done.returncode == 0, done.stderr
    expected = without_circumstances(result_of(whole / "results/a"))
    assert {trial["state"] for trial in expected["trials"]} == {"complete", "pruned"}
    folder = broken / "results/a"
    for reports in (3, 12):
        with driver(*flags, *ONE, cwd=broken, module="sweeps.search") as process:
            wait_until(lambda reports=reports: reports_in(folder) >= reports, f"{reports} reports", process)
            kill(process)
        flags = ["--resume", "a"]
    done = run_command("--resume", "a", *ONE, cwd=broken, module="sweeps.search")
    assert done.returncode == 0, done.stderr
    assert without_circumstances(result_of(folder)) == expected


@pytest.mark.soak
def test_tpe_and_asha_two_at_a_time(tmp_path: Path) -> None:
    """Which trial ends first is up to the machine, and with it what comes next: nothing is lost or doubled."""
    folder, flags = tmp_path / "results/a", TPE
    for reports in (4, 13):
        with driver(
            *flags, "--trials-at-once", "2", "--cpus-per-trial", "1", cwd=tmp_path, module="sweeps.search"
        ) as it:
            wait_until(lambda reports=reports: reports_in(folder) >= reports, f"{reports} reports", it)
            kill(it)
        flags = ["--resume", "a"]
    done = run_command(
        "--resume", "a", "--trials-at-once", "2", "--cpus-per-trial", "1", cwd=tmp_path, module="sweeps.search"
    )
    assert done.returncode == 0, done.stderr
    trials = result_of(folder)["trials"]
    assert [trial["number"] for trial in trials] == list(range(12))
    assert {trial["state"] for trial in trials} == {"complete", "pruned"}
    assert len({trial["params"]["lr"] for trial in trials}) == 12
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as store:
        runs = "select count(*), count(distinct t.value) from tags t where t.key = 'steadysweep.trial'"
        assert store.execute(runs).fetchone() == (12, 12)
        assert store.execute("select count(*) from runs where status = 'RUNNING'").fetchone() == (0,)
        twice = "select run_uuid, key, step from metrics group by 1, 2, 3 having count(*) > 1"
        assert store.execute(twice).fetchall() == []
    for trial in trials:
        lines = (folder / "history" / f"{trial['number']:05d}.jsonl").read_bytes().count(b"\n")
        assert lines >= trial["epochs"]


SCRIPT = f"""
from sweeps import search

space = {{"lr": {{"log": [1e-3, 1e-1]}}}}
slow = {{"task.mood": "slow", "task.sleep_s": 0.05}}
found = search({MOODY!r}, space=space, trials=2, epochs=2, set=slow, trials_at_once=1, name="a")
print("after", found.status, flush=True)
found = search(resume="a", set={{"stall_s": 500}}, progress="none")
print("again", found.status, flush=True)
"""


@pytest.mark.soak
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
