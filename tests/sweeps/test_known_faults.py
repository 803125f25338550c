"""Faults that products of this kind had, through the whole of a sweep: real Ray, SQLite and MLflow."""

from __future__ import annotations

import io
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow.tracking import MlflowClient
from rich.console import Console
from torch.nn import functional

from sweeps import lr_scan
from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.record.trial import TrialRecord
from sweeps.running.conduct import Judgement, Outcome, conduct
from sweeps.running.placement import Wish
from sweeps.sweep import Sweep
from tests.helpers.drivers import ROOT, driver, kill, result_of, run_command, wait_until
from trainable.config import TrainConfig
from trainable.seeding import permutation
from trainable.tasks.digits import Digits

Scan = Callable[..., tuple[int, dict[str, Any]]]
MOODY = f"{ROOT / 'tests/helpers/moody.py'}:Moody"
GRID = (3e-3, 1e-3, 3e-4)
STEPS_PER_EPOCH = 40  # 1258 training samples in batches of 32


def trial_runs(uri: str, sweep: str, query: str = "") -> list[Any]:
    """The child runs of a sweep in MLflow, in the order of their trials."""
    client = MlflowClient(uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    query = " and ".join(
        filter(None, [f"tags.`steadysweep.sweep` = '{sweep}' and tags.`steadysweep.role` = 'trial'", query])
    )
    return sorted(client.search_runs(experiments, query), key=lambda run: int(run.data.tags["steadysweep.trial"]))


# B06: a search over a grid that does not cover it


def test_b06_every_seed_has_every_point_once(tmp_path: Path) -> None:
    """With 27 of 40 seeds a sampler over three choices missed one of them."""
    for seed in range(6):
        sweep = Sweep(
            name="grid",
            question="lr_scan",
            task="digits",
            train=TrainConfig(threads=1, seed=seed),
            points=tuple({"lr": lr} for lr in GRID),
        )
        ledger = Ledger.create(tmp_path / f"{seed}.db", sweep, {})
        assert [ledger.begin(record.number).params for record in ledger.trials()] == [{"lr": lr} for lr in GRID]
        ledger.close()


@pytest.mark.parametrize(
    ("seed", "at_once"),
    [
        (0, 1),
        pytest.param(1, 3, marks=pytest.mark.slow),
        *(pytest.param(*case, marks=pytest.mark.soak) for case in [(38, 3), (39, 1)]),
    ],
)
def test_b06_mlflow_has_every_point_once(scan: Scan, seed: int, at_once: int) -> None:
    """Parallel asking gave some points twice and others never."""
    lrs = [str(lr) for lr in GRID]
    code, result = scan(
        "--name", "grid", "--lrs", *lrs, "--seed", str(seed), "--trials-at-once", str(at_once),
        "--cpus-per-trial", "0.5", "--set", "task.width=8", "--set", "batch_size=256",
    )  # fmt: skip
    assert code == 0
    runs = trial_runs(result["tracking_uri"], "grid")
    assert [float(run.data.params["lr"]) for run in runs] == list(GRID)
    assert [run.data.params["seed"] for run in runs] == [str(seed)] * 3
    assert [trial["params"] for trial in result["trials"]] == [{"lr": lr} for lr in GRID]


# B07: pruned and failed trials that look finished


def by_val_loss(trials: Sequence[TrialRecord], history: History) -> Judgement:
    complete = [trial for trial in trials if trial.state == "complete"]
    return Judgement(trials, sorted(complete, key=lambda trial: trial.metrics["val_loss"]), "by val_loss")


def moody_sweep(folder: Path, at_once: int) -> tuple[Outcome, dict[str, Any]]:
    """Good, bad (to be pruned) and raising, of six epochs each; raising in the epoch that is counted 2 from 0."""
    sweep = Sweep(
        name=folder.name,
        question="moods",
        task=MOODY,
        train=TrainConfig(threads=1, epochs=6, batch_size=256, eval_batch_size=512),  # one batch: epochs count
        points=({"task.mood": "good"}, {"task.mood": "bad"}, {"task.mood": "raises"}),
        pruner="median",
    )
    outcome = conduct(
        Folder(folder),
        sweep,
        tracking_uri=f"sqlite:///{folder.parent.parent / 'mlflow.db'}",
        wish=Wish(trials_at_once=at_once, cpus_per_trial=0.5),
        address=None,
        judge=by_val_loss,
        console=Console(file=io.StringIO()),
        began=time.time(),
    )
    return outcome, result_of(folder)


def test_b07_one_at_a_time(local_ray: None, launch_folder: Path) -> None:
    """Good, then pruned, then raising: each status is its own; a filter on FINISHED finds the one of full length."""
    outcome, result = moody_sweep(launch_folder / "results/moods", at_once=1)
    assert outcome.exit_code == 1  # one of three failed
    assert result["status"] == "finished"
    assert [trial["state"] for trial in result["trials"]] == ["complete", "pruned", "failed"]
    assert [trial["epochs"] for trial in result["trials"]] == [6, 1, 2]
    assert result["best"]["number"] == 0

    uri = result["tracking_uri"]
    runs = trial_runs(uri, "moods")
    assert [run.info.status for run in runs] == ["FINISHED", "KILLED", "FAILED"]
    assert [run.data.tags.get("pruned") for run in runs] == [None, "true", None]
    assert [run.data.params["task.mood"] for run in runs] == ["good", "bad", "raises"]
    assert runs[1].data.tags["steadysweep.reason"] == "pruned after epoch 1"
    client = MlflowClient(uri)
    for name, num_points in (("epoch", [6, 1, 2]), ("val_loss", [6, 1, 2]), ("loss", [30, 5, 10])):  # 5 steps an epoch
        assert [len(client.get_metric_history(run.info.run_id, name)) for run in runs] == num_points
    finished = trial_runs(uri, "moods", "attributes.status = 'FINISHED'")
    assert [run.info.run_id for run in finished] == [result["trials"][0]["mlflow_run_id"]]
    assert finished[0].data.metrics["val_loss"] == pytest.approx(result["best"]["metrics"]["val_loss"])


@pytest.mark.slow
def test_b07_three_at_a_time(local_ray: None, launch_folder: Path) -> None:
    """Whether the bad one is caught in time depends on who is faster; what is said of it must fit what it did."""
    outcome, result = moody_sweep(launch_folder / "results/together", at_once=3)
    assert outcome.exit_code == 1
    good, bad, raising = result["trials"]
    assert (good["state"], good["epochs"]) == ("complete", 6)
    assert (bad["state"], bad["epochs"] < 6) in (("pruned", True), ("complete", False))
    assert (raising["state"], raising["epochs"]) == ("failed", 2)
    assert result["best"]["number"] == 0
    client = MlflowClient(result["tracking_uri"])
    expected = {"complete": ("FINISHED", None), "pruned": ("KILLED", "true"), "failed": ("FAILED", None)}
    for run, trial in zip(trial_runs(result["tracking_uri"], "together"), result["trials"], strict=True):
        assert run.info.run_id == trial["mlflow_run_id"]
        assert (run.info.status, run.data.tags.get("pruned")) == expected[trial["state"]]
        assert len(client.get_metric_history(run.info.run_id, "epoch")) == trial["epochs"]


# B11: work that was done is done again


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.fixture
def moody_driver(tmp_path: Path) -> Callable[..., None]:
    """Runs a scan of slowed-down trials, one at a time, and kills the driver's group once `enough` holds."""

    def run_and_kill(enough: Callable[[], bool], *arguments: str) -> None:
        common = ("--name", "kept", "--task", MOODY, "--set", "task.step_log=steps.log", "--trials-at-once", "1")
        with driver(*common, *arguments, cwd=tmp_path) as process:
            wait_until(enough, "the sweep had got far enough to be killed", process)
            kill(process)

    return run_and_kill


@pytest.mark.soak  # so does every test of the fault suite, by counting steps
def test_b11_a_complete_trial_is_not_run_again(tmp_path: Path, moody_driver: Callable[..., None]) -> None:
    """Killed when trial 0 had just become complete: its 160 steps are taken once, and of trial 1 at most an epoch's
    are taken again. The state on the disk elsewhere was ten seconds old, and trial 0 began anew."""
    folder, epochs = Folder(tmp_path / "results/kept"), 4

    def trial_0_is_complete() -> bool:
        if lines(folder.history / "00000.jsonl") < epochs:
            return False
        ledger = Ledger(folder.ledger)
        try:
            return ledger.trial(0).state == "complete"
        finally:
            ledger.close()

    moody_driver(trial_0_is_complete, "--lrs", "3e-3", "1e-3", "--epochs", str(epochs), "--set", "task.sleep_s=0.01")
    done = run_command("--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = result_of(folder.path)
    assert [(trial["state"], trial["epochs"]) for trial in result["trials"]] == [("complete", epochs)] * 2
    assert result["trials"][0]["attempts"] == 1
    steps = lines(tmp_path / "steps.log")
    assert 2 * epochs * STEPS_PER_EPOCH <= steps <= (2 * epochs + 1) * STEPS_PER_EPOCH
    assert len(trial_runs(result["tracking_uri"], "kept")) == 2


@pytest.mark.soak
def test_b11_a_long_trial_goes_on_where_it_was(tmp_path: Path, moody_driver: Callable[..., None]) -> None:
    """25 epochs, killed at 17: at most one epoch is trained again, though the older checkpoints are gone."""
    folder = Folder(tmp_path / "results/kept")
    moody_driver(
        lambda: lines(folder.history / "00000.jsonl") >= 17,
        "--lrs", "1e-3", "--epochs", "25", "--set", "task.sleep_s=0.002",
    )  # fmt: skip
    done = run_command("--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (trial,) = result_of(folder.path)["trials"]
    assert (trial["state"], trial["epochs"], trial["attempts"]) == ("complete", 25, 2)
    assert 25 * STEPS_PER_EPOCH <= lines(tmp_path / "steps.log") <= 26 * STEPS_PER_EPOCH
    (run,) = trial_runs(result_of(folder.path)["tracking_uri"], "kept")
    points = MlflowClient(result_of(folder.path)["tracking_uri"]).get_metric_history(run.info.run_id, "val_loss")
    assert Counter(point.step for point in points) == {STEPS_PER_EPOCH * epoch: 1 for epoch in range(1, 26)}


# B12: a validation loss that depends on the batch size


def evaluated_by_hand(lr: float) -> tuple[torch.Tensor, float]:
    """One epoch of the default task in batches of 256, written out: the loss of each val sample, and the accuracy."""
    task = Digits()
    splits = task.splits(0)
    images, labels = splits.train
    torch.manual_seed(0)
    model = task.model()
    parameters = dict(model.named_parameters())
    groups = [
        {"params": [value for name, value in parameters.items() if name.endswith("weight")], "weight_decay": 0.01},
        {"params": [value for name, value in parameters.items() if name.endswith("bias")], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, fused=True)
    for rows in permutation(len(labels), 0, 0).split(256):
        optimizer.zero_grad()
        functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    images, labels = splits.val
    with torch.no_grad():
        outputs = model(images)
    hits = (outputs.argmax(1) == labels).double().mean().item()
    return functional.cross_entropy(outputs.double(), labels, reduction="none"), hits


@pytest.mark.slow
def test_b12_the_val_loss_is_a_mean_over_samples(scan: Scan) -> None:
    """A mean of the batches' means gives the last, short batch too much weight, and ranks trials by it."""
    losses, accuracy = evaluated_by_hand(1e-2)
    assert len(losses) == 270
    mean_of_means = torch.stack([batch.mean() for batch in losses.split(64)]).mean().item()
    assert abs(mean_of_means - losses.mean().item()) > 1e-4  # else this test could not tell
    found = []
    for size in (1, 7, 64, 270):
        settings = ("--set", "batch_size=256", "--set", f"eval_batch_size={size}")
        _, result = scan("--name", f"by-{size}", "--lrs", "1e-2", *settings)
        found.append(result["trials"][0]["metrics"])
    for metrics in found:
        assert metrics["val_loss"] == pytest.approx(found[0]["val_loss"], rel=1e-6)
        assert metrics["val_accuracy"] == found[0]["val_accuracy"]
    assert found[0]["val_loss"] == pytest.approx(losses.mean().item(), rel=1e-5)
    assert found[0]["val_accuracy"] == pytest.approx(accuracy, rel=1e-12)


# B19: files that land where the process happens to be

OURS = {"results", "out", "notes.txt", "mlflow.db", "mlruns", "mlartifacts", "ledger.db", "result.json", "history"}


def files_of_ours(folder: Path) -> set[Path]:
    """Everything below a folder that a sweep could have written."""
    found = set()
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in (".git", ".venv")]
        found |= {Path(place, name) for name in (*folders, *files) if name in OURS}
    return found


@pytest.mark.parametrize(
    "results",
    [
        pytest.param("a path with spaces, 50% of #1? {x}", marks=pytest.mark.slow),
        pytest.param("./out", marks=pytest.mark.soak),
        pytest.param("~/out", marks=pytest.mark.soak),
    ],
)
def test_b19_results_are_below_the_launch_folder(results: str, tmp_path: Path) -> None:
    """'./out' was refused by a library, and files that a trial opened by a relative name landed in a session folder.
    Resumed from another folder, by the absolute path that was printed."""
    launch, home, elsewhere = tmp_path / "launch", tmp_path / "home", tmp_path / "elsewhere"
    for folder in (launch, home, elsewhere):
        folder.mkdir()
    before = files_of_ours(ROOT)
    expected = home / "out" if results.startswith("~") else launch / results
    small = ("--set", "batch_size=256", "--set", "task.step_log=notes.txt", "--task", MOODY, "--lrs", "1e-2")
    done = run_command("--name", "placed", "--results", results, *small, cwd=launch, HOME=str(home))
    assert done.returncode == 0, done.stderr
    assert str(expected / "placed") in done.stdout + done.stderr
    first = result_of(expected / "placed")
    assert lines(launch / "notes.txt") == 5

    arguments = ("--resume", "placed", "--results", str(expected), "--lrs", "1e-2", "1e-3")
    done = run_command(*arguments, cwd=elsewhere, HOME=str(home))
    assert done.returncode == 0, done.stderr
    second = result_of(expected / "placed")
    assert second["trials"][0] == first["trials"][0]
    assert second["trials"][1]["state"] == "complete"
    assert second["tracking_uri"] == first["tracking_uri"] == f"sqlite:///{launch / 'mlflow.db'}"

    top = {path.name for path in launch.iterdir()} - {"mlflow.db", "mlartifacts", "notes.txt"}
    assert top == (set() if results.startswith("~") else {results.removeprefix("./")})
    at_home = {path.name for path in home.iterdir() if not path.name.startswith(".")}  # libraries keep caches there
    assert at_home == ({"out"} if results.startswith("~") else set())
    assert [path.name for path in elsewhere.iterdir()] == ["notes.txt"]  # the task's own, of the second launch
    assert files_of_ours(ROOT) == before


# B58: two stores, or one that nobody can find


def stores_below(*folders: Path) -> list[str]:
    return sorted(str(path) for folder in folders for name in ("mlflow.db", "mlruns") for path in folder.rglob(name))


def session_folder() -> Path:
    import ray

    return Path(ray.init(ignore_reinit_error=True).address_info["session_dir"])


SMALL = ("--set", "batch_size=256", "--set", "task.width=8", "--lrs", "3e-3", "1e-3", "3e-4")


def assert_one_store(result: dict[str, Any], uri: str, name: str) -> None:
    """Parent and children are all there, and only there."""
    assert result["tracking_uri"] == uri
    runs = trial_runs(uri, name)
    assert [run.info.run_id for run in runs] == [trial["mlflow_run_id"] for trial in result["trials"]]
    assert len(runs) == 3
    assert {run.data.tags["mlflow.parentRunId"] for run in runs} == {result["mlflow_run_id"]}
    assert MlflowClient(uri).get_run(result["mlflow_run_id"]).info.status == "FINISHED"


@pytest.mark.slow
def test_b58_each_launch_folder_has_its_own_store(
    local_ray: None, launch_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No setting, from two folders: the documented place below each, printed at the start and at the end."""
    for name in ("a", "b"):
        folder = launch_folder / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        capsys.readouterr()
        assert lr_scan.main(["--name", name, *SMALL]) == 0
        said = capsys.readouterr()
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        assert f"tracking {uri}" in said.err
        assert f'mlflow ui --backend-store-uri "{uri}"' in said.out
        assert_one_store(result_of(folder / "results" / name), uri, name)
    stores = [str(launch_folder / name / "mlflow.db") for name in ("a", "b")]
    assert stores_below(launch_folder, session_folder()) == stores


@pytest.mark.slow
def test_b58_a_relative_address_means_the_launch_folder(
    scan: Scan, launch_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the shell: resolved in the driver, for workers have another working directory. A resume from elsewhere
    goes on in the store that the sweep began in."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    _, result = scan("--name", "relative", *SMALL)
    uri = f"sqlite:///{launch_folder / 'mlflow.db'}"
    assert_one_store(result, uri, "relative")
    (launch_folder / "elsewhere").mkdir()
    monkeypatch.chdir(launch_folder / "elsewhere")
    _, again = scan("--resume", "relative", "--results", str(launch_folder / "results"))
    assert_one_store(again, uri, "relative")
    assert stores_below(launch_folder, session_folder()) == [str(launch_folder / "mlflow.db")]


@pytest.mark.slow
def test_b58_an_address_in_the_config_file_only(scan: Scan, launch_folder: Path) -> None:
    """With trials one after the other in one worker process, which has read no config file."""
    (launch_folder / "deep").mkdir()
    (launch_folder / "scan.yaml").write_text("tracking-uri: sqlite:///deep/runs.db\n")
    _, result = scan("--name", "filed", "--config", "scan.yaml", "--trials-at-once", "1", *SMALL)
    assert_one_store(result, f"sqlite:///{launch_folder / 'deep/runs.db'}", "filed")
    assert (launch_folder / "deep/mlartifacts").is_dir()
    assert stores_below(launch_folder, session_folder()) == []


def test_b58_the_retired_store_of_files(
    launch_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An old setting in the shell: one message with the way out before anything starts, and nothing written."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    with pytest.raises(SystemExit) as left:
        lr_scan.main([])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "'./mlruns' is a folder of files, a store that MLflow has retired" in said
    assert "use a database (sqlite:///mlflow.db) or a server (http://host:5000)" in said
    assert list(launch_folder.iterdir()) == []


@pytest.mark.soak
def test_b58_json_on_stdout_names_the_store(tmp_path: Path) -> None:
    """In a process of its own, with the address from the shell: what a program reads is absolute too."""
    done = run_command("--name", "read", "--json", *SMALL, cwd=tmp_path, MLFLOW_TRACKING_URI="sqlite:///mine.db")
    assert done.returncode == 0, done.stderr
    assert_one_store(json.loads(done.stdout), f"sqlite:///{tmp_path / 'mine.db'}", "read")
