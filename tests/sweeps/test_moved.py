"""A sweep's folder moved or copied: it goes on where it is found, and only there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.tracking.moved import present_store
from tests.helpers.drivers import result_of, run_command

Scan = Callable[..., tuple[int, dict[str, Any]]]
ARGUMENTS = ("--lrs", "3e-3", "1e-3", "--set", "task.width=8", "--set", "batch_size=128", "--trials-at-once", "1")
MORE = ("--lrs", "3e-3", "1e-3", "3e-4", "--epochs", "2")


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def all_is_there(result: dict[str, Any], epochs: int) -> None:
    client = MlflowClient(result["tracking_uri"])
    for trial in result["trials"]:
        assert trial["epochs"] == epochs
        points = client.get_metric_history(trial["mlflow_run_id"], "epoch")
        assert sorted(point.value for point in points) == list(range(1, epochs + 1))
        assert client.get_run(trial["mlflow_run_id"]).info.status == "FINISHED"


@pytest.fixture
def place(launch_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (launch_folder / "a").mkdir()
    monkeypatch.chdir(launch_folder / "a")
    return launch_folder / "a"


@pytest.mark.slow
def test_moved_with_its_store(scan: Scan, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B41: the same runs in the store that moved along, with their artifacts; the old path does not come back."""
    _, first = scan("--name", "kept", *ARGUMENTS)
    monkeypatch.chdir(place.parent)
    there = place.rename(place.parent / "b y z")
    # In another process, as it would be: MLflow remembers, in its own, where each run's files are.
    done = run_command("--resume", "kept", "--results", str(there / "results"), *MORE, cwd=place.parent)
    assert done.returncode == 0, done.stderr
    result = result_of(there / "results/kept")
    assert result["tracking_uri"] == f"sqlite:///{there / 'mlflow.db'}"
    assert result["mlflow_run_id"] == first["mlflow_run_id"]
    assert [t["mlflow_run_id"] for t in result["trials"][:2]] == [t["mlflow_run_id"] for t in first["trials"]]
    assert [trial["attempts"] for trial in result["trials"]] == [2, 2, 1]
    all_is_there(result, 2)
    assert sorted(path.name for path in there.parent.iterdir()) == ["b y z"]
    folder = there / "mlartifacts"
    for run_id, name in (
        (result["trials"][0]["mlflow_run_id"], "config.json"),
        (result["mlflow_run_id"], "sweep.json"),
    ):
        assert (folder / run_id / "artifacts" / name).is_file()
        uri = MlflowClient(result["tracking_uri"]).get_run(run_id).info.artifact_uri
        assert uri == (folder / run_id / "artifacts").as_uri()


@pytest.mark.soak
def test_copied_without_its_store(scan: Scan, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy gets a store of its own in its results folder, with all that the history knows; the original and
    its runs stay as they are."""
    scan("--name", "kept", *ARGUMENTS)
    there = place.parent / "copy of it"
    shutil.copytree(place / "results", there)
    before = everything(place)
    monkeypatch.chdir(place.parent)
    code, result = scan("--resume", "kept", "--results", str(there), *MORE)
    assert code == 0
    assert result["tracking_uri"] == f"sqlite:///{there / 'mlflow.db'}"
    all_is_there(result, 2)
    assert everything(place) == before
    assert sorted(path.name for path in place.parent.iterdir()) == ["a", "copy of it"]


@pytest.mark.slow
def test_a_store_that_is_gone(place: Path) -> None:
    """Where only the database was deleted, the same address is filled again from the history."""
    # In other processes: within one, MLflow holds on to the database that it once opened.
    assert run_command("--name", "kept", *ARGUMENTS, cwd=place).returncode == 0
    for path in (place / "mlflow.db", place / "mlartifacts"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = run_command("--resume", "kept", cwd=place)
    assert done.returncode == 0, done.stderr
    all_is_there(result_of(place / "results/kept"), 1)


@pytest.mark.soak
def test_original_and_copy_have_runs_of_their_own(scan: Scan, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both in one store, as on a server that all use: the copy does not write into the original's runs."""
    _, first = scan("--name", "kept", *ARGUMENTS)
    shutil.copytree(place / "results/kept", place / "other/kept")
    uri = first["tracking_uri"]
    code, result = scan("--resume", "kept", "--results", "other", "--tracking-uri", uri, *MORE)
    assert code == 0
    all_is_there(result, 2)
    all_is_there(first, 1)
    assert not {t["mlflow_run_id"] for t in first["trials"]} & {t["mlflow_run_id"] for t in result["trials"]}


def test_where_the_store_is(place: Path) -> None:
    """The rule, case by case; nothing is written."""
    from tests.sweeps.test_extend import sweep_of

    old, new = Folder(place / "results/s"), Folder(place.parent / "b/results/s")
    for folder in (old, new):
        folder.path.mkdir(parents=True)
    elsewhere = {"tracking_uri": f"sqlite:///{place}/mlflow.db", "folder": str(old.path), "sweep_id": "x"}
    ledger = Ledger.create(new.ledger, sweep_of(1), elsewhere)
    fresh = f"sqlite:///{new.path.parent}/mlflow.db"
    assert present_store(old, ledger) == f"sqlite:///{place}/mlflow.db"  # not moved
    assert present_store(new, ledger) == fresh
    (place / "mlflow.db").touch()
    assert present_store(new, ledger) == f"sqlite:///{place}/mlflow.db"  # moved, and the store stayed
    shutil.copy(new.ledger, old.ledger)
    assert present_store(new, ledger) == fresh  # copied
    (place.parent / "b/mlflow.db").touch()
    assert present_store(new, ledger) == f"sqlite:///{place.parent}/b/mlflow.db"  # moved along
    ledger.note("tracking_uri", "http://host:5000")
    assert present_store(new, ledger) == "http://host:5000"
