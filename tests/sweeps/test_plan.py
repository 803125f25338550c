"""--plan: what it says is what the sweep then does; it trains nothing and writes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sweeps import lr_scan, search
from tests.helpers.drivers import environment
from trainable import loop, probe
from trainable.config import TrainConfig
from trainable.tasks.digits import Digits


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    before = sorted(Path.cwd().rglob("*"))
    capsys.readouterr()
    assert search.main([*arguments, "--plan", "--json"]) == 0
    assert sorted(Path.cwd().rglob("*")) == before
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_what_a_search_would_be(launch_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TPE's ten random trials are known beforehand, with two seeds twenty; the other two follow from results."""
    flags = ("--space", "lr=log:1e-4..1e-1", "--space", "task.width=choice:16,32", "--trials", "11", "--seeds", "2")
    plan = planned(capsys, *flags, "--epochs", "3", "--cpus-per-trial", "1", "--trials-at-once", "1")
    assert (plan["num_trials"], len(plan["trials"]), plan["trials_at_once"]) == (22, 20, 1)
    assert [trial["seed"] for trial in plan["trials"]] == [0, 1] * 10
    assert plan["refused"] is None
    assert all(finding["passed"] is not False for finding in plan["findings"])
    width = plan["trials"][0]["task.width"]
    assert plan["num_params"] == 65 * width + (width + 1) * width + (width + 1) * 10
    assert plan["step_s"] * 40 * 3 < 2 * plan["trial_s"] + 1  # 1,257 samples in steps of 32 are 40 an epoch
    assert 0 < plan["trial_s"] < plan["sweep_s"]
    # AdamW holds two more of each weight, in 4 bytes; three checkpoints of a trial stay.
    assert plan["disk_bytes"] >= 22 * 3 * 3 * 4 * 65 * 16


def test_what_a_scan_would_be(launch_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lr_scan.main(["--lrs", "1e-3..1e-1:3", "--plan"]) == 0
    said = capsys.readouterr().out
    for words in ("3 trials", "lr=0.001", "lr=0.01", "lr=0.1", "checks", "a step", "disk", "nothing was trained"):
        assert words in said
    assert list(launch_folder.iterdir()) == []


def test_a_task_that_cannot_be_trained_is_said_so(launch_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.py").write_text(
        "from dataclasses import dataclass\nfrom trainable.tasks.digits import Digits\n\n\n"
        "@dataclass(frozen=True)\nclass Broken(Digits):\n"
        "    def splits(self, seed):\n        raise OSError('no disk')\n"
    )
    plan = planned(capsys, "--task", "broken.py:Broken", "--trials", "2")
    assert "no disk" in plan["refused"]
    assert plan["trial_s"] is None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--lrs", "auto"), "--lrs auto finds its range by training"),
        (("--resume", "x"), "--plan is about a new sweep"),
        (("--progress", "fancy"), "--progress fancy must be one of auto, rich"),
    ],
)
def test_what_cannot_be_planned(
    flags: tuple[str, ...], words: str, launch_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        lr_scan.main([*flags, "--plan"])
    assert left.value.code == 2
    assert words in capsys.readouterr().err


def test_the_driver_needs_neither_torch_nor_ray_nor_mlflow(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom sweeps import search\nsearch.main(['--trials', '2', '--plan'])\n"
        "assert not {'torch', 'ray', 'mlflow'} & set(sys.modules), sorted(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_probe_counts_as_the_loop_does() -> None:
    """Steps, evaluations, parameters and bytes are those of the run it would be."""
    task = Digits(width=8)
    config = TrainConfig(threads=1, epochs=3, batch_size=100, report_steps=5, eval_every=2)
    found = probe.probe(task, config, task.splits(0))
    run = loop.start(task, config, task.splits(0))
    reports = []
    while not (reports and reports[-1].done):
        reports.append(loop.advance(run))
    run.close()
    assert found["steps"] == reports[-1].step == 39
    assert found["evaluations"] == sum("val_loss" in report.metrics for report in reports)
    assert found["num_params"] == reports[-1].num_params == sum(p.numel() for p in task.model().parameters())
    weights = found["num_params"] * 4
    assert 3 * 3 * weights < found["checkpoint_bytes"] < 3 * (3 * weights + 60_000)
    assert torch.get_num_threads() == 1
