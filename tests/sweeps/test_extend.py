"""A finished sweep asked for more: exactly what is missing is trained, and the answer is that of the larger sweep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from mlflow.tracking import MlflowClient

from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.sweep import Sweep
from tests.helpers.drivers import ROOT, without_circumstances
from trainable.config import TrainConfig

Scan = Callable[..., tuple[int, dict[str, Any]]]
MOODY = f"{ROOT / 'tests/helpers/moody.py'}:Moody"
STEPS_PER_EPOCH = 10  # 1258 training samples in batches of 128
SMALL = ("--task", MOODY, "--set", "task.width=8", "--set", "batch_size=128", "--trials-at-once", "1")


def test_more_epochs_and_more_learning_rates(scan: Scan, launch_folder: Path) -> None:
    """B20, B26: what two epochs of two trials, extended by two epochs and a trial, give is to the bit what a sweep
    of four epochs gives; trained once, under the same numbers and runs."""
    log = launch_folder / "steps.log"
    _, short = scan(
        "--name", "grown", *SMALL, "--epochs", "2", "--lrs", "3e-3", "1e-3", "--set", f"task.step_log={log}"
    )
    code, grown = scan("--resume", "grown", "--epochs", "4", "--lrs", "3e-3", "1e-3", "3e-4")
    assert code == 0
    assert len(log.read_text().split()) == 3 * 4 * STEPS_PER_EPOCH
    _, asked = scan("--name", "asked", *SMALL, "--epochs", "4", "--lrs", "3e-3", "1e-3", "3e-4")
    assert {**without_circumstances(grown), "name": "asked"} == without_circumstances(asked)
    assert [trial["attempts"] for trial in grown["trials"]] == [2, 2, 1]
    assert [t["mlflow_run_id"] for t in grown["trials"][:2]] == [t["mlflow_run_id"] for t in short["trials"]]
    assert grown["mlflow_run_id"] == short["mlflow_run_id"]
    histories = [History(launch_folder / f"results/{name}/history") for name in ("grown", "asked")]
    for number in range(3):
        once, whole = (
            [(r["report"], r["epoch"], r["metrics"], r["curves"]) for r in history.reports(number)]
            for history in histories
        )
        assert once == whole

    client = MlflowClient(grown["tracking_uri"])
    for trial in grown["trials"]:
        run = client.get_run(trial["mlflow_run_id"])
        assert run.info.status == "FINISHED"
        assert sorted(p.value for p in client.get_metric_history(run.info.run_id, "epoch")) == [1, 2, 3, 4]
        assert len(client.get_metric_history(run.info.run_id, "loss")) == 4 * STEPS_PER_EPOCH
    old = client.get_run(grown["trials"][0]["mlflow_run_id"]).data
    assert (old.params["epochs"], old.tags["steadysweep.now.epochs"]) == ("2", "4")
    parent = client.get_run(grown["mlflow_run_id"]).data
    assert parent.tags["steadysweep.now.tried.lr"] == "[0.003, 0.001, 0.0003]"
    assert (study := load(launch_folder / "results/grown/ledger.db")).best_trial.number == 0
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 3
    assert [len(trial.intermediate_values) for trial in study.trials] == [4, 4, 4]


def load(path: Path) -> optuna.Study:
    (name,) = optuna.get_all_study_names(f"sqlite:///{path}")
    return optuna.load_study(study_name=name, storage=f"sqlite:///{path}")


def sweep_of(epochs: int, *points: dict[str, Any]) -> Sweep:
    train = TrainConfig(threads=1, epochs=epochs)
    return Sweep(
        name="s", question="lr_scan", task="digits", train=train, points=points or ({"lr": 3e-3}, {"lr": 1e-3})
    )


def run_to_end(ledger: Ledger, number: int, epochs: int, **notes: str) -> None:
    for epoch in range(ledger.begin(number).reports + 1, epochs + 1):
        said = {"metrics": {"val_loss": 1 / epoch}, "samples_per_s": 1.0, "notes": notes}
        ledger.report(number, {"number": epoch, "epoch": float(epoch), **said})
    ledger.finish(number, "complete", weights_sha256="f00")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "ledger.db", sweep_of(2, {"lr": 3e-3}, {"lr": 1e-3}, {"lr": 1e-2, "epochs": 1}), {})


def longer(epochs: int) -> Sweep:
    return sweep_of(epochs, {"lr": 3e-3}, {"lr": 1e-3}, {"lr": 1e-2, "epochs": 1})


def test_only_what_has_epochs_left_is_opened_again(ledger: Ledger, tmp_path: Path) -> None:
    """A trial that lost patience, and one whose own parameters say how long it is, stay as they are."""
    run_to_end(ledger, 0, 2)
    run_to_end(ledger, 1, 1, stopped_early="no better val_loss for 1 evaluations")
    run_to_end(ledger, 2, 1)
    ledger.extend(longer(2))
    assert [record.state for record in ledger.trials()] == ["complete"] * 3
    ledger.extend(longer(4))
    again = ledger.trial(0)
    assert (again.state, again.reports, again.weights_sha256, again.attempts) == ("running", 2, None, 1)
    assert [record.state for record in ledger.trials()] == ["running", "complete", "complete"]
    assert ledger.trials() == Ledger(tmp_path / "ledger.db").trials()
    opened = load(tmp_path / "ledger.db").trials[0]
    assert (opened.state.name, opened.value, opened.datetime_complete) == ("RUNNING", None, None)
    assert opened.intermediate_values == {1: 1.0, 2: 0.5}
    run_to_end(ledger, 0, 4)
    assert (ledger.trial(0).state, ledger.trial(0).attempts, ledger.trial(0).epochs) == ("complete", 2, 4)
    assert load(tmp_path / "ledger.db").best_value == 0.25
    before = ledger.trials()
    ledger.extend(longer(4))
    assert ledger.trials() == before


def test_killed_while_it_is_extended(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever part was done, doing it again does the rest, and nothing twice."""
    for number, epochs in enumerate((2, 2, 1)):
        run_to_end(ledger, number, epochs)
    target = sweep_of(3, {"lr": 3e-3}, {"lr": 1e-3}, {"lr": 1e-2, "epochs": 1}, {"lr": 0.1}, {"lr": 1.0})
    for name in ("set_user_attr", "enqueue_trial"):
        for after in (0, 1):
            calls = []
            original = getattr(optuna.Study, name)

            def dies(*arguments: Any, original: Any = original, calls: list[int] = calls, after: int = after) -> None:
                calls.append(1)
                if len(calls) > after:
                    raise KeyboardInterrupt
                original(*arguments)

            monkeypatch.setattr(optuna.Study, name, dies)
            with pytest.raises(KeyboardInterrupt):
                Ledger(tmp_path / "ledger.db").extend(target)
            monkeypatch.undo()
    resumed = Ledger(tmp_path / "ledger.db")
    resumed.extend(target)
    assert [(record.params["lr"], record.state) for record in resumed.trials()] == [
        (3e-3, "running"), (1e-3, "running"), (1e-2, "complete"), (0.1, "waiting"), (1.0, "waiting"),
    ]  # fmt: skip
