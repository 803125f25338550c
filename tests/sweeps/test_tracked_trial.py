"""What MLflow has of a trial beside its curves: the data, the files, the tags; each once, whoever sends it again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.data.dataset_source_registry import get_dataset_source_from_json
from mlflow.tracking import MlflowClient

from sweeps import lr_scan
from sweeps.record.history import Follower, History
from sweeps.record.store import Folder
from tests.helpers.drivers import ROOT
from tests.sweeps.test_tracking import points_of, record, report, runs_of, show, sweep_of

README = (ROOT / "README.md").read_text()
FILTERS = {
    "attributes.status = 'FINISHED' and tags.steadysweep.role = 'trial'": [0, 1],
    "tags.steadysweep.diagnosis = 'overfit'": [1],
    "tags.steadysweep.state != 'complete' and tags.steadysweep.role = 'trial'": [2, 3, 4],
}
DATA = {"data": "a1" * 32, "train_samples": "1257", "val_samples": "270", "device": "cpu"}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def history(folder: Folder) -> History:
    return History(folder.history)


def noted(number: int = 0, state: Any = "complete", **changes: Any) -> Any:
    return dataclasses.replace(record(number, {"lr": 3e-3}, state), **{"notes": DATA, **changes})


def text_of(uri: str, run_id: str, name: str, tmp_path: Path) -> str:
    return Path(MlflowClient(uri).download_artifacts(run_id, name, str(tmp_path))).read_text()


def artifact_names(uri: str, run_id: str) -> set[str]:
    return {file.path for file in MlflowClient(uri).list_artifacts(run_id)}


def test_the_data_are_named_once_on_both_runs(uri: str, history: History) -> None:
    """By the task, with the fingerprint as the digest; a second driver, which cannot know, names them again."""
    sweep = sweep_of()
    history.append(0, report(1, 3.0))
    parent, runs = show(uri, sweep, "data", history, noted())
    assert show(uri, sweep, "data", history, noted()) == (parent, runs)
    for run_id in (parent, runs[0]):
        (found,) = MlflowClient(uri).get_run(run_id).inputs.dataset_inputs
        assert (found.dataset.name, found.dataset.digest) == ("digits", "a1" * 18)  # MLflow takes 36 characters
        sizes = {"train_samples": 1257, "val_samples": 270}
        assert json.loads(found.dataset.profile) == {**sizes, "fingerprint": "a1" * 32}
        source = get_dataset_source_from_json(found.dataset.source, found.dataset.source_type)
        assert source.to_dict()["tags"]["task"] == "digits"


def test_other_data_of_the_same_trial_stand_beside(uri: str, history: History) -> None:
    """A drift: the run was trained on both."""
    sweep = sweep_of()
    _, runs = show(uri, sweep, "drift", history, noted(state="running"))
    show(uri, sweep, "drift", history, noted(notes={**DATA, "data": "b2" * 32}), runs=runs)
    found = MlflowClient(uri).get_run(runs[0]).inputs.dataset_inputs
    assert {entry.dataset.digest for entry in found} == {"a1" * 18, "b2" * 18}


def write_manifest(folder: Folder, name: str, step: int, score: float | None) -> None:
    path = folder.trials / name / "manifest.json"
    path.parent.mkdir(parents=True)
    path.write_text(
        json.dumps({"format": 1, "step": step, "score": score, "files": {"state.pt": {"sha256": "0f", "size": 3}}})
    )


def test_log_and_checkpoints_once_a_trial_has_ended(uri: str, folder: Folder, history: History, tmp_path: Path) -> None:
    """Not while it trains: they are others a moment later. Of a checkpoint without a manifest nothing is said."""
    sweep = sweep_of()
    write_manifest(folder, "00000-attempt-2/checkpoint_000001", 80, 0.25)
    write_manifest(folder, "00000-attempt-1/checkpoint_000000", 40, None)
    (folder.trials / "00000-attempt-2/checkpoint_000002").mkdir()
    folder.log(0).parent.mkdir()
    folder.log(0).write_text("epoch one\n")
    _, runs = show(uri, sweep, "files", history, noted(state="running"))
    assert artifact_names(uri, runs[0]) == {"config.json"}
    folder.log(0).write_text("epoch one\nepoch two \xfc\n", encoding="latin-1")  # a task may print what it likes
    _, runs = show(uri, sweep, "files", history, noted(), runs=runs)
    assert artifact_names(uri, runs[0]) == {"config.json", "log.txt", "checkpoints.json"}
    assert text_of(uri, runs[0], "log.txt", tmp_path).startswith("epoch one\nepoch two")
    assert json.loads(text_of(uri, runs[0], "checkpoints.json", tmp_path)) == [
        {
            "folder": f"trials/00000-attempt-{attempt}/checkpoint_00000{attempt - 1}",
            "step": step,
            "score": score,
            "files": {"state.pt": {"sha256": "0f", "size": 3}},
        }
        for attempt, step, score in ((1, 40, None), (2, 80, 0.25))
    ]


def test_files_are_sent_again_only_where_they_changed(uri: str, folder: Folder, history: History) -> None:
    """A resume of a sweep of a thousand trials sends nothing of those that stayed as they were."""
    sweep, stored = sweep_of(), Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts"
    folder.log(0).parent.mkdir()
    folder.log(0).write_text("one\n")
    _, runs = show(uri, sweep, "again", history, noted())
    (log,) = stored.glob(f"{runs[0]}/artifacts/log.txt")
    log.write_text("what the store has")
    show(uri, sweep, "again", history, noted(), runs=runs)
    assert log.read_text() == "what the store has"
    folder.log(0).write_text("one\ntwo\n")
    show(uri, sweep, "again", history, noted(), runs=runs)
    assert log.read_text() == "one\ntwo\n"


def test_tags_to_filter_by(uri: str, history: History) -> None:
    """The queries of the README find what it says they do; what has not ended, or not failed, does not say it has."""
    sweep = sweep_of({"lr": 3e-3}, {"lr": 1e-3}, {"lr": 1e-2, "compile": True, "seed": 7}, {"lr": 3e-2}, {"lr": 1e-4})
    for number in range(5):
        for epoch in range(1, 9):
            val = 2.0 / epoch if number != 1 else 0.5 + 0.2 * epoch  # trial 1 overfits
            history.append(number, report(epoch, 3.0 / epoch, train_loss=3.0 / epoch, val_loss=val))
    rescued = {**DATA, "micro_batch": "8, after running out of memory at 16"}
    records = [
        noted(0, reports=8, notes=rescued),
        noted(1, reports=8),
        noted(2, "diverged", reports=8, params={"lr": 1e-2, "compile": True, "seed": 7}, reason="the loss became nan"),
        noted(3, "failed", reports=8, reason="Traceback\nValueError: no such column"),
        noted(4, "running", reports=8),
    ]
    parent, runs = show(uri, sweep, "filters", history, *records)
    client = MlflowClient(uri)
    experiment = client.get_run(parent).info.experiment_id

    def found(query: str, order: str | None = None) -> list[int]:
        of_sweep = f"tags.steadysweep.sweep = 'asked' and tags.steadysweep.sweep_id = 'filters' and {query}"
        runs = client.search_runs([experiment], of_sweep, order_by=[order] if order else None)
        return [int(run.data.tags["steadysweep.trial"]) for run in runs]

    for query, numbers in FILTERS.items():
        assert query in README, query
        assert sorted(found(query)) == numbers, query
    assert found(next(iter(FILTERS)), "metrics.val_loss ASC") == [0, 1]
    assert found("tags.steadysweep.micro_batch LIKE '%after running out of memory%'") == [0]
    assert found("tags.steadysweep.compile = 'on'") == [2]
    assert found("tags.steadysweep.seed = '7'") == [2]
    assert sorted(found(f"tags.steadysweep.fingerprint = '{sweep.fingerprint()}' and tags.steadysweep.role = 'trial'"))
    tags = {number: client.get_run(run_id).data.tags for number, run_id in runs.items()}
    assert tags[0]["steadysweep.reason"] == "trained to its last epoch"
    assert tags[3]["steadysweep.reason"] == "ValueError: no such column"
    assert (tags[4]["steadysweep.reason"], tags[4].get("steadysweep.diagnosis")) == ("it has not ended", None)
    assert tags[2]["steadysweep.diagnosis"] == "diverged"


def test_system_metrics_have_mlflows_names(uri: str, history: History) -> None:
    """Under system/ MLflow's pages show them in a place of their own."""
    said = {"cpu_utilization_percentage": 42.5, "gpu_0_utilization_percentage": 97.0}
    history.append(0, {**report(1, 3.0), "system": said, "weight_norm": 12.5})
    _, runs = show(uri, sweep_of(), "system", history, noted())
    assert points_of(uri, runs[0], "system/cpu_utilization_percentage") == [(1, 42.5)]
    assert points_of(uri, runs[0], "system/gpu_0_utilization_percentage") == [(1, 97.0)]
    assert points_of(uri, runs[0], "weight_norm") == [(1, 12.5)]
    assert len(runs_of(uri, "system")) == 2


