"""The ledger: which trials exist, and what they said, whatever happens in between."""

from __future__ import annotations

import math
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweeps.record import writes
from sweeps.record.ledger import Ledger
from sweeps.sweep import Sweep
from trainable.config import TrainConfig

Points = tuple[Mapping[str, Any], ...]
THREE: Points = ({"lr": 3e-3}, {"lr": 1e-3}, {"lr": 3e-4})


def sweep_of(points: Points = THREE, **settings: Any) -> Sweep:
    return Sweep(
        name="asked", question="lr_scan", task="digits", train=TrainConfig(threads=1), points=points, **settings
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Ledger:
    return Ledger.create(path, sweep_of(), {"sweep_id": "abc"})


def report(number: int, val_loss: float | None = 1.0, **metrics: float) -> dict[str, Any]:
    metrics = metrics if val_loss is None else {"val_loss": val_loss, **metrics}
    said = {
        "number": number,
        "epoch": float(number),
        "metrics": metrics,
        "samples_per_s": 9.5,
        "notes": {"device": "cpu"},
    }
    return {**said, "curves": {"loss": [1.0]}, "step": 40 * number}


def reopened(path: Path) -> Ledger:
    """As another process finds it."""
    return Ledger(path)


def study_of(path: Path) -> optuna.Study:
    (name,) = optuna.get_all_study_names(f"sqlite:///{path}")
    return optuna.load_study(study_name=name, storage=f"sqlite:///{path}")


def test_all_trials_wait_from_the_start(ledger: Ledger, path: Path) -> None:
    """Which trials there are must not depend on how far an interrupted driver got."""
    assert [(t.number, t.params, t.state, t.attempts, t.reports) for t in ledger.trials()] == [
        (0, {"lr": 3e-3}, "waiting", 0, 0),
        (1, {"lr": 1e-3}, "waiting", 0, 0),
        (2, {"lr": 3e-4}, "waiting", 0, 0),
    ]
    assert reopened(path).trials() == ledger.trials()
    assert reopened(path).sweep == sweep_of()
    assert (reopened(path).attribute("sweep_id"), ledger.attribute("nothing")) == ("abc", None)


@pytest.mark.parametrize("torn", [b"", b"SQLite format 3\x00 half a page", b"\x00" * 5000])
def test_what_a_killed_creation_leaves_is_ignored(path: Path, torn: bytes) -> None:
    """B11: a ledger under its name is whole; half of one beside it is neither read nor in the way."""
    path.with_name("ledger.db.part").write_bytes(torn)
    ledger = Ledger.create(path, sweep_of(), {})
    assert len(ledger.trials()) == 3
    assert [entry.name for entry in path.parent.iterdir()] == ["ledger.db"]


def test_nothing_has_the_name_before_all_is_in_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between two trials' creation must not leave a ledger with fewer trials than were asked for."""
    enqueue = optuna.Study.enqueue_trial

    def dies_at_the_third(study: optuna.Study, params: dict[str, Any]) -> None:
        if params == {"lr": 3e-4}:
            raise KeyboardInterrupt
        enqueue(study, params)

    monkeypatch.setattr(optuna.Study, "enqueue_trial", dies_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        Ledger.create(path, sweep_of(), {})
    assert not path.exists()
    monkeypatch.undo()
    assert len(Ledger.create(path, sweep_of(), {}).trials()) == 3


@pytest.mark.parametrize("name", ["a b", "50% off", "%41", "#1", "what?", "{SCHEMA_VERSION}", "ä"])
def test_any_folder_can_hold_it(tmp_path: Path, name: str) -> None:
    """B19: in a database's address ?, % and { mean something else; the file landed elsewhere, or nowhere."""
    (tmp_path / name).mkdir()
    Ledger.create(tmp_path / name / "ledger.db", sweep_of(), {}).close()
    assert [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.db*")] == [f"{name}/ledger.db"]
    assert len(reopened(tmp_path / name / "ledger.db").trials()) == 3


def test_the_life_of_a_trial(ledger: Ledger, path: Path) -> None:
    """Begin, report, finish; each is on the disk when the call returns."""
    begun = ledger.begin(0)
    assert (begun.number, begun.params, begun.state, begun.attempts) == (0, {"lr": 3e-3}, "running", 1)
    assert reopened(path).trial(0) == begun
    assert ledger.report(0, report(1, 0.75, val_accuracy=0.5))
    found = reopened(path).trial(0)
    assert (found.reports, found.epochs, found.samples_per_s) == (1, 1.0, 9.5)
    assert (found.metrics, found.notes) == ({"val_loss": 0.75, "val_accuracy": 0.5}, {"device": "cpu"})
    ledger.report(0, report(2, 0.5))
    ledger.finish(0, "complete", weights_sha256="f00")
    ended = reopened(path).trial(0)
    assert (ended.state, ended.weights_sha256, ended.metrics) == ("complete", "f00", {"val_loss": 0.5})
    trial = study_of(path).trials[0]
    assert (trial.state.name, trial.value, trial.intermediate_values) == ("COMPLETE", 0.5, {1: 0.75, 2: 0.5})
    assert [record.state for record in ledger.trials()] == ["complete", "waiting", "waiting"]


def test_a_report_counts_once(ledger: Ledger, path: Path) -> None:
    """B11: an attempt that goes on from an older checkpoint repeats what it said; the first word stays."""
    ledger.begin(0)
    assert ledger.report(0, report(1, 1.0))
    assert ledger.report(0, report(2, 0.5))
    assert not ledger.report(0, report(2, 0.4))
    assert not ledger.report(0, report(1, 0.3))
    assert ledger.trial(0).metrics == {"val_loss": 0.5}
    assert study_of(path).trials[0].intermediate_values == {1: 1.0, 2: 0.5}


def test_an_interrupted_trial_goes_on_under_its_number(ledger: Ledger, path: Path) -> None:
    """B03, B11: a trial that was running when the driver died is the same trial, params and reports."""
    ledger.begin(0)
    ledger.begin(1)
    ledger.report(1, report(1, 0.5))
    ledger.close()
    resumed = reopened(path)
    again = resumed.begin(1)
    assert (again.number, again.params, again.state, again.attempts, again.reports) == (
        1,
        {"lr": 1e-3},
        "running",
        2,
        1,
    )
    assert resumed.begin(0).params == {"lr": 3e-3}
    assert resumed.begin(2).params == {"lr": 3e-4}
    assert len(study_of(path).trials) == 3


def test_killed_between_two_parameters(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B11: a beginning is written whole or not at all, and what was asked for is still known."""
    points = ({"lr": 1e-3, "batch_size": 16}, {"lr": 1e-2, "batch_size": 64})
    ledger = Ledger.create(path, sweep_of(points), {})
    original = writes.distribution_to_json

    def dies_at_the_second(distribution: Any) -> str:
        if "Int" in type(distribution).__name__:
            raise KeyboardInterrupt
        return str(original(distribution))

    monkeypatch.setattr(writes, "distribution_to_json", dies_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        ledger.begin(0)
    monkeypatch.undo()
    resumed = reopened(path)
    assert (resumed.trial(0).state, resumed.trial(0).params, resumed.trial(0).attempts) == ("waiting", points[0], 0)
    assert study_of(path).trials[0].params == {}
    assert resumed.begin(0).params == points[0]
    assert resumed.begin(1).params == points[1]


def test_the_first_end_is_the_end(ledger: Ledger) -> None:
    """B07: a pruned trial whose worker is told to stop must not become failed, nor a failed one complete."""
    for number, (first, second) in enumerate((("pruned", "failed"), ("failed", "complete"), ("complete", "failed"))):
        ledger.begin(number)
        ledger.report(number, report(1))
        ledger.finish(number, first, reason="first")  # type: ignore[arg-type]
        ledger.finish(number, second, reason="second")  # type: ignore[arg-type]
        assert (ledger.trial(number).state, ledger.trial(number).reason) == (first, "first")


@pytest.mark.parametrize(
    ("state", "in_optuna"),
    [("complete", "COMPLETE"), ("pruned", "PRUNED"), ("diverged", "FAIL"), ("failed", "FAIL")],
)
def test_every_end(ledger: Ledger, path: Path, state: Any, in_optuna: str) -> None:
    """B07, trap 2: every way to end is told apart by us, and in Optuna nothing is left RUNNING."""
    for number in range(3):
        ledger.begin(number)
        ledger.report(number, report(1, 0.5))
        ledger.finish(number, state, reason="why")
    assert [(t.state, t.reason) for t in reopened(path).trials()] == [(state, "why")] * 3
    assert [trial.state.name for trial in study_of(path).trials] == [in_optuna] * 3


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite(ledger: Ledger, path: Path, value: float) -> None:
    """Trap 2: Optuna refuses NaN, which ended the whole sweep, and takes -inf for the best value of all."""
    ledger.begin(0)
    ledger.report(0, report(1, value))
    ledger.finish(0, "complete")
    assert (ledger.trial(0).state, ledger.trial(0).reason) == ("diverged", f"its val_loss became {value}")
    assert study_of(path).trials[0].state.name == "FAIL"


def test_a_metric_that_never_came(ledger: Ledger, path: Path) -> None:
    """A trial without the sweep's metric has no answer; the reason names what it reported instead."""
    ledger.begin(0)
    ledger.report(0, report(1, None, train_loss=0.5))
    ledger.finish(0, "complete")
    assert ledger.trial(0).state == "failed"
    assert ledger.trial(0).reason == "it never reported 'val_loss'; it reported: ['train_loss']"
    assert study_of(path).trials[0].state.name == "FAIL"


def test_extend_adds_only_what_is_missing(ledger: Ledger, path: Path) -> None:
    """B20: more learning rates on a sweep that is done, under way or waiting; nothing is asked for twice."""
    ledger.begin(0)
    ledger.report(0, report(1))
    ledger.finish(0, "complete")
    ledger.begin(1)
    before = ledger.trials()
    larger = sweep_of((*THREE, {"lr": 1.0}, {"lr": 1e-5}))
    ledger.extend(larger)
    ledger.extend(larger)
    assert ledger.trials()[:3] == before
    assert [(t.number, t.params, t.state) for t in ledger.trials()[3:]] == [
        (3, {"lr": 1.0}, "waiting"),
        (4, {"lr": 1e-5}, "waiting"),
    ]
    ledger.close()
    resumed = reopened(path)
    assert resumed.sweep == larger
    # Outside the range that the first three were asked from.
    assert [resumed.begin(number).params["lr"] for number in (1, 2, 3, 4)] == [1e-3, 3e-4, 1.0, 1e-5]


def test_pruning_goes_on_from_what_is_stored(path: Path) -> None:
    """Design, 5: a resumed sweep prunes as the unbroken one does, and the first trial is never pruned."""
    ledger = Ledger.create(path, sweep_of(pruner="median"), {})
    ledger.begin(0)
    ledger.report(0, report(1, 1.0))
    assert not ledger.should_prune(0)
    ledger.report(0, report(2, 0.5))
    ledger.finish(0, "complete")
    ledger.close()
    resumed = reopened(path)
    resumed.begin(1)
    resumed.report(1, report(1, 0.9))
    assert not resumed.should_prune(1)
    resumed.report(1, report(2, 0.6))
    assert resumed.should_prune(1)
    resumed.finish(1, "pruned")
    resumed.begin(2)
    resumed.report(2, report(1, 1.1))
    assert resumed.should_prune(2)


def test_no_pruner_prunes_nothing(ledger: Ledger) -> None:
    """A scan compares all its trials at full length."""
    ledger.begin(0)
    ledger.report(0, report(1, 0.1))
    ledger.finish(0, "complete")
    ledger.begin(1)
    ledger.report(1, report(1, 1e9))
    assert not ledger.should_prune(1)


def test_choices_keep_their_type(path: Path) -> None:
    """A database that keeps text would give back 'None' and 'True', which are true and other settings."""
    points: Points = (
        {"clip_norm": None, "decay_all": True, "optimizer": "sgd", "batch_size": 16, "task.dropout": 0.0},
        {"clip_norm": 0.5, "decay_all": False, "optimizer": "adam", "batch_size": 64, "task.dropout": 0.5},
        {"clip_norm": 1.0, "decay_all": True, "optimizer": "adamw", "batch_size": 7, "task.dropout": 0.1},
    )
    Ledger.create(path, sweep_of(points), {}).close()
    ledger = reopened(path)
    for number, point in enumerate(points):
        for found in (ledger.trial(number).params, ledger.begin(number).params, reopened(path).trial(number).params):
            assert found == point
            assert [type(value) for value in found.values()] == [type(value) for value in point.values()]


def test_a_point_has_its_own_parameters_only(path: Path) -> None:
    """B06: a point that lacks a name which another point has must not be given a random value for it."""
    points: Points = ({"lr": 1e-3}, {"batch_size": 16}, {"batch_size": 64, "lr": 1e-2}, {"optimizer": "sgd"})
    ledger = Ledger.create(path, sweep_of(points), {})
    assert [ledger.begin(number).params for number in range(4)] == list(points)
    assert [trial.params for trial in study_of(path).trials] == list(points)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    lrs=st.lists(st.floats(min_value=0, exclude_min=True, allow_infinity=False), min_size=1, max_size=4, unique=True),
    losses=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=3),
)
def test_floats_come_back_to_the_bit(lrs: list[float], losses: list[float]) -> None:
    """B06: a learning rate that is a last bit off is another trial, with other weights."""

    def bits(values: list[float]) -> list[bytes]:
        return [struct.pack("<d", value) for value in values]

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        ledger = Ledger.create(path, sweep_of(tuple({"lr": lr} for lr in lrs)), {})
        assert bits([ledger.begin(number).params["lr"] for number in range(len(lrs))]) == bits(lrs)
        for number, loss in enumerate(losses, start=1):
            ledger.report(0, report(number, loss))
        ledger.finish(0, "complete")
        ledger.close()
        found = reopened(path)
        assert bits([record.params["lr"] for record in found.trials()]) == bits(lrs)
        assert bits([found.trial(0).metrics["val_loss"]]) == bits(losses[-1:])
        found.close()


def test_mlflow_runs_are_noted(ledger: Ledger, path: Path) -> None:
    """B03: the run of a trial is found again by its number, which JSON turns into text."""
    ledger.note("mlflow_runs", {"0": "run-a", "2": "run-c"})
    found = reopened(path)
    assert found.mlflow_runs() == {0: "run-a", 2: "run-c"}
    assert [record.mlflow_run_id for record in found.trials()] == ["run-a", None, "run-c"]
