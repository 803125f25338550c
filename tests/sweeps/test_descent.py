"""The speed of loss descent and the sentence that is made of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.answers.statistics import Comparison, Estimate
from sweeps.lr.descent import Speed, descent_speed, measure, starting_loss, verdict
from sweeps.lr.ranges import next_value

losses_of = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=200)


@pytest.mark.parametrize(
    ("losses", "speed"),
    [
        ([4.0, 2.0], 2.0),  # one step between
        ([3.0, 1.0, 2.0], 0.5),  # the middle step is in neither stretch
        ([10.0] + [5.0] * 15 + [2.0] * 4, 8 / 17.5),  # 1 of 20 steps first, 4 last; middles 0 and 17.5
        ([6.0, 4.0] + [9.0] * 30 + [1.0, 3.0] * 4, 3 / 35),  # 2 and 8 of 40; middles 0.5 and 35.5
        ([1.0, 3.0], -2.0),  # it rose
        ([2.0] * 10, 0.0),
    ],
)
def test_the_formula_by_hand(losses: list[float], speed: float) -> None:
    """A wrong count of the steps between, or of the stretches, changes these."""
    assert descent_speed(losses) == pytest.approx(speed, rel=1e-12)


@given(num_steps=st.integers(2, 500), slope=st.floats(-10, 10))
def test_a_straight_line_has_its_slope(num_steps: int, slope: float) -> None:
    """Off-by-one in the middles of the stretches: only the right distance gives the slope for every length."""
    assert descent_speed([7 - slope * step for step in range(num_steps)]) == pytest.approx(slope, rel=1e-6, abs=1e-9)


@given(losses=losses_of, shift=st.floats(-1e3, 1e3), factor=st.floats(0.01, 100))
def test_shift_and_scale(losses: list[float], shift: float, factor: float) -> None:
    """A constant in the loss (an entropy, a regularizer) must not change the ranking; a unit scales the speed."""
    speed = descent_speed(losses)
    assert speed is not None
    assert descent_speed([loss + shift for loss in losses]) == pytest.approx(speed, rel=1e-6, abs=1e-6)
    assert descent_speed([loss * factor for loss in losses]) == pytest.approx(speed * factor, rel=1e-6, abs=1e-6)
    assert descent_speed([-loss for loss in losses]) == pytest.approx(-speed, rel=1e-9, abs=1e-9)


@given(losses=losses_of, data=st.data(), bad=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_no_speed_where_any_loss_is_not_finite(losses: list[float], data: st.DataObject, bad: float) -> None:
    """NaN in the middle, which no mean sees, must not win a scan."""
    losses[data.draw(st.integers(0, len(losses) - 1))] = bad
    assert descent_speed(losses) is None
    assert measure(0, 1e-3, losses) is None


@pytest.mark.parametrize("losses", [[], [1.0]])
def test_no_speed_of_fewer_than_two_steps(losses: list[float]) -> None:
    """One batch an epoch: an answer in words, not a division by zero."""
    assert descent_speed(losses) is None


def test_where_a_trial_got_to() -> None:
    measured = measure(4, 1e-3, [10.0] + [5.0] * 15 + [1.0, 2.0, 3.0, 4.0])
    assert measured is not None
    assert (measured.number, measured.final_loss) == (4, 2.5)


def test_what_an_explosion_comes_down_from_is_no_descent() -> None:
    """A far too large rate throws the loss to 5000 in its first steps and ends at 100: it won the scan once."""
    calm, wild = [2.4, 2.2] + [2.0] * 30 + [1.8] * 8, [2.4, 5000.0] + [300.0] * 30 + [100.0] * 8
    ceiling = starting_loss(calm)
    assert ceiling == pytest.approx(2.3)
    assert descent_speed(wild, ceiling) == pytest.approx((2.3 - 100) / 35)
    assert descent_speed(calm, ceiling) == descent_speed(calm) == pytest.approx((2.3 - 1.8) / 35)
    assert starting_loss([]) == starting_loss([math.nan, 1.0]) == math.inf


@given(losses=losses_of, ceiling=st.floats(-1e3, 1e3))
def test_a_ceiling_never_makes_a_trial_faster(losses: list[float], ceiling: float) -> None:
    limited, free = descent_speed(losses, ceiling), descent_speed(losses)
    assert limited is not None
    assert free is not None
    assert limited <= free


def speeds(*values: tuple[float, float], final: float = 1.0) -> list[Speed]:
    found = [Speed(number, lr, speed, final) for number, (lr, speed) in enumerate(values)]
    return sorted(found, key=lambda speed: -speed.per_step)


def said(*values: tuple[float, float], tried: tuple[float, ...] = ()) -> str:
    return verdict(speeds(*values), tried or [lr for lr, _ in values])


def test_verdict_in_the_middle() -> None:
    """Which, by how much, and nothing to try where the winner has neighbours on both sides."""
    assert said((3e-3, 0.01), (1e-3, 0.04), (3e-4, 0.02)) == (
        "lr=0.001 makes the loss fall fastest: 0.04 per step, 2.00x as fast as the next (lr=0.0003)."
    )


def test_verdict_at_the_edges() -> None:
    """A winner at the edge of the range is no optimum: say which value to try."""
    assert said((3e-3, 0.04), (1e-3, 0.02), (3e-4, 0.01)).endswith("the largest value tried: try 0.01 next.")
    assert said((3e-3, 0.01), (1e-3, 0.02), (3e-4, 0.04)).endswith("the smallest value tried: try 0.0001 next.")
    # The largest one diverged: it was tried, so the winner is not at the edge.
    assert said((1e-3, 0.04), (3e-4, 0.02), tried=(1e-1, 1e-3, 3e-4)).endswith("(lr=0.0003).")
    assert said((1e-3, 0.04)).endswith("the only value tried: try 0.003 next.")


def test_verdict_of_close_ones() -> None:
    """A lead of a few per cent after one epoch is no finding; a lead of 20 % is one."""
    assert "but lr=0.001 is close (1.05x): more epochs would tell" in said((3e-3, 0.0105), (1e-3, 0.01), (3e-4, 0.005))
    assert "but lr=0.001 is close (1.00x)" in said((3e-3, 0.01), (1e-3, 0.01), (3e-4, 0.005))
    assert "1.20x as fast" in said((3e-3, 0.012), (1e-3, 0.01), (3e-4, 0.005))


def test_verdict_where_nothing_fell() -> None:
    """A ratio of negative speeds says nonsense; no winner is named where no loss fell."""
    words = said((3e-3, -0.02), (1e-3, -0.01))
    assert words == "No learning rate made the loss fall; lr=0.001 came closest; try 0.0003, or more epochs."
    words = said((3e-3, -0.02), (1e-3, 0.01), (3e-4, -0.01))
    assert "while the next, lr=0.0003, does not make it fall" in words
    assert "x as fast" not in words
    words = said((3e-3, 0.0), (1e-3, -0.01))
    assert words.startswith("No learning rate made the loss fall; lr=0.003 came closest")


def test_verdict_without_any_answer() -> None:
    """All trials failed or diverged: a sentence, not an error in min() or max()."""
    assert verdict([], [3e-3, 1e-3]).startswith("No learning rate has an answer")


def test_verdict_where_the_scan_was_too_long() -> None:
    """The fastest loss was down before the first 5 % were over, so a slower one seems to win: say that."""
    ranked = [Speed(1, 1e-3, 0.04, 0.5), Speed(0, 3e-3, 0.03, 0.2)]
    words = verdict(ranked, [3e-3, 1e-3, 3e-4])
    assert "but lr=0.003 ends lower (0.2 against 0.5): the scan is too long" in words


def over_seeds(*values: tuple[float, float, Comparison | None]) -> str:
    """The verdict on means over three seeds, the fastest first: (lr, speed, how the fastest compares with it)."""
    ranked = [
        Speed(number, lr, speed, 1.0, Estimate(speed, 0.0005, 3), beside)
        for number, (lr, speed, beside) in enumerate(values)
    ]
    return verdict(ranked, [lr for lr, _, _ in values])


def compared(tied: bool, seeds: int | None) -> Comparison:
    return Comparison(Estimate(0.01, 0.001, 3), 0.5 if tied else 0.001, tied, seeds)


def test_verdict_over_seeds_beyond_the_noise() -> None:
    assert over_seeds((1e-3, 0.04, None), (3e-3, 0.03, compared(False, 3)), (3e-4, 0.02, compared(False, 3))) == (
        "lr=0.001 makes the loss fall fastest: 0.04 +- 0.0005 per step over 3 seeds, 1.33x as fast as the next "
        "(lr=0.003), which is more than noise (95 % sure)."
    )
    words = over_seeds((1e-3, 0.04, None), (3e-3, -0.01, compared(False, 3)), (3e-4, -0.02, compared(False, 3)))
    assert "while the next, lr=0.003, does not make it fall" in words
    assert "more than noise" in over_seeds((3e-3, 0.04, None), (1e-3, 0.01, compared(False, 3)))
    # What diverged for some seed is not compared: it is named elsewhere.
    assert over_seeds((1e-3, 0.04, None), (1e-2, 0.05, None), (3e-4, 0.001, None)) == (
        "lr=0.001 makes the loss fall fastest: 0.04 +- 0.0005 per step over 3 seeds."
    )


def test_verdict_over_seeds_within_the_noise() -> None:
    """A tie names everyone in it, and what it would take; it never names a winner with certainty."""
    words = over_seeds((1e-3, 0.04, None), (3e-3, 0.039, compared(True, 9)), (3e-4, 0.02, compared(False, 3)))
    assert words == (
        "Tie: lr=0.001 (0.04 +- 0.0005 per step over 3 seeds) and lr=0.003 (0.039 +- 0.0005) are within the noise "
        "(95 %); about 6 more seeds would tell them apart (--seeds 9)."
    )
    words = over_seeds((1e-3, 0.04, None), (3e-3, 0.039, compared(True, 4)), (1e-4, 0.038, compared(True, None)))
    assert "lr=0.003 (0.039 +- 0.0005) and lr=0.0001 (0.038 +- 0.0005) are within" in words
    assert "more than 100 more seeds would be needed to tell all of them apart: take any" in words
    words = over_seeds((1e-3, 0.04, None), (3e-3, 0.039, compared(True, 4)))
    assert "about 1 more seed would tell" in words
    assert words.endswith("; lr=0.001 is the smallest value tried: try 0.0003 next.")
    assert "too few seeds are done to tell" in over_seeds(
        (1e-3, 0.04, None), (3e-3, 0.03, Comparison(None, 1, True, None))
    )


@pytest.mark.parametrize(
    ("lr", "larger", "smaller"),
    [
        (1e-3, 3e-3, 3e-4),
        (3e-3, 1e-2, 1e-3),
        (3e-4, 1e-3, 1e-4),
        (1.0, 3.0, 0.3),
        (2e-3, 1e-2, 1e-3),  # 3e-3 is less than twice as large
        (5e-3, 1e-2, 1e-3),
        (1e-7, 3e-7, 3e-8),
    ],
)
def test_the_ladder(lr: float, larger: float, smaller: float) -> None:
    """Rounding must not offer the value that was just tried, nor skip a rung."""
    assert next_value(lr, larger=True) == larger
    assert next_value(lr, larger=False) == smaller


@given(st.floats(1e-30, 1e30))
def test_the_next_value_is_a_real_step_on_the_ladder(lr: float) -> None:
    """Always 1 or 3 times a power of ten, at least about twice away and never a decade or more."""
    for found, ratio in (
        (next_value(lr, larger=True), next_value(lr, larger=True) / lr),
        (next_value(lr, larger=False), lr / next_value(lr, larger=False)),
    ):
        assert 1.99 < ratio < 7
        assert f"{found:e}"[:8] in ("1.000000", "3.000000")
