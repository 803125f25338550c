"""What two curves say together: curves made by hand, whose answer anybody sees who draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeps.answers.diagnosis import ADVICE, diagnose


def reports(train: Sequence[float], val: Sequence[float | None], untrained: float | None = 2.3) -> list[dict[str, Any]]:
    """As the history keeps them; the first step's loss is that of the untrained model."""
    found: list[dict[str, Any]] = []
    for index, (a, b) in enumerate(zip(train, val, strict=True)):
        metrics = {"train_loss": a} | ({} if b is None else {"val_loss": b})
        losses = [untrained if index == 0 and untrained is not None else a, a]
        found.append({"epoch": index + 1.0, "metrics": metrics, "curves": {"loss": losses}})
    return found


def falling(to: float, tau: float, epochs: int, start: float = 2.3) -> list[float]:
    """An exponential descent from the untrained model's loss, with this time constant in epochs."""
    return [to + (start - to) * math.exp(-epoch / tau) for epoch in range(1, epochs + 1)]


CURVES = {
    # Validation turns at its third epoch, and training falls on: the picture of every textbook.
    "overfit": (falling(0.02, 3, 12), [1.4, 0.9, 0.7, 0.75, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5]),
    # Validation levels off at half of the way down that training went.
    "overfit at a distance": (falling(0.01, 1.5, 12), falling(1.2, 1.0, 12)),
    "too_short": (falling(0.1, 4, 6), falling(0.15, 4, 6)),
    "too_short by two epochs": ([1.9, 1.1], [1.4, 0.8]),
    "too_short and slow": ([2.28, 2.22, 2.15, 2.08], [2.25, 2.19, 2.12, 2.05]),
    "too_short after a lucky epoch": ([1.6, 0.7, 0.5], [0.9, 0.4, 0.38]),
    "underfit": (falling(1.9, 1, 12), falling(1.95, 1, 12)),
    "underfit: nothing learned": ([2.31, 2.30, 2.31, 2.30, 2.29], [2.30, 2.31, 2.30, 2.30, 2.31]),
    "fits": (falling(0.1, 1, 12), falling(0.2, 1, 12)),
    "fits with dropout": (falling(0.3, 1, 12), falling(0.2, 1, 12)),  # validation has none, and is lower
    "unstable": ([1.5, 0.8, 0.5, 0.9, 1.4, 1.5], [1.2, 0.7, 0.5, 1.0, 1.5, 1.5]),
    "diverged": ([1.5, math.nan], [1.4, None]),
    "diverged at validation": ([1.5, 1.2], [1.4, math.inf]),
}


@pytest.mark.parametrize("name", CURVES)
def test_what_anybody_sees(name: str) -> None:
    kind = name.split()[0].rstrip(":")
    found = diagnose(reports(*CURVES[name]))
    assert found is not None
    assert found.kind == kind, found.words
    assert found.advice == ADVICE[kind]


def test_the_words_have_the_numbers() -> None:
    found = diagnose(reports(*CURVES["overfit"]))
    assert found is not None
    assert "val_loss rose from 0.7" in found.words
    assert "to about 1.3," in found.words  # the lower median of the last four: 1.2, 1.3, 1.4, 1.5


def test_there_is_nothing_to_say_of_one_epoch_or_of_one_curve() -> None:
    assert diagnose([]) is None
    assert diagnose(reports([1.0], [0.9])) is None
    assert diagnose(reports([1.0, 0.8, 0.7], [None, None, 0.6])) is None  # evaluated once
    assert diagnose([{"epoch": 1.0, "metrics": {"train_loss": 1.0}}] * 5) is None


def test_validation_now_and_then() -> None:
    """--set eval_every=2: what was not evaluated says nothing, and hides nothing."""
    train, val = CURVES["overfit"]
    found = diagnose(reports(train, [value if index % 2 else None for index, value in enumerate(val)]))
    assert found is not None
    assert found.kind == "overfit"


def test_without_curves_the_first_report_is_the_start() -> None:
    train, val = CURVES["overfit"]
    plain = [{"metrics": report["metrics"]} for report in reports(train, val)]
    found = diagnose(plain)
    assert found is not None
    assert found.kind == "overfit"


@pytest.mark.parametrize("name", ["overfit", "fits", "underfit", "too_short"])
@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_one_bad_or_lucky_validation_changes_nothing(name: str, factor: float) -> None:
    train, val = CURVES[name]
    for index in range(len(val)):
        if name == "too_short" and index >= len(val) - 2:
            continue  # whether it falls on is a question of just these
        noisy = [value * factor if at == index else value for at, value in enumerate(val)]
        found = diagnose(reports(train, noisy))
        assert found is not None
        assert found.kind == name, (index, found.words)


def test_training_that_still_falls_is_not_said_to_be_through() -> None:
    """Six epochs of digits: the end of the descent is not the end of learning."""
    found = diagnose(reports([1.593, 0.812, 0.527, 0.420, 0.390, 0.345], [0.612, 0.373, 0.232, 0.239, 0.151, 0.188]))
    assert found is not None
    assert found.kind == "fits"
    assert "while train_loss still falls" in found.words
    assert "more epochs may help a little" in found.advice


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-0.02, 0.02), min_size=15, max_size=15))
def test_noise_on_a_level_curve_is_no_overfitting(noise: list[float]) -> None:
    """Of 2 % of what was gained, in any order: no draw of it reads as a turn, nor as a descent that goes on."""
    val = [value + off for value, off in zip(falling(0.2, 0.8, 15), noise, strict=True)]
    found = diagnose(reports(falling(0.1, 0.8, 15), val))
    assert found is not None
    assert found.kind == "fits", found.words


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["overfit", "overfit at a distance", "too_short", "fits", "unstable"]), st.floats(0.01, 100))
def test_the_unit_of_the_loss_does_not_matter(name: str, unit: float) -> None:
    train, val = CURVES[name]
    scaled = reports([a * unit for a in train], [b * unit for b in val if b is not None], 2.3 * unit)
    first, second = diagnose(reports(train, val)), diagnose(scaled)
    assert first is not None
    assert second is not None
    assert first.kind == second.kind


def test_the_order_of_what_is_found() -> None:
    """A curve that has turned is overfitting, however much of the loss is left."""
    found = diagnose(reports([2.1, 2.0, 1.95, 1.9, 1.85, 1.8], [2.0, 1.9, 2.1, 2.2, 2.3, 2.4]))
    assert found is not None
    assert found.kind == "overfit"
