"""Slow validation, and runs that differ: by numbers that were put there."""

from __future__ import annotations

import pytest

from sweeps.answers.doubts import slow_validation, spread_between_seeds


def reports(train_s: float, val_s: float, epochs: int = 3) -> list[dict[str, float]]:
    """Epochs of 1,000 samples."""
    return [
        {"epoch": float(epoch), "seconds": epoch * (train_s + val_s), "samples_per_s": 1000 / train_s}
        for epoch in range(1, epochs + 1)
    ]


def test_validation_that_takes_three_quarters_of_the_time() -> None:
    said = slow_validation(reports(1.0, 3.0), 1000)
    assert said is not None
    assert "75%" in said
    assert "eval_every" in said


def test_validation_that_is_quick_or_unknown() -> None:
    assert slow_validation(reports(1.0, 0.3), 1000) is None
    assert slow_validation([], 1000) is None
    assert slow_validation(reports(1.0, 3.0), None) is None
    assert slow_validation([{"epoch": 1.0, "seconds": 1.0, "samples_per_s": 0.0}], 1000) is None


def test_seeds_that_differ() -> None:
    """1, 2 and 3: their standard deviation is 1, half of their mean."""
    said = spread_between_seeds([1.0, 2.0, 3.0], "val_loss")
    assert said is not None
    assert "val_loss differs by 50% (1 to 3 over 3 seeds)" in said


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.05, 0.98], [1.0, float("nan")], [-1.0, 1.0]])
def test_seeds_that_agree_or_say_nothing(values: list[float]) -> None:
    assert spread_between_seeds(values, "val_loss") is None
