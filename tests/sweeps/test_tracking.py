"""MLflow, in a real store: nothing twice, nothing lost, and a store that does not answer costs only itself."""

from __future__ import annotations

import dataclasses
import json
import math
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from sweeps.record.history import History
from sweeps.record.store import Folder
from sweeps.record.trial import TrialRecord
from sweeps.sweep import Sweep
from sweeps.tracking.runs import Runs
from sweeps.tracking.tracker import Tracker, resolve_uri
from trainable.config import TrainConfig

WAIT_S = 60.0


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        (None, "sqlite:///{launch}/mlflow.db"),
        ("sqlite:///mlflow.db", "sqlite:///{launch}/mlflow.db"),
        ("sqlite:///sub/x.db", "sqlite:///{launch}/sub/x.db"),
        ("sqlite:///sub/../y.db", "sqlite:///{launch}/y.db"),
        ("sqlite:///~/z.db", "sqlite:///{home}/z.db"),
        ("sqlite:////{launch}/abs.db", "sqlite:///{launch}/abs.db"),
        ("sqlite:///a b.db", "sqlite:///{launch}/a b.db"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("https://u@host/path", "https://u@host/path"),
        ("postgresql://u@h/db", "postgresql+psycopg://u@h/db"),
        ("postgresql+psycopg://u@h/db?sslmode=require", "postgresql+psycopg://u@h/db?sslmode=require"),
        ("databricks://profile", "databricks://profile"),
    ],
)
def test_where_the_store_is(
    given: str | None, resolved: str, launch_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B58: one absolute address, from the launch folder; also for whoever has another working directory."""
    monkeypatch.setenv("HOME", str(launch_folder / "home"))
    for name in ("home", "sub", "elsewhere"):
        (launch_folder / name).mkdir()
    places = {"launch": str(launch_folder), "home": str(launch_folder / "home")}
    monkeypatch.chdir(launch_folder / "elsewhere")
    asked = given and given.replace("sqlite:////{launch}", f"sqlite:///{launch_folder}")
    assert resolve_uri(asked, launch_folder) == resolved.format(**places)
    if asked is not None:  # the same from the shell; a flag wins over it
        monkeypatch.setenv("MLFLOW_TRACKING_URI", asked)
        assert resolve_uri(None, launch_folder) == resolved.format(**places)
        assert resolve_uri("http://flag", launch_folder) == "http://flag"
    assert not list(launch_folder.rglob("*.db"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("./mlruns", "use a database (sqlite:///mlflow.db) or a server"),
        ("mlruns", "use a database (sqlite:///mlflow.db) or a server"),
        ("/abs/mlruns", "use a database (sqlite:///mlflow.db) or a server"),
        ("file:///abs/mlruns", "use a database (sqlite:///mlflow.db) or a server"),
        ("file:mlruns", "use a database (sqlite:///mlflow.db) or a server"),
        ("sqlite:///none/mlflow.db", "there is no folder {launch}/none"),
        ("sqlite:////proc/mlflow.db", "/proc cannot be written"),
        ("sqlite:///", "is a folder"),
        ("sqlite://", "is a folder"),
        ("sqlite:///what?.db", "has a ? or % that an address cannot hold"),
        ("sqlite:///a%20b.db", "has a ? or % that an address cannot hold"),
    ],
)
def test_stores_that_cannot_be(given: str, words: str, launch_folder: Path) -> None:
    """B58: said before anything runs, with the way out, and not by MLflow after the first trial."""
    with pytest.raises(ValueError) as error:
        resolve_uri(given, launch_folder)
    assert words.format(launch=launch_folder) in str(error.value)
    assert repr(given) in str(error.value)


@pytest.mark.parametrize(
    "given", ["https://u:s3cr3t@host/path", "postgresql://u:s3cr3t@h/db", "mysql+pymysql://h/db?password=s3cr3t"]
)
def test_a_password_is_neither_taken_nor_repeated(given: str, launch_folder: Path) -> None:
    with pytest.raises(ValueError, match="PGPASSWORD") as error:
        resolve_uri(given, launch_folder)
    assert "s3cr3t" not in str(error.value)
    assert "MLFLOW_TRACKING_PASSWORD" in str(error.value)


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "history")


def sweep_of(*points: Mapping[str, Any], **settings: Any) -> Sweep:
    return Sweep(
        name="asked",
        question="lr_scan",
        task="digits",
        train=TrainConfig(threads=1, freeze=("0.*",), **settings),
        points=points or ({"lr": 3e-3}, {"lr": 1e-3}),
    )


def record(number: int, params: Mapping[str, Any], state: Any = "complete", reports: int = 2) -> TrialRecord:
    return TrialRecord(
        number=number,
        params=dict(params),
        state=state,
        attempts=1,
        reports=reports,
        epochs=float(reports),
        metrics={"val_loss": 0.5},
        samples_per_s=1.0,
        notes={"device": "cpu"},
        reason=None,
        mlflow_run_id=None,
        weights_sha256=None,
    )


def report(number: int, *losses: float, **metrics: float) -> dict[str, Any]:
    return {
        "report": number,
        "time_ms": 1_700_000_000_000 + number,
        "epoch": float(number),
        "step": len(losses) * number,
        "first_step": len(losses) * (number - 1),
        "metrics": metrics,
        "curves": {"loss": list(losses), "lr": [1e-3] * len(losses)},
        "samples_per_s": 10.0,
        "seconds": 1.0,
        "data_wait_share": 0.0,
        "peak_mem_gib": 0.0,
    }


def tracker_of(
    uri: str, sweep: Sweep, sweep_id: str, history: History, kind: type[Tracker] = Tracker, **known: Any
) -> Tracker:
    tracker = kind(
        uri, sweep, sweep_id, Folder(history.path(0).parents[1]), tags={"steadysweep.version.x": "1"},
        parent_run_id=known.get("parent"), run_ids=known.get("runs", {}),
    )  # fmt: skip
    tracker.start()
    return tracker


def show(
    uri: str, sweep: Sweep, sweep_id: str, history: History, *records: TrialRecord, **known: Any
) -> tuple[str, dict[int, str]]:
    """A driver's life: show these records and end. The parent's run, and the trials'."""
    tracker = tracker_of(uri, sweep, sweep_id, history, **known)
    for each in records:
        tracker.update(each)
    assert tracker.close("FINISHED", [], WAIT_S) is None
    assert tracker.parent_run_id is not None
    return tracker.parent_run_id, tracker.run_ids()


def runs_of(uri: str, sweep_id: str) -> list[Any]:
    client = MlflowClient(uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(experiments, f"tags.`steadysweep.sweep_id` = '{sweep_id}'"))


def points_of(uri: str, run_id: str, name: str) -> list[tuple[int, float]]:
    return sorted((point.step, point.value) for point in MlflowClient(uri).get_metric_history(run_id, name))


def test_points_that_are_sent_twice_are_there_once(uri: str, history: History) -> None:
    """B03: a resumed driver does not know how much of a curve the store has, so it sends all of it again."""
    sweep, sweep_id = sweep_of(), uuid.uuid4().hex
    history.append(0, report(1, 3.0, 2.0, val_loss=1.5))
    running = record(0, {"lr": 3e-3}, "running", 1)
    parent, runs = show(uri, sweep, sweep_id, history, running)
    history.append(0, report(2, 1.0, 0.5, val_loss=0.75))
    assert show(uri, sweep, sweep_id, history, record(0, {"lr": 3e-3}), parent=parent, runs=runs) == (parent, runs)
    assert points_of(uri, runs[0], "loss") == [(1, 3.0), (2, 2.0), (3, 1.0), (4, 0.5)]
    assert points_of(uri, runs[0], "val_loss") == [(2, 1.5), (4, 0.75)]
    assert points_of(uri, runs[0], "epoch") == [(2, 1.0), (4, 2.0)]
    assert len(runs_of(uri, sweep_id)) == 2
    assert MlflowClient(uri).get_run(runs[0]).info.status == "FINISHED"


def test_a_run_whose_id_was_never_noted_is_found_again(uri: str, history: History) -> None:
    """B03: killed between the creation of the runs and their note in the ledger; others would split the curve."""
    sweep, sweep_id = sweep_of(), uuid.uuid4().hex
    history.append(0, report(1, 3.0))
    history.append(1, report(1, 4.0))
    records = [record(number, point) for number, point in enumerate(sweep.points)]
    first = show(uri, sweep, sweep_id, history, *records)
    assert show(uri, sweep, sweep_id, history, *records) == first
    assert len(runs_of(uri, sweep_id)) == 3
    assert first[1].keys() == {0, 1}
    assert points_of(uri, first[1][1], "loss") == [(1, 4.0)]


def test_a_run_that_was_only_created_is_completed(uri: str, history: History) -> None:
    """B03: killed right after the creation, before params and config were there."""
    sweep, sweep_id = sweep_of(), uuid.uuid4().hex
    parent, _ = show(uri, sweep, uuid.uuid4().hex, history)
    client = MlflowClient(uri)
    experiment = client.get_run(parent).info.experiment_id
    tags = {"steadysweep.role": "trial", "steadysweep.trial": "1", "steadysweep.sweep_id": sweep_id}
    created = client.create_run(experiment, tags=tags).info.run_id
    client.log_param(created, "lr", "0.001")
    history.append(1, report(1, 4.0))
    _, runs = show(uri, sweep, sweep_id, history, record(1, {"lr": 1e-3}))
    assert runs == {1: created}
    params = client.get_run(created).data.params
    assert (params["lr"], params["task.width"], params["batch_size"]) == ("0.001", "64", "32")
    assert "config.json" in [file.path for file in client.list_artifacts(created)]


def test_values_that_are_not_finite_are_left_out(uri: str, history: History) -> None:
    """Trap 2: MLflow stores NaN as 0 and inf as 1.8e308, which is the best, or ruins every chart."""
    sweep, sweep_id = sweep_of(), uuid.uuid4().hex
    history.append(0, report(1, 3.0, math.nan, math.inf, -math.inf, 2.0, val_loss=math.nan, val_other=1.0))
    diverged = dataclasses.replace(record(0, {"lr": 3e-3}, "diverged", 1), reason="the loss became nan at step 1")
    _, runs = show(uri, sweep, sweep_id, history, diverged)
    run = MlflowClient(uri).get_run(runs[0])
    assert points_of(uri, runs[0], "loss") == [(1, 3.0), (5, 2.0)]
    assert "val_loss" not in run.data.metrics
    assert run.data.metrics["val_other"] == 1.0
    assert (run.info.status, run.data.tags["diverged"]) == ("KILLED", "true")
    assert run.data.tags["steadysweep.reason"] == "the loss became nan at step 1"


def test_params_of_every_type(uri: str, history: History) -> None:
    """None, bools, lists and numbers are logged as Python writes them, also those that nobody set; a resume,
    which gets them back from a database, must not be refused for another spelling."""
    points = ({"clip_norm": None, "decay_all": True}, {"clip_norm": 0.1 + 0.2, "decay_all": False})
    sweep, sweep_id = sweep_of(*points, lr_multipliers={"2.*": 10.0}), uuid.uuid4().hex
    records = [record(number, point) for number, point in enumerate(points)]
    parent, runs = show(uri, sweep, sweep_id, history, *records)
    stored = Sweep.from_dict(json.loads(json.dumps(sweep.to_dict())))
    assert show(uri, stored, sweep_id, history, *records) == (parent, runs)
    client = MlflowClient(uri)
    first, second = (client.get_run(runs[number]).data.params for number in (0, 1))
    assert (first["clip_norm"], first["decay_all"]) == ("None", "True")
    assert (second["clip_norm"], second["decay_all"]) == ("0.30000000000000004", "False")
    assert (first["freeze"], first["lr_multipliers"]) == ("['0.*']", "{'2.*': 10.0}")
    assert (first["task"], first["task.dropout"]) == ("digits", "0.0")
    shared = client.get_run(parent).data.params
    assert (shared["tried.clip_norm"], shared["tried.decay_all"]) == ("[null, 0.30000000000000004]", "[true, false]")
    assert "clip_norm" not in shared  # the config's own value was used by no trial
    assert shared["freeze"] == "['0.*']"


def test_a_thousand_points(uri: str, history: History) -> None:
    """More values than one param holds: cut, and not refused for ever."""
    sweep = sweep_of(*({"lr": 1e-3 + number / 1e7} for number in range(1000)))
    parent, _ = show(uri, sweep, uuid.uuid4().hex, history)
    assert MlflowClient(uri).get_run(parent).data.params["tried.lr"].startswith("[0.001, ")


def test_a_metric_name_that_mlflow_refuses(uri: str, history: History) -> None:
    """top@5 is a usual name; one that is refused kept this trial, and all after it, out of the store."""
    sweep, sweep_id = sweep_of(), uuid.uuid4().hex
    history.append(0, report(1, 3.0, **{"val_top@5": 0.5}))
    history.append(1, report(1, 4.0))
    records = [record(number, point) for number, point in enumerate(sweep.points)]
    _, runs = show(uri, sweep, sweep_id, history, *records)
    assert MlflowClient(uri).get_run(runs[0]).data.metrics["val_top_5"] == 0.5
    assert points_of(uri, runs[1], "loss") == [(1, 4.0)]


def test_one_trial_that_cannot_be_shown(uri: str, history: History) -> None:
    """It is told, and the trials after it are shown all the same."""
    sweep, sweep_id = sweep_of(), uuid.uuid4().hex
    history.append(0, {"report": 1})  # lacks everything
    history.append(1, report(1, 4.0))
    tracker = tracker_of(uri, sweep, sweep_id, history)
    for number, point in enumerate(sweep.points):
        tracker.update(record(number, point))
    said = tracker.close("FINISHED", [], 5.0)
    assert said is not None
    assert "1 trial(s) are not fully in MLflow" in said
    assert "KeyError" in said
    assert points_of(uri, tracker.run_ids()[1], "loss") == [(1, 4.0)]
    history.path(0).unlink()
    history.append(0, report(1, 3.0))
    assert tracker.close("FINISHED", [], WAIT_S) is None  # it was tried again all the while
    assert points_of(uri, tracker.run_ids()[0], "loss") == [(1, 3.0)]


@pytest.mark.parametrize(
    ("state", "status", "tag"),
    [
        ("complete", "FINISHED", None),
        ("pruned", "KILLED", "pruned"),
        ("diverged", "KILLED", "diverged"),
        ("failed", "FAILED", None),
    ],
)
def test_a_status_tells_the_truth(uri: str, history: History, state: str, status: str, tag: str | None) -> None:
    """B07: and a filter on FINISHED finds full-length trials only."""
    sweep, sweep_id = sweep_of(), uuid.uuid4().hex
    _, runs = show(uri, sweep, sweep_id, history, dataclasses.replace(record(0, {"lr": 3e-3}, state), reason="a\nwhy"))
    run = MlflowClient(uri).get_run(runs[0])
    assert run.info.status == status
    assert {name for name in ("pruned", "diverged") if run.data.tags.get(name) == "true"} == ({tag} if tag else set())
    assert run.data.tags["steadysweep.reason"] == "why"


def test_waiting_trials_have_no_run(uri: str, history: History) -> None:
    sweep, sweep_id = sweep_of(), uuid.uuid4().hex
    assert show(uri, sweep, sweep_id, history, record(0, {"lr": 3e-3}, "waiting", 0))[1] == {}
    assert len(runs_of(uri, sweep_id)) == 1


def test_an_interruption_and_its_resume(uri: str, history: History) -> None:
    """B07: what runs is KILLED while nobody runs it, and RUNNING again under the same id afterwards."""
    sweep, sweep_id = sweep_of(), uuid.uuid4().hex
    running = record(0, {"lr": 3e-3}, "running", 1)
    tracker = tracker_of(uri, sweep, sweep_id, history)
    tracker.update(record(1, {"lr": 1e-3}))
    tracker.update(running)
    tracker.flush(WAIT_S, interrupted=True)
    runs, client = tracker.run_ids(), MlflowClient(uri)
    assert tracker.close("KILLED", [], WAIT_S) is None
    assert [client.get_run(runs[number]).info.status for number in (0, 1)] == ["KILLED", "FINISHED"]
    assert client.get_run(str(tracker.parent_run_id)).info.status == "KILLED"

    resumed = tracker_of(uri, sweep, sweep_id, history, parent=tracker.parent_run_id, runs=runs)
    resumed.update(running)
    resumed.flush(WAIT_S, interrupted=False)
    assert client.get_run(runs[0]).info.status == "RUNNING"
    assert client.get_run(str(tracker.parent_run_id)).info.status == "RUNNING"
    resumed.update(record(0, {"lr": 3e-3}))
    assert resumed.close("FINISHED", [], WAIT_S) is None
    assert client.get_run(runs[0]).info.status == "FINISHED"
    assert client.get_run(runs[0]).info.end_time is not None


def test_an_interruption_while_a_run_is_being_shown(uri: str, history: History) -> None:
    """B07: the thread has shown it as running and is about to cross it off; it stayed RUNNING for ever."""
    shown, go_on = threading.Event(), threading.Event()

    class Slow(Tracker):
        def _show(self, record: TrialRecord) -> None:
            super()._show(record)
            shown.set()
            assert go_on.wait(WAIT_S)

    tracker = tracker_of(uri, sweep_of(), uuid.uuid4().hex, history, Slow)
    tracker.update(record(0, {"lr": 3e-3}, "running", 1))
    assert shown.wait(WAIT_S)
    tracker.flush(0, interrupted=True)
    go_on.set()
    assert tracker.close("KILLED", [], WAIT_S) is None
    assert MlflowClient(uri).get_run(tracker.run_ids()[0]).info.status == "KILLED"


def test_artifacts_are_beside_the_database(
    uri: str, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B58: MLflow's own default is below the working directory of the moment."""
    monkeypatch.chdir(tmp_path)
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"x")
    tracker = tracker_of(uri, sweep_of(), uuid.uuid4().hex, history)
    assert tracker.close("FINISHED", [picture], WAIT_S) is None
    store = Path(uri.removeprefix("sqlite:///")).parent
    assert [path.name for path in store.rglob("picture.png")] == ["picture.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["picture.png"]


def test_a_sweep_is_described_by_its_verdict_and_a_persons_own_words_stay(uri: str, history: History) -> None:
    client, sweep_id, known = MlflowClient(uri), uuid.uuid4().hex, None
    for verdict, by_hand, described in (
        ("lr=0.003 wins.", None, "lr=0.003 wins."),
        ("lr=0.01 wins.", None, "lr=0.01 wins."),  # a resume has found a better one
        ("lr=0.03 wins.", "for the paper", "for the paper"),
    ):
        if by_hand is not None:
            assert known is not None
            client.set_tag(known, "mlflow.note.content", by_hand)
        tracker = tracker_of(uri, sweep_of(), sweep_id, history, parent=known)
        assert tracker.close("FINISHED", [], WAIT_S, verdict=verdict) is None
        known = tracker.parent_run_id
        assert known is not None
        tags = client.get_run(known).data.tags
        assert (tags["mlflow.note.content"], tags["steadysweep.verdict"]) == (described, verdict)


def test_a_run_lasts_as_long_as_its_trial(uri: str, history: History) -> None:
    """And not from when MLflow was told of it."""
    trial = dataclasses.replace(record(0, {"lr": 3e-3}), began_ms=1_700_000_000_000, ended_ms=1_700_000_090_000)
    _, runs = show(uri, sweep_of(), uuid.uuid4().hex, history, trial)
    info = MlflowClient(uri).get_run(runs[0]).info
    assert (info.start_time, info.end_time) == (1_700_000_000_000, 1_700_000_090_000)


def test_a_server_that_is_not_there(history: History) -> None:
    """Trap 3: no exception reaches the training, and the end says in words what is missing, where, and that
    nothing is lost; it does not wait for ever."""
    tracker = tracker_of("http://127.0.0.1:9", sweep_of(), uuid.uuid4().hex, history)
    for number in range(2):
        tracker.update(record(number, {"lr": 3e-3}))
    tracker.flush(0.1, interrupted=False)
    assert tracker.run_ids() == {}
    said = tracker.close("FINISHED", [], 3.0)
    assert said is not None
    for words in ("tracking is incomplete", "2 trial(s)", "http://127.0.0.1:9", "a resume sends the rest"):
        assert words in said


def test_the_end_waits_as_long_as_trials_are_shown(uri: str, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that takes longer for all of them than the wait for one: impatient, some are missing; patient, none."""
    show_one = Runs.show

    def slowly(runs: Runs, record: TrialRecord, *, interrupted: bool) -> None:
        time.sleep(0.4)
        show_one(runs, record, interrupted=interrupted)

    monkeypatch.setattr(Runs, "show", slowly)
    tracker = tracker_of(uri, sweep_of(), uuid.uuid4().hex, history)
    for number in range(12):
        tracker.update(record(number, {"lr": 3e-3}))
    tracker.flush(2.0, interrupted=False)
    assert tracker.pending() > 0
    tracker.flush(20.0, interrupted=False, patiently=True)
    assert tracker.pending() == 0
    assert tracker.close("FINISHED", [], WAIT_S) is None
    assert len(tracker.run_ids()) == 12
