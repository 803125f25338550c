"""Budgets: which is used up, read from trials and time; by hand-made trials whose answer is plain to see."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from sweeps.record.ledger import Ledger
from sweeps.record.trial import TrialRecord
from sweeps.running import account
from sweeps.running.account import Account
from sweeps.running.budget import Budget, Spent, budget_of, duration, end_of_sweep, trials_since_best
from sweeps.sweep import Sweep
from trainable.config import TrainConfig

NOTHING = Spent()


def sweep_of(num_seeds: int = 1, mode: str = "min") -> Sweep:
    return Sweep(
        name="s",
        question="search",
        task="digits",
        train=TrainConfig(threads=1, epochs=4),
        space={"lr": {"log": [1e-4, 1e-1]}},
        num_trials=20,
        mode=mode,
        num_seeds=num_seeds,
    )


def trials_of(*values: float | str, over: Sequence[int] = ()) -> list[TrialRecord]:
    """A complete trial for each number, one in that state for each word; `over`: those that are off limits."""
    found = []
    for number, value in enumerate(values):
        metrics = {} if isinstance(value, str) else {"val_loss": value}
        state = value if isinstance(value, str) else "complete"
        record = TrialRecord(number, {"lr": 1e-3}, "complete", 1, 1, 1.0, metrics, None, {}, None, None, None)
        violations = {"x": 1.0} if number in over else {}
        found.append(dataclasses.replace(record, state=state, violations=violations))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("1.5h", 5400), ("1d", 86400), ("none", None)],
)
def test_times(text: str, seconds: float | None) -> None:
    assert duration("--max-time", text) == seconds


@pytest.mark.parametrize(
    ("trials", "since"),
    [
        (trials_of(3.0, 2.0, 1.0), 0),
        (trials_of(1.0, 2.0, 3.0), 2),
        (trials_of(1.0, "pruned", "diverged"), 2),  # they too brought nothing better
        (trials_of(1.0, "failed", "running", "waiting"), 0),  # these say nothing
        (trials_of("pruned", "diverged"), None),
        (trials_of(0.5, 1.0, 2.0, over=[0]), 1),  # what is off limits is no best
        (trials_of(1.0, 1.0, 1.0), 2),  # equal is not better
    ],
)
def test_since_the_best(trials: list[TrialRecord], since: int | None) -> None:
    assert trials_since_best(sweep_of(), trials) == since


def test_since_the_best_over_seeds() -> None:
    """Configurations count, by their means: 1.5, 2.5, and one that has not ended."""
    assert trials_since_best(sweep_of(num_seeds=2), trials_of(1.0, 2.0, 0.0, 5.0, 0.0, "running")) == 1


def test_the_larger_may_be_the_better() -> None:
    assert trials_since_best(sweep_of(mode="max"), trials_of(3.0, 2.0, 1.0)) == 2


@pytest.mark.parametrize(
    ("asked", "trials", "spent", "ended_by"),
    [
        ({"target": ["val_loss<=0.5"]}, trials_of(0.6, 0.5), NOTHING, "target"),
        ({"target": ["val_loss<=0.5"]}, trials_of(0.6, 0.51), NOTHING, None),
        ({"target": ["val_loss<=0.5"]}, trials_of(0.4, over=[0]), NOTHING, None),
        ({"target": ["val_loss<=0.5", "val_accuracy>=0.9"]}, trials_of(0.4), NOTHING, None),
        ({"plateau": "2"}, trials_of(1.0, 2.0, 3.0), NOTHING, "plateau"),
        ({"plateau": "2"}, trials_of(1.0, 2.0), NOTHING, None),
        ({"max_time": "1m"}, [], Spent(60.0), "max_time"),
        ({"max_time": "1m"}, [], Spent(59.9), None),
        ({"max_gpu_hours": "0.5"}, [], Spent(1.0, 1800.0), "max_gpu_hours"),
        ({"max_gpu_hours": "0.5"}, [], Spent(9e9, 1799.0), None),
        ({}, trials_of(0.0, 1.0, 2.0), Spent(9e9, 9e9), None),
    ],
)
def test_what_ends_a_sweep(
    asked: dict[str, str], trials: list[TrialRecord], spent: Spent, ended_by: str | None
) -> None:
    end = end_of_sweep(budget_of(asked), sweep_of(), trials, spent)
    assert (end and end.budget) == ended_by


def test_a_resume_keeps_changes_and_takes_away() -> None:
    before = budget_of({"max_time": "2h", "plateau": "3", "target": "val_loss<=1"})
    assert Budget.from_dict(json.loads(json.dumps(before.to_dict()))) == before
    assert budget_of({}, before) == before
    after = budget_of({"max_time": "3h", "target": "none"}, before)
    assert (after.max_time_s, after.plateau, after.target) == (10800, 3, ())


def test_time_adds_up_over_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 s, a crash, 30 s more: a minute is up, and the ledger says so; a longer one is not."""
    clock = [100.0]
    monkeypatch.setattr(account.time, "monotonic", lambda: clock[0])
    ledger = Ledger.create(tmp_path / "a.db", sweep_of(), {})
    first = Account(ledger, budget_of({"max_time": "1m"}), 100.0, gpus=2.0)
    clock[0] = 140.0
    assert not first.is_used_up(num_running=3)
    ledger.close()
    clock[0] = 5.0  # another machine, another clock
    ledger = Ledger(tmp_path / "a.db")
    second = Account(ledger, budget_of({"max_time": "1m"}), 5.0, gpus=2.0)
    clock[0] = 24.0
    assert not second.time_is_up(num_running=0)
    clock[0] = 35.0
    assert second.time_is_up(num_running=1)
    assert second.close(0) == []
    assert ledger.attribute("ended_by") == "max_time"
    assert ledger.attribute("spent") == {"seconds": 70.0, "gpu_seconds": 40 * 2 * 3 + 11 * 2}
    third = Account(ledger, budget_of({"max_time": "2m"}), 35.0, gpus=0.0)
    assert not third.is_used_up(0)
    assert ledger.attribute("ended_by") is None
    ledger.close()


def test_what_runs_when_the_target_is_reached(tmp_path: Path) -> None:
    """Whoever got there is complete with what it has; the others are given up. A resume decides the same."""
    ledger = Ledger.create(tmp_path / "a.db", sweep_of(), {})
    for number, value in enumerate((0.9, 0.1)):
        ledger.begin(number)
        said = {"epoch": 1.0, "metrics": {"val_loss": value}, "samples_per_s": 1.0, "notes": {}}
        ledger.report(number, {"number": 1, **said})
    ledger.close()
    ledger = Ledger(tmp_path / "a.db")
    spending = Account(ledger, budget_of({"target": "val_loss<=0.2"}), 0.0, gpus=0.0)
    assert spending.is_used_up(0)
    assert spending.close(0) == [0, 1]
    assert [record.state for record in ledger.trials()[:3]] == ["pruned", "complete", "waiting"]
    assert "--target" in str(ledger.trial(0).reason)
    ledger.close()
