"""Several objectives and limits: the Pareto set, its knee, and what is off limits."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeps.record.trial import TrialRecord
from sweeps.searching.front import best_first, pareto_trials
from sweeps.searching.pareto import knee, pareto_set, violations
from sweeps.sweep import Sweep
from trainable.config import TrainConfig

MIN2 = ("min", "min")
values_of_two = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=1, max_size=12)
modes_of_two = st.tuples(st.sampled_from(["min", "max"]), st.sampled_from(["min", "max"]))


@settings(max_examples=60, deadline=None)
@given(values=values_of_two, modes=modes_of_two)
def test_the_pareto_set_is_that_of_optuna(values: list[tuple[int, int]], modes: tuple[str, str]) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=[f"{mode}imize" for mode in modes])
    for row in values:
        study.add_trial(optuna.trial.create_trial(values=[float(value) for value in row]))
    assert pareto_set(values, modes) == sorted(trial.number for trial in study.best_trials)


powers = st.integers(-20, 20)


@settings(max_examples=60, deadline=None)
@given(values=values_of_two, modes=modes_of_two, first=powers, second=powers)
def test_the_knee_does_not_depend_on_units(
    values: list[tuple[int, int]], modes: tuple[str, str], first: int, second: int
) -> None:
    """Seconds or milliseconds: the knee is the same trial, and always one of the Pareto set."""
    found = knee(values, modes)
    assert found in pareto_set(values, modes)
    scaled = [(a * 2.0**first, b * 2.0**second) for a, b in values]  # powers of two: exact
    assert knee(scaled, modes) == found


def test_a_knee_that_one_sees() -> None:
    """A curve 1/x: its knee is where both are small; the ends are the best of one and the worst of the other."""
    rows = [(x, 1 / x) for x in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)]
    assert rows[knee(rows, MIN2) or 0] == (1.0, 1.0)
    assert pareto_set(rows, MIN2) == list(range(7))
    assert knee([], MIN2) is None
    assert knee([(1.0, 2.0)], MIN2) == 0
    assert knee([(1.0, 2.0), (1.0, 2.0)], MIN2) == 0
    cube = [tuple(map(float, corner)) for corner in product((0, 1), repeat=3)]
    assert pareto_set(cube, ("min", "max", "min")) == [cube.index((0.0, 1.0, 0.0))]


@pytest.mark.parametrize(
    ("measured", "off"),
    [
        ({"mem": 1.5, "accuracy": 0.9}, [-0.5, -0.4]),
        ({"mem": 2.0, "accuracy": 0.5}, [0.0, 0.0]),
        ({"mem": 3.0, "accuracy": 0.25}, [1.0, 0.25]),
    ],
)
def test_how_far_off_limits(measured: dict[str, float], off: list[float]) -> None:
    limits: dict[str, Any] = {"mem": {"at_most": 2}, "accuracy": {"at_least": 0.5}}
    found = violations(limits, measured)
    assert list(found) == ["mem at most 2", "accuracy at least 0.5"]
    assert list(found.values()) == pytest.approx(off)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_was_not_measured_is_off_limits(value: float | None) -> None:
    measured = {} if value is None else {"mem": value}
    assert all(off > 0 for off in violations({"mem": {"at_most": 2}}, measured).values())
    assert violations({}, measured) == {}


def record(number: int, metrics: dict[str, float], state: Any = "complete", off: float = 0.0) -> TrialRecord:
    return TrialRecord(
        number, {}, state, 1, 1, 1.0, metrics, None, {}, None, None, None, violations={"mem at most 2": off}
    )  # fmt: skip


def search(**settings: Any) -> Sweep:
    space = {"lr": {"log": [1e-5, 1e-1]}}
    train = TrainConfig(threads=1)
    return Sweep(name="s", question="search", task="digits", train=train, space=space, num_trials=9, **settings)


def test_what_is_off_limits_is_never_the_best() -> None:
    trials = [
        record(0, {"val_loss": 0.5}),
        record(1, {"val_loss": 0.1}, off=0.5),
        record(2, {"val_loss": 0.01}, "pruned"),
        record(3, {"val_loss": 0.3}),
        record(4, {}, "diverged"),
        record(5, {"val_loss": 0.3}),
    ]
    assert [trial.number for trial in best_first(trials, search())] == [3, 5, 0]
    assert [trial.number for trial in best_first(trials, search(mode="max"))] == [0, 3, 5]
    assert best_first([], search()) == []


def test_the_order_of_several_objectives() -> None:
    """The knee, the rest of its Pareto set, and then what that set hides."""
    sweep = search(metrics=(("loss", "min"), ("accuracy", "max")))
    rows = [(0.1, 0.1), (0.2, 0.8), (0.9, 0.9), (0.3, 0.7), (0.95, 0.05), (0.0, 1.0)]
    trials = [record(n, {"loss": loss, "accuracy": accuracy}) for n, (loss, accuracy) in enumerate(rows[:-1])]
    trials.append(record(5, {"loss": 0.0, "accuracy": 1.0}, off=1e-9))
    assert [trial.number for trial in best_first(trials, sweep)] == [1, 0, 2, 3, 4]
    assert [trial.number for trial in pareto_trials(trials, sweep)] == [1, 0, 2]
