"""Decay: p-values as scipy has them, no false alarm on clean outcomes, real decay found."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from scipy import stats

from trainable.release.decay import Decay, decayed
from trainable.release.outcomes import Outcomes

Array = numpy.ndarray[Any, Any]
LEVEL = 0.005  # as labelled data have it by default


def outcomes(sums: Array, weight: Array | None = None, name: str = "x") -> Outcomes:
    values = sums.astype(float)
    return Outcomes(numpy.ones(len(values)) if weight is None else weight, {name: values}, len(values))


def one(then: Array, now: Array, mode: str = "min") -> Decay:
    (found,) = decayed(outcomes(then), outcomes(now), {"x": mode}, level=LEVEL)
    return found


def test_shares_are_compared_as_scipy_does() -> None:
    then, now = numpy.repeat([1, 0], [190, 10]), numpy.repeat([1, 0], [80, 20])
    wanted = stats.fisher_exact([[80, 20], [190, 10]], alternative="less").pvalue
    found = one(then, now, "max")
    assert (found.method, found.level) == ("Fisher's exact", "alarm")
    assert found.p == pytest.approx(wanted)
    assert found.worse == pytest.approx(0.15)
    assert one(1 - then, 1 - now, "min").p == pytest.approx(wanted)  # the same as a share of misses
    assert one(then, now, "min").p > 0.99  # of misses, more hits are none


def test_means_are_compared_as_scipy_does() -> None:
    random = numpy.random.default_rng(0)
    then, now = random.gamma(2, 1, 300), random.gamma(2, 1.3, 80)
    wanted = stats.ttest_ind(now, then, equal_var=False, alternative="greater").pvalue
    found = one(now, then, "max")
    assert found.method.startswith("Welch's t")
    assert one(then, now, "max").p == pytest.approx(1 - wanted, rel=1e-6)
    close = random.gamma(2, 1.05, 80)
    usual = stats.ttest_ind(close, then, equal_var=False, alternative="greater").pvalue
    assert usual > 0.05
    assert one(then, close).p == pytest.approx(usual, rel=1e-6)
    assert found.now["low"] < found.now["mean"] < found.now["high"]


@pytest.mark.parametrize("nums", [(120, 40), (40, 120)])
def test_a_doubted_mean_is_compared_as_scipy_permutes(nums: tuple[int, int]) -> None:
    random = numpy.random.default_rng(7)
    then, now = random.gamma(2, 1, nums[0]), random.gamma(2, 1.3, nums[1])

    def statistic(x: Array, y: Array, axis: int) -> Any:
        spread = x.var(axis=axis, ddof=1) / x.shape[axis] + y.var(axis=axis, ddof=1) / y.shape[axis]
        return (x.mean(axis=axis) - y.mean(axis=axis)) / spread**0.5

    wanted = stats.permutation_test(
        (now, then), statistic, n_resamples=20_000, alternative="greater", vectorized=True, rng=random
    ).pvalue
    found = one(then, now)
    assert found.method == "Welch's t, permuted"
    assert 0.0005 < wanted < 0.05
    assert found.p == pytest.approx(wanted, rel=0.3)


def test_what_nobody_gave_a_direction_is_shown_and_not_judged() -> None:
    then, now = numpy.ones(50), numpy.full(50, 9.0)
    (found,) = decayed(outcomes(then), outcomes(now), {}, level=LEVEL)
    assert (found.method, found.level, found.worse) == (None, "none", 8.0)


def test_metrics_are_corrected_together() -> None:
    random = numpy.random.default_rng(1)
    then, now = random.normal(size=200), random.normal(0.2, 1, 200)
    several = [Outcomes(numpy.ones(200), {"a": x, "b": x, "c": x}, 200) for x in (then, now)]
    found = decayed(*several, {"a": "min", "b": "min", "c": "min"}, level=LEVEL)
    assert [decay.p_corrected for decay in found] == pytest.approx([3 * found[0].p] * 3)


def test_no_spread_at_all() -> None:
    assert one(numpy.full(40, 2.0), numpy.full(40, 2.0)).level == "none"
    assert one(numpy.full(40, 2.0), numpy.full(40, 2.5)).level == "alarm"
    assert one(numpy.full(40, 2.0), numpy.full(40, 1.5)).level == "none"


@pytest.mark.parametrize(("kind", "num"), [("hits", 50), ("hits", 270), ("heavy", 50), ("heavy", 1000)])
def test_no_false_alarms(kind: str, num: int) -> None:
    """200 fresh draws, each against a test part of its own: accuracy near 1, and a loss whose mean few samples make."""
    random = numpy.random.default_rng(num)

    def drawn(count: int) -> Array:
        return (random.random(count) < 0.97).astype(float) if kind == "hits" else random.lognormal(-3, 2, count)

    mode = "max" if kind == "hits" else "min"
    alarms = sum(one(drawn(270), drawn(num), mode).level == "alarm" for _ in range(200))
    assert alarms <= 4


def test_decay_is_found() -> None:
    """From 97 % to 85 % with 200 samples, and a loss that doubled: in at least 48 of 50 draws."""
    random = numpy.random.default_rng(2)
    found = [0, 0]
    for _ in range(50):
        then, now = random.random(270) < 0.97, random.random(200) < 0.85
        found[0] += one(then, now, "max").level == "alarm"
        found[1] += one(random.gamma(1, 0.2, 270), random.gamma(1, 0.4, 200)).level == "alarm"
    assert min(found) >= 48


def test_neighbours_in_a_text_are_no_independent_samples() -> None:
    """Windows whose losses wander: as if each told something of its own, clean texts would alarm every few times."""
    random = numpy.random.default_rng(3)
    weight = numpy.full(256, 32.0)
    alarms, naive = 0, 0
    for _ in range(60):
        sides = []
        for _ in range(2):
            steps, level = random.normal(0, 1, 256), numpy.zeros(256)
            for place in range(1, 256):
                level[place] = 0.8 * level[place - 1] + steps[place]
            sides.append(outcomes(32 * (3 + level), weight))
        alarms += decayed(*sides, {"x": "min"}, level=0.025)[0].level == "alarm"
        plain = [outcomes(side.sums["x"] / 32) for side in sides]
        naive += decayed(*plain, {"x": "min"}, level=0.025)[0].level == "alarm"
    assert alarms <= 5
    assert naive > 12
