"""How sure a comparison over seeds is: means with their errors, paired tests, how many more seeds would tell.

Pure functions of numbers: knows no trials and no sweeps. scipy is imported where it is used: one seed needs none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


def paired_p(differences: Sequence[float]) -> float:
    """How likely a mean difference at least as large as this one is where there is none: Student's t test on paired
    differences, both directions (Student 1908, as scipy.stats.ttest_rel). 1 where fewer than two were given."""
    if len(differences) < 2:
        return 1.0
    found = estimate(differences)
    assert found.error is not None
    if found.error == 0:  # the same difference for every seed: there is no noise to hide it in
        return 1.0 if found.mean == 0 else 0.0
    from scipy.special import stdtr

    return float(2 * stdtr(found.num - 1, -abs(found.mean / found.error)))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values, each raised so that at `LEVEL` a false claim among all of them together is no likelier than
    that (Holm 1979, "A simple sequentially rejective multiple test procedure"; it assumes no independence)."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for position, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - position) * p_values[index]))
        adjusted[index] = largest
    return adjusted


@dataclass(frozen=True)
class Comparison:
    """The first of several against another one: the mean of their paired differences, whether that is within the
    noise (`tied`), and how many seeds in all would tell them apart (None: more than `MOST_SEEDS` further ones)."""

    difference: Estimate | None
    p: float
    tied: bool
    seeds: int | None


def compare_with_first(values: Sequence[Mapping[int, float]]) -> list[Comparison]:
    """The first (the winner) compared with each of the others. values: of each, one a seed; pairs share a seed.

    The winner was picked by the same numbers, and whoever looks for the largest difference finds one. So all pairs
    count as tested, not only those with the winner (Tukey 1953 makes this point for ranges; Holm's correction, unlike
    his, holds for unequal spreads, and large learning rates do spread more). tests/sweeps/test_statistics.py
    simulates it.
    """
    pairs = list(itertools.combinations(range(len(values)), 2))
    differences = {pair: _paired(values[pair[0]], values[pair[1]]) for pair in pairs}
    adjusted = dict(zip(pairs, holm([paired_p(differences[pair]) for pair in pairs]), strict=True))
    undecided = sum(p > LEVEL for p in adjusted.values())
    found = []
    for pair in pairs[: max(0, len(values) - 1)]:  # (0, 1), (0, 2), ...
        paired, tied = differences[pair], adjusted[pair] > LEVEL
        seeds = seeds_to_tell(paired, LEVEL / undecided) if tied else len(paired)
        found.append(Comparison(estimate(paired) if paired else None, adjusted[pair], tied, seeds))
    return found


def _paired(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]


def seeds_to_tell(differences: Sequence[float], level: float) -> int | None:
    """About how many seeds in all a paired t test at `level` needs, to find a mean difference of this size and
    spread with the probability `POWER`: from the noncentral t distribution (Cohen 1988, chapter 2).

    None: more than `MOST_SEEDS` further ones, or too few differences to know. A guess, as the spread of two or three
    seeds is one.
    """
    if len(differences) < 2:
        return None
    found = estimate(differences)
    assert found.error is not None
    if found.error == 0:
        return None if found.mean == 0 else max(2, found.num)
    effect = abs(found.mean) / (found.error * math.sqrt(found.num))
    for num in range(found.num + 1, found.num + MOST_SEEDS + 1):
        if power(effect, num, level) >= POWER:
            return num
    return None


def power(effect: float, num: int, level: float) -> float:
    """How likely `num` paired differences, whose mean is `effect` standard deviations, pass a t test at `level`."""
    from scipy.special import nctdtr, stdtrit

    bar = float(stdtrit(num - 1, 1 - level / 2))
    shift = effect * math.sqrt(num)
    missed = float(nctdtr(num - 1, shift, bar) - nctdtr(num - 1, shift, -bar))
    # scipy's series end (with no number) far from the bar, where there is nothing left to work out.
    return float(shift > bar) if math.isnan(missed) else 1 - missed
