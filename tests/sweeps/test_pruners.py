"""Pruners: what they decide follows from the ledger, whatever was killed, and is what Optuna's own would decide."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import optuna
import pytest

from sweeps.record.ledger import Ledger
from sweeps.sweep import Sweep
from trainable.config import TrainConfig

EPOCHS = 9
NUM_TRIALS = 12


class Killed(BaseException):
    pass


def sweep_of(epochs: int = EPOCHS, report_steps: int | None = None, **settings: Any) -> Sweep:
    train = TrainConfig(threads=1, epochs=epochs, report_steps=report_steps)
    points = tuple({"lr": (number + 1) / 100} for number in range(NUM_TRIALS))
    return Sweep(name="s", question="search", task="digits", train=train, points=points, **settings)


def said(number: int, report: int) -> dict[str, Any]:
    """Noisy curves, better with each report; which trial is good is up to its number."""
    noise = random.Random(f"{number}/{report}").random() / 4
    value = random.Random(number).random() + 1 / report + noise
    return {
        "number": report, "epoch": float(report), "metrics": {"val_loss": value}, "samples_per_s": 1.0, "notes": {}
    }  # fmt: skip


def work(path: Path, sweep: Sweep, lives: float = math.inf, at_once: int = 3) -> list[Any]:
    """Trials in parallel, a report of each in turn; the driver dies after so many decisions."""
    ledger = Ledger(path) if path.exists() else Ledger.create(path, sweep, {})
    try:
        ledger.extend(sweep)
        while True:
            records = ledger.trials()
            running = [r for r in records if r.state == "running"]
            waiting = [r for r in records if r.state == "waiting"]
            if len(running) < at_once and waiting:
                ledger.begin(waiting[0].number)
                continue
            if not running:
                return [(r.number, r.state, r.reports) for r in records]
            record = min(running, key=lambda r: (r.reports, r.number))
            ledger.report(record.number, said(record.number, record.reports + 1))
            if record.reports + 1 == EPOCHS:
                ledger.finish(record.number, "complete")
            elif ledger.should_prune(record.number):
                ledger.finish(record.number, "pruned", reason=f"pruned after epoch {record.reports + 1:g}")
            lives -= 1
            if lives < 0:
                raise Killed
    finally:
        ledger.close()


def killed_often(path: Path, sweep: Sweep) -> list[Any]:
    while True:
        try:
            return work(path, sweep, lives=11)
        except Killed:
            continue


@pytest.mark.parametrize(
    "settings",
    [
        {"pruner": "median"},
        {"pruner": "asha"},
        {"pruner": "hyperband"},
        {"pruner": "hyperband", "report_steps": 40},
        {"pruner": "asha", "pruner_warmup": 2, "pruner_patience": 1},
    ],
)
def test_a_resume_decides_the_same(folder: Path, settings: dict[str, Any]) -> None:
    """Also hyperband, whose brackets depend on the study's name and the trial's number."""
    sweep = sweep_of(**settings)
    unbroken = work(folder / "a.db", sweep)
    assert {state for _, state, _ in unbroken} == {"complete", "pruned"}
    assert killed_often(folder / "b.db", sweep) == unbroken


@pytest.mark.parametrize("pruner", ["median", "asha", "hyperband"])
def test_optuna_itself_decides_the_same(folder: Path, pruner: str) -> None:
    """Beside a study that Optuna drives with the same curves, one trial at a time."""
    ours = work(folder / "a.db", sweep_of(pruner=pruner), at_once=1)
    made: dict[str, optuna.pruners.BasePruner] = {
        "median": optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=0),
        "asha": optuna.pruners.SuccessiveHalvingPruner(min_resource=1),
        "hyperband": optuna.pruners.HyperbandPruner(min_resource=1, max_resource=EPOCHS),
    }
    study = optuna.create_study(study_name="s", pruner=made[pruner])
    theirs: list[Any] = []

    def objective(trial: optuna.Trial) -> float:
        for report in range(1, EPOCHS + 1):
            value = said(trial.number, report)["metrics"]["val_loss"]
            trial.report(value, report)
            if report < EPOCHS and trial.should_prune():
                theirs.append((trial.number, "pruned", report))
                raise optuna.TrialPruned
        theirs.append((trial.number, "complete", EPOCHS))
        return float(value)

    study.optimize(objective, n_trials=NUM_TRIALS)
    assert ours == theirs


@pytest.mark.parametrize("pruner", ["median", "asha", "hyperband"])
def test_warm_up(folder: Path, pruner: str) -> None:
    early = work(folder / "a.db", sweep_of(pruner=pruner))
    assert min(reports for _, _, reports in early) < 4
    late = work(folder / "b.db", sweep_of(pruner=pruner, pruner_warmup=4))
    assert min(reports for _, _, reports in late) >= 4
    assert any(state == "pruned" for _, state, _ in late)


def test_patience(folder: Path) -> None:
    """A trial that still gets better is not pruned, however bad it is; one that does not any more is."""
    for patience, expected in ((None, [2, 2]), (2, [9, 4])):
        path = folder / f"{patience}.db"
        ledger = Ledger.create(path, sweep_of(pruner="median", pruner_patience=patience), {})
        ends = []
        for number in range(3):
            ledger.begin(number)
            for report in range(1, EPOCHS + 1):
                good, falling, flat = 1 / report, 100 / report, 100.0 if report > 1 else 99.0
                value = (good, falling, flat)[number] if report > 1 or number else 200.0
                ledger.report(number, {**said(number, report), "metrics": {"val_loss": value}})
                if report < EPOCHS and ledger.should_prune(number):
                    ledger.finish(number, "pruned")
                    break
            else:
                ledger.finish(number, "complete")
            ends.append(ledger.trial(number).reports)
        ledger.close()
        assert ends[1:] == expected


def test_a_kill_between_a_pruners_note_and_its_decision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Successive halving notes each rung in the trial; with the note and without the decision, it would go on."""
    sweep = sweep_of(pruner="asha")
    ledger = Ledger.create(folder / "a.db", sweep, {})
    for number, value in ((0, 0.1), (1, 0.9)):
        ledger.begin(number)
        ledger.report(number, {**said(number, 1), "metrics": {"val_loss": value}})
        if number == 0:
            assert not ledger.should_prune(0)

    def dies(*arguments: Any) -> None:
        raise Killed

    monkeypatch.setattr("sweeps.record.ledger.write", dies)
    with pytest.raises(Killed):
        ledger.should_prune(1)
    monkeypatch.undo()
    ledger.close()
    resumed = Ledger(folder / "a.db")
    assert resumed.should_prune(1)
    assert resumed.should_prune(1)
    resumed.close()
