"""How sure a mean over samples is: intervals of shares and of means, and of the difference of two models.

Pure functions of numbers, seeded; knows no tasks and no models.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy

Numbers = numpy.ndarray[Any, Any]
LEVEL = 0.95
RESAMPLES = 2000  # the ends of a 95 % interval then move by about 2 % of its width from seed to seed
_AT_A_TIME = 4_000_000  # drawn numbers in memory


def wilson(hits: float, total: float, level: float = LEVEL) -> tuple[float, float]:
    """The interval of a share of hits (Wilson 1927): right for few samples, and for shares of 0 and 1.

    Raises ValueError for no samples, or more hits than those.
    """
    if total <= 0 or not 0 <= hits <= total:
        raise ValueError(f"{hits:g} hits of {total:g} are no share; give at least one sample, and at most all as hits")
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = hits / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    # At 0 and 1 an end is that very number, which rounding would miss.
    return (0.0 if hits == 0 else max(0.0, centre - half)), (1.0 if hits == total else min(1.0, centre + half))


def bootstrap_ratio(
    sums: Numbers, weights: Numbers, level: float = LEVEL, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """The interval of sums / weights, both (U,), whose units are drawn anew with replacement (Efron 1979).

    Its ends are moved out by the root of U / (U - 1): percentiles alone are too narrow for few units. None for fewer
    than two units, which say nothing of how they vary. Units of weight 0 count for nothing, but are drawn too.
    """
    num = len(sums)
    if num < 2:
        return None
    mean = float(sums.sum() / weights.sum())
    random, means = numpy.random.default_rng(seed), []
    for first in range(0, resamples, chunk := max(1, _AT_A_TIME // num)):
        drawn = random.integers(0, num, (min(chunk, resamples - first), num))
        # A draw of nothing but units of weight 0 has no mean.
        totals = weights[drawn].sum(1)
        means.append(sums[drawn].sum(1)[totals > 0] / totals[totals > 0])
    low, high = numpy.quantile(numpy.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    stretch = math.sqrt(num / (num - 1))
    low, high = mean - stretch * (mean - float(low)), mean + stretch * (float(high) - mean)
    # What is never negative, as most losses are, has no negative mean.
    return max(low, 0.0) if (sums >= 0).all() else low, min(high, 0.0) if (sums <= 0).all() else high


def paired_difference(
    ours: Numbers, theirs: Numbers, weights: Numbers, level: float = LEVEL, seed: int = 0
) -> tuple[float, tuple[float, float] | None]:
    """By how much the mean of `ours` is above that of `theirs`, and the interval of that; all (U,), unit by unit.

    Paired, since both models met the same samples: what is hard for one is mostly hard for the other.
    """
    if not len(ours) == len(theirs) == len(weights):
        raise ValueError(f"{len(ours)} and {len(theirs)} outcomes cannot be paired; give those of the same samples")
    return float((ours - theirs).sum() / weights.sum()), bootstrap_ratio(ours - theirs, weights, level, seed)