LINES = st.one_of(
    st.integers(0, 5).map(lambda number: json.dumps({"report": number, "x": "\u00fc"}).encode() + b"\n"),
    st.sampled_from([b'{"repo', b"\n", b"[1]\n", b'{"report": 1}', b"null\n"]),
)


@given(pieces=st.lists(st.lists(LINES, max_size=4), max_size=5))
def test_following_a_file_gives_what_reading_it_gives(pieces: list[list[bytes]]) -> None:
    """However it grew in between, and whatever a crash left in it."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        history = History(Path(name))
        follower, found = Follower(history.path(0)), []
        for piece in pieces:
            with history.path(0).open("ab") as file:
                file.write(b"".join(piece))
            found += follower.fresh()
        with history.path(0).open("ab") as file:
            file.write(b"\n")
        found += follower.fresh()
        assert sorted(found, key=lambda report: report["report"]) == history.reports(0)


NOISY = """
import os
from dataclasses import dataclass
from pathlib import Path
from trainable.tasks.digits import Digits

@dataclass(frozen=True)
class Noisy(Digits):
    def metrics(self, outputs, batch):
        print("evaluating", flush=True)
        here = Path(__file__).parent
        if not (here / "died").exists() and (here / "results/noisy/history/00000.jsonl").exists():
            (here / "died").touch()
            os.kill(os.getpid(), 9)
        return super().metrics(outputs, batch)
