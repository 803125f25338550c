"""Whether fresh samples are distributed as those of training: per column, how large a difference is and how sure.

Large by the population stability index, sure by a two-sample test; an alarm needs both. Pure functions of numbers:
knows no tasks. scipy is imported where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy

from trainable.release.histogram import Array, bin_names, counted, rounded
from trainable.release.holm import holm

LEVEL = 0.01  # how often fresh samples that are as training's raise an alarm, all checks together
WARN, ALARM = 0.1, 0.2  # the usual thresholds of the index (Siddiqi 2006, "Credit Risk Scorecards", chapter 8)
MIN_SAMPLES = 30  # with fewer, nothing is said about drift
MIN_EXPECTED = 5.0  # of each cell of a chi-square test (Cochran 1954)
MOST_COMPARED = 20_000  # numbers of a column that the two-sample test looks at


@dataclass(frozen=True)
class ColumnDrift:
    """One column. `psi` is corrected for what chance alone makes of it, `psi_raw` is not; `p` is of the column alone,
    `p_corrected` (Holm) holds for all columns together. `level`: none, warn or alarm."""

    name: str
    psi: float
    psi_raw: float
    method: str
    statistic: float
    p: float
    p_corrected: float
    level: str
    bins: tuple[str, ...]
    then: tuple[float, ...]  # shares of the bins in training
    now: tuple[float, ...]

    def moved(self) -> str:
        """The bin that moved the index most, in words: `above 0.5: 10% -> 41%`."""
        parts = [abs(b - a) for a, b in zip(self.then, self.now, strict=True)]
        most = max(range(len(parts)), key=parts.__getitem__)
        return f"{self.bins[most]}: {self.then[most]:.1%} -> {self.now[most]:.1%}"


def compared(
    baseline: Mapping[str, Mapping[str, Any]],
    columns: Mapping[str, Array],
    *,
    level: float = LEVEL,
    warn: float = WARN,
    alarm: float = ALARM,
) -> list[ColumnDrift]:
    """Every column of the baseline beside the fresh one of its name, the most drifted first.

    `baseline`: name -> `histogram.described(...)` of training; `columns`: name -> (N,) floats or (N,) or (N, T) codes.
    """
    raw = [_one(name, described, numpy.asarray(columns[name])) for name, described in baseline.items()]
    corrected = holm([one.p for one in raw])
    found = []
    for one, p in zip(raw, corrected, strict=True):
        sure = p <= level
        grade = "alarm" if sure and one.psi >= alarm else "warn" if sure and one.psi >= warn else "none"
        found.append(replace(one, p_corrected=p, level=grade))
    return sorted(found, key=lambda one: (one.level != "alarm", one.level != "warn", -one.psi, one.p_corrected))


def stability_index(then: Sequence[float], now: Sequence[float]) -> float:
    """The population stability index of two lists of shares, none of which is 0: the sum of
    (now - then) * ln(now / then) over the bins, the symmetric divergence of Jeffreys (1946)."""
    return math.fsum((b - a) * math.log(b / a) for a, b in zip(then, now, strict=True))


def expected_index(num_bins: int, num_then: float, num_now: float) -> float:
    """What the index is on average where nothing has changed (Yurdakul 2018, "Statistical Properties of the Population
    Stability Index": a chi-square with num_bins - 1 degrees of freedom, times 1/n + 1/m)."""
    return (num_bins - 1) * (1 / num_then + 1 / num_now)


def _one(name: str, described: Mapping[str, Any], values: Array) -> ColumnDrift:
    now, alike = counted(described, values)
    then = numpy.asarray(described["counts"], float)
    # As many independent values as these are worth.
    then_worth, now_worth = then / max([1.0, *(entry[1] for entry in described.get("alike", []))]), now / alike
    psi, psi_raw = _index(then_worth, now_worth)
    if described["kind"] == "numbers":
        test, (statistic, p) = "Kolmogorov-Smirnov", _kolmogorov(described["sample"], values)
    else:
        test, (statistic, p) = "chi-square", _chi_square(then_worth, now_worth)
    shares = [tuple((counts / max(counts.sum(), 1.0)).tolist()) for counts in (then, now)]
    return ColumnDrift(name, psi, psi_raw, test, statistic, p, p, "none", tuple(bin_names(described)), *shares)


def _index(then: Array, now: Array) -> tuple[float, float]:
    """The index less its mean under no change, not below 0; and as it is. Half a count more in each bin keeps an empty
    one from making it infinite."""
    used = (then + now) > 0
    then, now = then[used], now[used]
    if len(then) < 2 or not then.sum() or not now.sum():
        return 0.0, 0.0
    shares = [((counts + 0.5) / (counts.sum() + 0.5 * len(counts))).tolist() for counts in (then, now)]
    raw = stability_index(*shares)
    return max(0.0, raw - expected_index(len(then), float(then.sum()), float(now.sum()))), raw


def _kolmogorov(sample: Sequence[float | None], values: Array) -> tuple[float, float]:
    """The largest distance of the two distribution functions, and how likely it is by chance (the limit distribution of
    Kolmogorov and Smirnov); a gap is less than every number. Few samples and equal values make the true probability
    smaller than that, never larger."""
    from scipy.special import kolmogorov

    then = numpy.sort(numpy.asarray([-numpy.inf if value is None else value for value in sample], float))
    now = rounded(values)
    if len(now) > MOST_COMPARED:
        now = now[numpy.random.default_rng(0).choice(len(now), MOST_COMPARED, replace=False)]
    now = numpy.sort(numpy.where(numpy.isnan(now), -numpy.inf, now))
    if not len(then) or not len(now):
        return 0.0, 1.0
    both = numpy.concatenate([then, now])
    below = [numpy.searchsorted(one, both, side="right") / len(one) for one in (then, now)]
    distance = float(numpy.abs(below[0] - below[1]).max())
    return distance, float(kolmogorov(distance * math.sqrt(len(then) * len(now) / (len(then) + len(now)))))


def _chi_square(then: Array, now: Array) -> tuple[float, float]:
    """Pearson's test of homogeneity; categories too rare for it are taken together."""
    from scipy.stats import chi2_contingency

    table = numpy.stack([then, now])
    if not table.sum(1).all():
        return 0.0, 1.0
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    rare = expected.min(0) < MIN_EXPECTED
    if rare.any():
        table = numpy.concatenate([table[:, ~rare], table[:, rare].sum(1, keepdims=True)], axis=1)
    table = table[:, table.sum(0) > 0]
    if table.shape[1] < 2:
        return 0.0, 1.0
    found = chi2_contingency(table, correction=False)
    return float(found.statistic), float(found.pvalue)
