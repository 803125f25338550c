"""The learning-rate scan from end to end: its answer, its files, its runs in MLflow, its exit codes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow.tracking import MlflowClient
from torch.nn import functional

from sweeps import lr_scan
from tests.helpers.drivers import ROOT, result_of, run_command
from trainable.seeding import permutation
from trainable.tasks.digits import Digits

Scan = Callable[..., tuple[int, dict[str, Any]]]
MOODY = f"{ROOT / 'tests/helpers/moody.py'}:Moody"


def test_the_flags_are_few() -> None:
    actions = [action for action in lr_scan.parser()._actions if action.dest != "help"]
    assert [action.option_strings for action in actions] == [
        [flag]
        for flag in [
            "--lrs",
            "--extend-edges",
            "--seeds",
            "--task",
            "--epochs",
            "--seed",
            "--set",
            "--plan",
            "--max-time",
            "--max-gpu-hours",
            "--max-trial-time",
            "--name",
            "--results",
            "--resume",
            "--allow-drift",
            "--retries",
            "--retry-failed",
            "--storage",
            "--ledger",
            "--tracking-uri",
            "--config",
            "--trials-at-once",
            "--cpus-per-trial",
            "--gpus-per-trial",
            "--workers-per-trial",
            "--accelerator",
            "--wait",
            "--address",
            "--progress",
            "--json",
        ]
    ]


def losses_by_hand(lr: float) -> list[float]:
    """One epoch of the default task, written out: the loss of every step."""
    task = Digits()
    images, labels = task.splits(0).train
    torch.manual_seed(0)
    model = task.model()
    biases = [parameter for name, parameter in model.named_parameters() if name.endswith("bias")]
    weights = [parameter for name, parameter in model.named_parameters() if name.endswith("weight")]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, fused=True)
    losses = []
    for rows in permutation(len(labels), 0, 0).split(32):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images[rows]), labels[rows])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_answer_of_the_default_scan(scan: Scan, launch_folder: Path) -> None:
    code, result = scan("--name", "first")
    assert code == 0
    assert result == result_of(launch_folder / "results/first")
    assert set(result) == {
        "name", "status", "task", "best", "verdict", "ended_by", "tracking_uri", "mlflow_run_id", "trials",
        "configurations",
    }  # fmt: skip
    assert (result["name"], result["status"], result["task"]) == ("first", "finished", "digits")
    assert [trial["params"] for trial in result["trials"]] == [{"lr": 3e-3}, {"lr": 1e-3}, {"lr": 3e-4}]
    assert [trial["state"] for trial in result["trials"]] == ["complete"] * 3
    assert [(trial["number"], trial["epochs"], trial["attempts"]) for trial in result["trials"]] == [
        (0, 1.0, 1),
        (1, 1.0, 1),
        (2, 1.0, 1),
    ]
    for trial in result["trials"]:
        # 40 steps: the first 2 and the last 8, whose middles (0.5 and 35.5) are 35 steps apart
        losses = losses_by_hand(trial["params"]["lr"])
        speed = (sum(losses[:2]) / 2 - sum(losses[32:]) / 8) / 35
        assert trial["metrics"]["descent_speed"] == pytest.approx(speed, rel=1e-4)
    assert result["best"]["number"] == 0
    assert result["best"]["metrics"] == result["trials"][0]["metrics"]
    assert "lr=0.003 makes the loss fall fastest" in result["verdict"]
    assert "largest value tried: try 0.01 next" in result["verdict"]
    assert (launch_folder / "results/first/loss_curves.png").read_bytes().startswith(b"\x89PNG")

    # The same again, in other actors' hands and one at a time: the same to the bit.
    _, again = scan("--name", "second", "--trials-at-once", "1", "--cpus-per-trial", "1")
    assert [trial["weights_sha256"] for trial in again["trials"]] == [t["weights_sha256"] for t in result["trials"]]
    assert len({trial["weights_sha256"] for trial in result["trials"]}) == 3


def test_mlflow_holds_everything(scan: Scan, launch_folder: Path) -> None:
    _, result = scan("--name", "tracked", "--lrs", "1e-3", "3e-4", "--epochs", "2", "--set", "batch_size=64")
    assert result["tracking_uri"] == f"sqlite:///{launch_folder / 'mlflow.db'}"
    client = MlflowClient(result["tracking_uri"])
    parent = client.get_run(result["mlflow_run_id"])
    assert (parent.info.status, parent.info.run_name) == ("FINISHED", "tracked")
    assert {"loss_curves.png", "report.html", "result.json", "sweep.json"} <= {
        file.path for file in client.list_artifacts(parent.info.run_id)
    }
    for trial in result["trials"]:
        run = client.get_run(trial["mlflow_run_id"])
        assert run.info.status == "FINISHED"
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert float(run.data.params["lr"]) == trial["params"]["lr"]
        assert run.data.params["batch_size"] == "64"
        assert run.data.params["task.width"] == "64"
        assert run.data.tags["steadysweep.device"] == "cpu" or torch.cuda.is_available()
        assert run.data.tags["steadysweep.device_reason"]
        assert run.data.tags["steadysweep.version.torch"] == torch.__version__.partition("+")[0]
        assert run.data.tags["steadysweep.weights_sha256"] == trial["weights_sha256"]
        steps = list(range(1, 2 * 20 + 1))  # 1258 samples in batches of 64: 20 steps an epoch
        for name in ("loss", "lr", "grad_norm", "grad_norm_clipped"):
            history = client.get_metric_history(run.info.run_id, name)
            assert sorted(point.step for point in history) == steps
        norms = {name: client.get_metric_history(run.info.run_id, name) for name in ("grad_norm", "grad_norm_clipped")}
        before, after = ({point.step: point.value for point in norms[name]} for name in norms)
        assert all(math.isclose(after[step], min(before[step], 1.0), rel_tol=1e-4) for step in steps)
        assert [point.value for point in client.get_metric_history(run.info.run_id, "epoch")] == [1, 2]
        assert run.data.metrics["val_loss"] == pytest.approx(trial["metrics"]["val_loss"])


def test_a_trial_that_raises_fails_alone(scan: Scan) -> None:
    """Exit code 1 says '1 of 3 failed'; the traceback stands in that trial's run."""
    code, result = scan(
        "--name", "raising", "--task", MOODY, "--epochs", "4", "--set", "task.mood=raises", "--lrs", "1e-3",
        "--retries", "0",
    )  # fmt: skip
    assert code == 1
    assert result["status"] == "failed"  # all of them did
    assert result["best"] is None
    assert [trial["state"] for trial in result["trials"]] == ["failed"]
    assert "1 of 1 failed" in result["verdict"]
    client = MlflowClient(result["tracking_uri"])
    run = client.get_run(result["trials"][0]["mlflow_run_id"])
    assert run.info.status == "FAILED"
    assert "the mood was bad" in run.data.tags["steadysweep.reason"]
    text = Path(client.download_artifacts(run.info.run_id, "failure.txt")).read_text()
    assert "moody.py" in text
    assert "RuntimeError" in text


