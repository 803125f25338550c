"""--workers-per-trial: a trial that two processes train, which are killed, stopped and taken up again by one."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from sweeps.record.history import History
from tests.faults.helper import ledger_of
from tests.helpers.drivers import ROOT, driver, result_of, run_command, wait_until

TASK = ("--task", f"{ROOT / 'tests/helpers/moody.py'}:Moody", "--lrs", "1e-3", "--epochs", "6")
TASK = (*TASK, "--set", "threads=1", "--set", "batch_size=100")
PLACE = ("--cpus-per-trial", "1", "--progress", "plain")
TWO = ("--workers-per-trial", "2", "--cpus-per-trial", "2", "--progress", "plain")


@pytest.mark.slow
def test_a_worker_is_killed_the_sweep_stopped_and_gone_on_with_by_one(tmp_path: Path) -> None:
    """The lost worker is a lost attempt and nobody's fault; one worker goes on from what two have saved; and all of it
    is what one would have come to, but for the last bits."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    done = run_command("--name", "s", *TASK, *PLACE, cwd=one)
    assert done.returncode == 0, done.stderr

    folder = two / "results/s"
    log = folder / "logs/00000.txt"
    with driver("--name", "s", *TASK, "--set", "task.sleep_s=0.1", *TWO, cwd=two) as process:
        wait_until(lambda: len(History(folder / "history").reports(0)) >= 2, "two reports are there", process)
        (worker,) = re.findall(r"worker 1 on .*, process (\d+)", log.read_text())
        os.kill(int(worker), signal.SIGKILL)
        wait_until(lambda: log.read_text().count("worker 1 on") == 2, "it is tried again", process)
        wait_until(lambda: len(History(folder / "history").reports(0)) >= 3, "and goes on", process)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130, (two / "driver.log").read_text()
    (record,) = ledger_of(folder)
    assert [failure["kind"] for failure in record.failures] == ["infrastructure"]
    assert record.state == "running"
    done = run_command("--resume", "s", *PLACE, cwd=two)
    assert done.returncode == 0, done.stderr

    ours, theirs = (History(place / "results/s/history").reports(0) for place in (two, one))
    assert [report["step"] for report in ours] == [report["step"] for report in theirs]
    for report, other in zip(ours, theirs, strict=True):
        assert report["metrics"] == pytest.approx(other["metrics"], rel=1e-5, abs=1e-6)
        for name, curve in report["curves"].items():
            assert curve == pytest.approx(other["curves"][name], rel=1e-4, abs=1e-6), name
    assert result_of(folder)["trials"][0]["state"] == "complete"
    assert json.loads((folder / "result.json").read_text())["trials"][0]["attempts"] == 3


def test_more_workers_than_could_ever_be_placed(tmp_path: Path) -> None:
    for asked, words in (
        (("--workers-per-trial", "999"), "error: --workers-per-trial 999: this machine has room for"),
        (("--workers-per-trial", "0"), "error: --workers-per-trial 0 must be at least 1"),
        (("--workers-per-trial", "2", "--gpus-per-trial", "3"), "3 does not divide among --workers-per-trial 2"),
        (("--workers-per-trial", "two"), "--workers-per-trial"),
    ):
        done = run_command(*TASK, *asked, cwd=tmp_path)
        assert done.returncode == 2
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_model_whose_statistics_would_be_of_parts(tmp_path: Path) -> None:
    """BatchNorm is refused before the first trial, and nothing is left of the sweep."""
    (tmp_path / "normed.py").write_text(
        "from dataclasses import dataclass\n\nimport torch\nfrom trainable.tasks.digits import Digits\n\n\n"
        "@dataclass(frozen=True)\nclass Normed(Digits):\n    def model(self):\n"
        "        return torch.nn.Sequential(torch.nn.BatchNorm1d(64), *super().model())\n"
    )
    done = run_command("--task", "normed.py:Normed", "--lrs", "1e-3", *TWO, "--name", "s", cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert "the model has BatchNorm, and each of 2 workers would take its statistics from its own part" in done.stderr
    assert "use --workers-per-trial 1" in done.stderr
    assert not (tmp_path / "results/s").exists()
