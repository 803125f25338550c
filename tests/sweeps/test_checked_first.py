"""The checks before the first trial: what no trial could be trained with is one message, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeps import lr_scan

Scan = Callable[..., tuple[int, Any]]

TASKS = """
from dataclasses import dataclass

import torch
from torch.nn import functional
from trainable.tasks.digits import Digits


@dataclass(frozen=True)
class Mean(Digits):
    def loss(self, outputs, batch):
        return functional.cross_entropy(outputs, batch[1])


@dataclass(frozen=True)
class NoData(Digits):
    def splits(self, seed):
        raise ValueError("the folder is empty")


@dataclass(frozen=True)
class WrongShape(Digits):
    def predict(self, model, batch):
        return model(batch[0][:, :5])


@dataclass(frozen=True)
class OneIsNan(Digits):
    def splits(self, seed):
        splits = super().splits(seed)
        splits.train[0][700, 5] = float("nan")
        return splits


@dataclass(frozen=True)
class Unused(Digits):
    def model(self):
        model = super().model()
        model.extra = torch.nn.Parameter(torch.zeros(3))
        model.forward = torch.nn.Sequential(*model).forward
        return model
"""


@pytest.fixture
def tasks(launch_folder: Path) -> Path:
    (launch_folder / "tasks.py").write_text(TASKS)
    return launch_folder / "tasks.py"


def runs_in(store: Path) -> list[tuple[str, str]]:
    with contextlib.closing(sqlite3.connect(store)) as database:
        return database.execute("select name, lifecycle_stage from runs").fetchall()


@pytest.mark.parametrize(
    ("task", "more", "words"),
    [
        ("Mean", (), ["loss() returns a mean", "reduction='sum'"]),
        pytest.param("NoData", (), ["the folder is empty", "tasks.py:"], marks=pytest.mark.soak),
        pytest.param("WrongShape", (), ["mat1 and mat2 shapes cannot be multiplied"], marks=pytest.mark.slow),
        pytest.param(
            "Unused",
            ("--set", "batch_size=5000"),
            ["1258 training samples, fewer than batch_size=5000", "batch_size=314"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_refused(
    task: str, more: tuple[str, ...], words: list[str], scan: Scan, tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--task", f"{tasks}:{task}", "--name", "tried", *more)
    with pytest.raises(SystemExit) as left:
        lr_scan.main(arguments)
    assert left.value.code == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "cannot be trained" in errors[0]
    for word in words:
        assert word in errors[0]
    # Nothing is left: the name is free, and MLflow shows no run.
    assert not Path("results/tried").exists()
    if Path("mlflow.db").exists():
        assert {stage for _, stage in runs_in(Path("mlflow.db"))} <= {"deleted"}
    code, result = scan("--name", "tried", "--lrs", "1e-2")
    assert (code, result["status"]) == (0, "finished")


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("OneIsNan", "1 samples of train hold NaN or infinity in part 0"),
        ("Unused", "1 of 7 parameters get no gradient"),
    ],
)
def test_doubted(task: str, words: str, scan: Scan, tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a sweep may be right with in spite of it is said with the answer."""
    lr_scan.main(("--task", f"{tasks}:{task}", "--name", "tried", "--lrs", "1e-3"))
    assert words in " ".join(capsys.readouterr().out.split())
    asked = json.loads(Path("results/tried/checks.json").read_text())
    assert [item["passed"] for item in asked].count(False) == 1


@pytest.mark.slow
def test_asked_once(scan: Scan) -> None:
    """By one trial, before it trains; not again by those that follow, nor on a resume."""
    scan("--name", "tried", "--lrs", "1e-3", "1e-2")
    checks = Path("results/tried/checks.json")
    assert all(item["passed"] for item in json.loads(checks.read_text()))
    checks.write_text("[]")
    scan("--resume", "tried", "--lrs", "1e-3", "1e-2", "3e-2")
    assert checks.read_text() == "[]"