"""


def test_a_sweep_from_end_to_end(
    local_ray: None, launch_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One trial whose process is killed once: all its words in one file, none on the driver's screen; the checkpoints
    that MLflow names are those on the disk; the machine's use at every report."""
    (tmp_path / "noisy.py").write_text(NOISY)
    at = str(tmp_path / "noisy.py:Noisy")
    assert lr_scan.main(["--task", at, "--lrs", "3e-3", "--epochs", "2", "--name", "noisy", "--json"]) == 0
    said = capfd.readouterr()
    assert "evaluating" not in said.out + said.err
    result = json.loads(said.out)
    (trial,) = result["trials"]
    uri, client = result["tracking_uri"], MlflowClient(result["tracking_uri"])
    log = text_of(uri, trial["mlflow_run_id"], "log.txt", tmp_path)
    assert log == Folder(tmp_path / "results/noisy").log(0).read_text()
    assert [line.split()[2] for line in log.splitlines() if line.startswith("--- attempt")] == ["1", "2"]
    assert log.count("evaluating") >= 3  # once before it died in the second, and once more after
    named = json.loads(text_of(uri, trial["mlflow_run_id"], "checkpoints.json", tmp_path))
    assert {checkpoint["step"] for checkpoint in named} >= {80}
    for checkpoint in named:
        state = tmp_path / "results/noisy" / checkpoint["folder"] / "state.pt"
        assert hashlib.sha256(state.read_bytes()).hexdigest() == checkpoint["files"]["state.pt"]["sha256"]
    run = client.get_run(trial["mlflow_run_id"])
    for name in ("cpu_utilization_percentage", "system_memory_usage_megabytes", "process_memory_usage_megabytes"):
        assert [step for step, _ in points_of(uri, run.info.run_id, f"system/{name}")] == [40, 80]
    (data,) = run.inputs.dataset_inputs
    assert (data.dataset.name, run.data.tags["steadysweep.attempts"]) == ("Noisy", "2")
    splits = json.loads((tmp_path / "results/noisy/splits.json").read_text())
    assert data.dataset.digest == splits["fingerprint"][:36]
