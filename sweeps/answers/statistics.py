"""How sure a comparison over seeds is: means with their errors, paired tests, how many more seeds would tell.

Pure functions of numbers: knows no trials and no sweeps. scipy is imported where it is used: one seed needs none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainable.release.holm import holm

LEVEL = 0.05  # how often a difference is claimed where there is none
POWER = 0.80  # how often the number of seeds that is advised finds a difference of the size seen
MOST_SEEDS = 100  # a difference that needs more than so many further seeds is as good as none


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its standard error, which one seed does not have."""

    mean: float
    error: float | None
    num: int

    def __str__(self) -> str:
        """`0.0312 +- 0.0004`: the mean as exact as its error allows."""
        if self.error is None:
            return f"{self.mean:.3g}"
        digits = 3
        if self.error > 0 and self.mean != 0:
            digits = min(max(2 + _exponent(self.mean) - _exponent(self.error), 1), 8)
        return f"{self.mean:.{digits}g} +- {self.error:.2g}"


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value)))


def estimate(values: Sequence[float]) -> Estimate:
    """Mean, and standard deviation (with n - 1) over the root of n. ValueError for no values."""
    num = len(values)
    if num == 0:
        raise ValueError("there is no mean of no values; give at least one")
    mean = math.fsum(values) / num
    if num == 1:
        return Estimate(mean, None, 1)
    return Estimate(mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (num - 1) / num), num)


def t_test(mean: float, error: float, freedom: int) -> float:
    """How likely a mean at least so far from 0 is where the true one is 0: Student's t, both directions (1908)."""
    if error == 0:  # the same difference for every seed: there is no noise to hide it in
        return 1.0 if mean == 0 else 0.0
    from scipy.special import stdtr

    return float(2 * stdtr(freedom, -abs(mean / error)))


@dataclass(frozen=True)
class Comparison:
    """The first of several against another one: their mean difference (None: there were not two seeds), whether that
    is within the noise (`tied`), how many seeds in all would tell them apart (None: more than `MOST_SEEDS` further)."""

    difference: Estimate | None
    p: float
    tied: bool
    seeds: int | None

    @property
    def is_known(self) -> bool:
        """Whether there were seeds enough to tell anything."""
        return self.difference is not None


def compare_with_first(rows: Sequence[Sequence[float]]) -> list[Comparison]:
    """The first row (the winner) compared with each of the others; a row has one value a seed, all the same seeds.

    Student's t on paired differences. Three things make it honest with few seeds (tests/sweeps/test_statistics.py
    simulates them):
    - The spread of a difference is taken from all rows at once, less what a seed does to all of them (a randomized
      block design: Fisher 1935; Cochran and Cox 1957, chapter 4), as three seeds of one pair say next to nothing.
    - Where the pair itself spreads more than that, its own spread counts: large learning rates are noisier.
    - The winner was picked by the same numbers, and whoever looks for the largest difference finds one. So all pairs
      count as tested, not only those with the winner (Tukey 1953), by Holm's correction.
    With two rows this is the plain paired t test.
    """
    num = min(map(len, rows), default=0)
    pairs = list(itertools.combinations(range(len(rows)), 2))
    if num < 2 or len(rows) < 2:
        return [Comparison(None, 1.0, True, None) for _ in rows[1:]]
    freedom = (len(rows) - 1) * (num - 1)
    shared = math.sqrt(2 * _residual_variance(rows) / num)
    found = {}
    for one, other in pairs:
        own = estimate([a - b for a, b in zip(rows[one], rows[other], strict=True)])
        found[one, other] = Estimate(own.mean, max(own.error or 0.0, shared), num)
    raw = [t_test(difference.mean, difference.error or 0.0, freedom) for difference in found.values()]
    adjusted = dict(zip(pairs, holm(raw), strict=True))
    undecided = sum(p > LEVEL for p in adjusted.values())
    comparisons = []
    for pair in pairs[: len(rows) - 1]:  # (0, 1), (0, 2), ...
        tied = adjusted[pair] > LEVEL
        seeds = seeds_to_tell(found[pair], len(rows), LEVEL / undecided) if tied else num
        comparisons.append(Comparison(found[pair], adjusted[pair], tied, seeds))
    return comparisons


def _residual_variance(rows: Sequence[Sequence[float]]) -> float:
    """Of one value, less its row's mean and its seed's."""
    num = len(rows[0])
    of_rows = [math.fsum(row) / num for row in rows]
    of_seeds = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    whole = math.fsum(of_rows) / len(rows)
    squares = math.fsum(
        (value - of_row - of_seed + whole) ** 2
        for row, of_row in zip(rows, of_rows, strict=True)
        for value, of_seed in zip(row, of_seeds, strict=True)
    )
    return squares / ((len(rows) - 1) * (num - 1))


def seeds_to_tell(difference: Estimate, num_rows: int, level: float) -> int | None:
    """About how many seeds in all find a difference of this size and spread, among so many rows and at this level,
    with the probability `POWER` (Cohen 1988, chapter 2).

    None: more than `MOST_SEEDS` further ones. A guess, as the spread of a few seeds is one.
    """
    if not difference.error:
        return None
    effect = abs(difference.mean) / (difference.error * math.sqrt(difference.num))
    for num in range(difference.num + 1, difference.num + MOST_SEEDS + 1):
        if power(effect * math.sqrt(num), (num_rows - 1) * (num - 1), level) >= POWER:
            return num
    return None


def power(shift: float, freedom: int, level: float) -> float:
    """How likely a t test at `level` finds a mean that lies `shift` of its standard errors from 0: from the
    noncentral t distribution."""
    from scipy.special import nctdtr, stdtrit

    bar = float(stdtrit(freedom, 1 - level / 2))
    missed = float(nctdtr(freedom, shift, bar) - nctdtr(freedom, shift, -bar))
    # scipy's series end (with no number) far from the bar, where there is nothing left to work out.
    return float(shift > bar) if math.isnan(missed) else 1 - missed
