"""Faults that sweeps over Ray are known to have, each under its number: B13, B33, B55, B56."""

from __future__ import annotations

import contextlib
import io
import math
import os
import pickle
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from rich.console import Console

from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.record.trial import TrialRecord
from sweeps.running.conduct import Judgement, conduct
from sweeps.running.placement import Wish
from sweeps.sweep import Sweep
from tests.helpers.drivers import result_of, run_command
from trainable.config import TrainConfig

Scan = Callable[..., tuple[int, Any]]

TURNS = '''
from dataclasses import dataclass

from trainable.tasks.digits import Digits

STEPS = {}


@dataclass(frozen=True)
class Turns(Digits):
    """Its training loss becomes `into` from the second epoch on, which has ten steps."""

    into: str = "1"

    def augment(self, batch, generator):
        if len(batch[0]) > 8:  # as few are the checks'
            STEPS[id(self)] = STEPS.get(id(self), 0) + 1
        return batch

    def loss(self, outputs, batch):
        turned = outputs.requires_grad and STEPS.get(id(self), 0) > 10
        return super().loss(outputs, batch) * (float(self.into) if turned else 1)
'''


def best_loss(trials: Any, history: History) -> Judgement:
    complete = [trial for trial in trials if trial.state == "complete"]
    return Judgement(trials, sorted(complete, key=lambda trial: trial.metrics["val_loss"]), "")


def run_sweep(sweep: Sweep) -> list[TrialRecord]:
    """To its end, in ./results, one trial at a time."""
    here = Path.cwd()
    outcome = conduct(
        Folder(here / "results" / sweep.name),
        sweep,
        tracking_uri=f"sqlite:///{here / 'mlflow.db'}",
        wish=Wish(trials_at_once=1, cpus_per_trial=1),
        address=None,
        judge=best_loss,
        console=Console(file=io.StringIO()),
        began=time.time(),
    )
    assert outcome.result.best is not None
    assert math.isfinite(outcome.result.best.metrics["val_loss"])
    ledger = Ledger(outcome.folder.ledger)
    try:
        return ledger.trials()
    finally:
        ledger.close()


@pytest.mark.parametrize(
    ("pruner", "into", "position"),
    [
        ("asha", "nan", 1),
        pytest.param("median", "inf", 0, marks=pytest.mark.slow),
        pytest.param("none", "nan", 0, marks=pytest.mark.soak),
    ],
)
def test_b13_a_loss_that_is_not_finite(
    pruner: str, into: str, position: int, local_ray: None, launch_folder: Path
) -> None:
    """The trial ends with the report in which it happens, is told to Optuna, and is never the best."""
    Path("turns.py").write_text(TURNS)
    points = tuple({"lr": 1e-3 * (1 + number), "task.into": into if number == position else "1"} for number in range(3))
    config = TrainConfig(threads=1, epochs=4, batch_size=128)
    task = f"{launch_folder / 'turns.py'}:Turns"
    trials = run_sweep(Sweep(name="b13", question="t", task=task, train=config, points=points, pruner=pruner))
    assert trials[position].state == "diverged"
    assert (trials[position].reports, trials[position].epochs) == (2, 2.0)
    assert [trial.state in ("complete", "pruned") for trial in trials].count(True) == 2
    with contextlib.closing(sqlite3.connect("results/b13/ledger.db")) as ledger:
        states = {state for (state,) in ledger.execute("select state from trials").fetchall()}
    assert states <= {"COMPLETE", "PRUNED", "FAIL"}


def threads_of(result: dict[str, Any]) -> str:
    (trial,) = result["trials"]
    return str(MlflowClient(result["tracking_uri"]).get_run(trial["mlflow_run_id"]).data.tags["steadysweep.threads"])


def test_b33_threads_are_the_cpus_asked_for(scan: Scan) -> None:
    """Ray would set one; a trial that is alone gets all CPUs of the machine."""
    code, result = scan("--name", "alone", "--lrs", "1e-3")
    assert (code, threads_of(result)) == (0, str(len(os.sched_getaffinity(0))))


@pytest.mark.slow
def test_b33_the_users_own_number_and_one_cpu(
    scan: Scan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, result = scan("--name", "one", "--lrs", "1e-3", "--cpus-per-trial", "1")
    assert threads_of(result) == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    _, result = scan("--name", "three", "--lrs", "1e-3")
    assert threads_of(result) == "3"


@pytest.mark.slow
def test_b55_from_any_directory_on_a_cluster_started_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a task in a file beside the user, named by a relative path; and by the command's own file."""
    from ray.cluster_utils import Cluster

    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    (here / "my_task.py").write_text(TURNS)
    reference = run_command("--name", "b55", "--lrs", "1e-3", "--cpus-per-trial", "1", cwd=here)
    assert reference.returncode == 0, reference.stderr
    monkeypatch.chdir(elsewhere)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        arguments = ("--name", "there", "--lrs", "1e-3", "--cpus-per-trial", "1", "--address", cluster.address)
        done = run_command(*arguments, "--task", "my_task.py:Turns", cwd=here)
        assert done.returncode == 0, done.stderr
    finally:
        cluster.shutdown()
    weights = [result_of(here / "results" / name)["trials"][0]["weights_sha256"] for name in ("b55", "there")]
    assert weights[0] == weights[1]


def test_b56_what_is_too_large_to_travel(local_ray: None, launch_folder: Path) -> None:
    """Data in a setting are refused by name; data in the task's module stay where they are."""
    Path("large.py").write_text(
        f"NUMBERS = bytes(50_000_000)\n{TURNS.replace('into: str', 'note: str = str(); into: str')}"
    )
    task = f"{launch_folder / 'large.py'}:Turns"
    config = TrainConfig(threads=1, batch_size=128)
    sweep = Sweep(
        name="b56", question="t", task=task, train=config, points=({"lr": 1e-3},), task_settings={"note": "x" * 300_000}
    )
    with pytest.raises(ValueError, match=r"task.note is 0.3 MB long.*give the path of a file"):
        run_sweep(sweep)
    assert not Path("results").exists()
    run_sweep(Sweep(name="b56", question="t", task=task, train=config, points=({"lr": 1e-3}, {"lr": 3e-3})))
    files = [path for path in Path("results").rglob("*") if path.is_file()]
    assert max(path.stat().st_size for path in files) < 2_000_000
    assert len(pickle.dumps(sweep.points)) < 1000
