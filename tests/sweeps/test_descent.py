"""The speed of loss descent and the sentence that is made of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.descent import Speed, descent_speed, measure, next_value, rank, verdict

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


def test_rank_leaves_out_and_breaks_ties() -> None:
    """Equal speeds must not be ranked by chance, nor may a trial without a speed have a rank."""
    fast, slow, same = Speed(2, 1e-3, 0.5, 1.0), Speed(0, 1e-4, 0.1, 2.0), Speed(1, 1e-2, 0.5, 1.0)
    assert rank([None, fast, slow, same]) == [same, fast, slow]
    measured = measure(4, 1e-3, [10.0] + [5.0] * 15 + [1.0, 2.0, 3.0, 4.0])
    assert measured is not None
    assert (measured.number, measured.final_loss) == (4, 2.5)


def speeds(*values: tuple[float, float], final: float = 1.0) -> list[Speed]:
    return rank(Speed(number, lr, speed, final) for number, (lr, speed) in enumerate(values))


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