def test_diverged_trials_rank_last_and_are_named(scan: Scan) -> None:
    code, result = scan("--name", "wild", "--lrs", "1e38", "1e-3", "--set", "optimizer=sgd", "--set", "clip_norm=null")
    assert code == 0
    wild, tame = result["trials"]
    assert (wild["state"], tame["state"]) == ("diverged", "complete")
    assert result["best"]["number"] == 1
    assert "lr=1e+38 diverged" in result["verdict"]
    client = MlflowClient(result["tracking_uri"])
    run = client.get_run(wild["mlflow_run_id"])
    assert run.info.status == "KILLED"
    assert run.data.tags["diverged"] == "true"
    points = client.get_metric_history(run.info.run_id, "loss")
    assert all(math.isfinite(point.value) and abs(point.value) < 1e300 for point in points)


def test_no_answer_is_exit_code_one(scan: Scan) -> None:
    code, result = scan("--name", "hopeless", "--task", MOODY, "--set", "task.mood=nan", "--lrs", "1e-3", "3e-4")
    assert code == 1
    assert [trial["state"] for trial in result["trials"]] == ["diverged"] * 2
    assert result["best"] is None
    assert "No learning rate has an answer" in result["verdict"]


@pytest.mark.slow
def test_more_learning_rates_on_a_finished_sweep(scan: Scan) -> None:
    """What is missing is trained, and nothing else; B20 for learning rates."""
    _, first = scan("--name", "grown", "--lrs", "3e-3", "1e-3")
    code, second = scan("--resume", "grown", "--lrs", "3e-3", "1e-3", "1e-4")
    assert code == 0
    assert second["trials"][:2] == first["trials"]
    assert (second["trials"][2]["params"], second["trials"][2]["state"]) == ({"lr": 1e-4}, "complete")
    assert second["mlflow_run_id"] == first["mlflow_run_id"]
    _, third = scan("--resume", "grown")  # nothing is left to do
    assert third["trials"] == second["trials"]


def test_flags_from_a_file(scan: Scan, launch_folder: Path) -> None:
    Path("scan.yaml").write_text("lrs: [3e-3, 1e-3]\nname: filed\nset:\n  batch_size: 128\n  task.width: 16\n")
    _, result = scan("--config", "scan.yaml", "--lrs", "1e-2")
    assert result["name"] == "filed"
    assert [trial["params"] for trial in result["trials"]] == [{"lr": 1e-2}]
    run = MlflowClient(result["tracking_uri"]).get_run(result["trials"][0]["mlflow_run_id"])
    assert (run.data.params["batch_size"], run.data.params["task.width"]) == ("128", "16")


def test_a_lost_worker_is_no_failure(scan: Scan, launch_folder: Path) -> None:
    """A worker that is killed costs an attempt; the trial goes on from its checkpoint, with the same weights."""
    arguments = ("--task", MOODY, "--lrs", "1e-3", "--epochs", "2")
    code, result = scan(
        "--name",
        "lost",
        *arguments,
        "--set",
        f"task.step_log={launch_folder / 'steps.log'}",
        "--set",
        "task.mood=killed",
    )
    assert code == 0
    (trial,) = result["trials"]
    assert (trial["state"], trial["attempts"]) == ("complete", 2)
    _, calm = scan("--name", "calm", *arguments)
    assert trial["weights_sha256"] == calm["trials"][0]["weights_sha256"]


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    """As a user runs it: the answer on stdout, progress on stderr, and only JSON on stdout with --json."""
    plain = run_command("--name", "plain", "--lrs", "1e-3", cwd=tmp_path)
    assert plain.returncode == 0, plain.stderr
    for text in (
        "lr=0.001",
        "complete",
        "mlflow ui --backend-store-uri",
        "--resume plain",
        "report.html",
        "optuna-dashboard",
        "next     python -m sweeps.lr_scan --resume plain",
    ):
        assert text in plain.stdout
    assert "epoch 1/1" in plain.stderr
    spoken = run_command("--name", "spoken", "--lrs", "1e-3", "--json", cwd=tmp_path)
    assert (
        json.loads(spoken.stdout)["trials"][0]["weights_sha256"]
        == result_of(tmp_path / "results/plain")["trials"][0]["weights_sha256"]
    )
    assert "Traceback" not in plain.stderr + spoken.stderr
