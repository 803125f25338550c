"""Intervals against scipy's, the textbook's and what resampling from a known population shows."""

from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from trainable.release.intervals import bootstrap_ratio, paired_difference, wilson


@given(st.integers(1, 2000), st.floats(0, 1), st.sampled_from([0.8, 0.95, 0.99]))
def test_wilsons_interval_is_scipys(total: int, share: float, level: float) -> None:
    hits = round(share * total)
    theirs = stats.binomtest(hits, total).proportion_ci(level, method="wilson")
    assert wilson(hits, total, level) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_wilsons_interval_of_the_textbook() -> None:
    """Newcombe 1998, table I: 81 of 263, and 0 of 20, by Wilson's score method."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


@pytest.mark.parametrize(("hits", "total"), [(0, 0), (3, 2), (-1, 5)])
def test_no_share_no_interval(hits: int, total: int) -> None:
    with pytest.raises(ValueError, match="are no share"):
        wilson(hits, total)


def test_the_bootstrap_of_many_samples_is_the_normal_interval() -> None:
    values = numpy.random.default_rng(1).normal(3.0, 2.0, 2000)
    low, high = bootstrap_ratio(values, numpy.ones(2000)) or (0.0, 0.0)
    half = 1.96 * values.std(ddof=1) / math.sqrt(2000)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.15 * half)
    assert bootstrap_ratio(values, numpy.ones(2000)) == (low, high), "seeded"


@pytest.mark.parametrize("num", [15, 100])
def test_the_bootstrap_holds_the_true_ratio_as_often_as_it_says(num: int) -> None:
    """Ratios of correlated sums and weights, as tokens in windows are; the true one is known. 95 % of 400 intervals
    is 380, with a standard deviation of 4.4; few units may cost a little."""
    random, held = numpy.random.default_rng(0), 0
    for trial in range(400):
        weights = random.integers(1, 20, num).astype(float)
        sums = 0.7 * weights + random.normal(0, 1, num) * numpy.sqrt(weights)
        low, high = bootstrap_ratio(sums, weights, seed=trial, resamples=500) or (0.0, 0.0)
        held += low <= 0.7 <= high
    assert 0.90 * 400 <= held <= 0.98 * 400


def test_one_unit_says_nothing_of_how_they_vary() -> None:
    assert bootstrap_ratio(numpy.array([3.0]), numpy.array([1.0])) is None


def test_a_loss_that_is_never_negative_has_no_negative_mean() -> None:
    values = numpy.array([3.0, *numpy.zeros(20)])
    low, high = bootstrap_ratio(values, numpy.ones(21)) or (1.0, 1.0)
    assert low == 0.0 < high
    assert bootstrap_ratio(-values, numpy.ones(21)) == (-high, 0.0)


def test_units_that_weigh_nothing_change_no_mean() -> None:
    weights = numpy.array([2.0, 2.0, 0.0, 2.0, 0.0])
    low, high = bootstrap_ratio(3 * weights, weights) or (0.0, 0.0)
    assert (low, high) == pytest.approx((3.0, 3.0))


def test_pairing_finds_what_two_intervals_would_not() -> None:
    """Hard samples are hard for both: each mean is uncertain by 0.1, their difference by a hundredth of that."""
    random = numpy.random.default_rng(0)
    hard = random.exponential(1.0, 400)
    ours, theirs = hard + random.normal(0, 0.01, 400), hard + 0.01 + random.normal(0, 0.01, 400)
    difference, ends = paired_difference(ours, theirs, numpy.ones(400))
    assert difference == pytest.approx(-0.01, abs=0.002)
    assert ends is not None
    assert ends[1] < 0
    apart = [bootstrap_ratio(side, numpy.ones(400)) or (0.0, 0.0) for side in (ours, theirs)]
    assert apart[0][1] > apart[1][0], "they overlap"


def test_outcomes_of_other_samples_are_not_paired() -> None:
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_difference(numpy.zeros(3), numpy.zeros(4), numpy.ones(3))
