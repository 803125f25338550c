"""Whether a model does worse on fresh samples than on its test samples: metric by metric, how much and how sure.

Pure functions of outcomes; knows no tasks. scipy is imported where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy

from trainable.release.holm import holm
from trainable.release.outcomes import Outcomes

LEAST_BLOCKS = 16  # of neighbouring outcomes, by which a mean's error is estimated: fewer say little of it themselves

DOUBTED = 0.05  # a p-value above needs no second look
LEAST_DEALS, MOST_DEALS = 999, 4999  # of samples dealt out anew
DEALT, AT_A_TIME = 20_000_000, 2_000_000  # samples in all, and in memory


@dataclass(frozen=True)
class Decay:
    """One metric. then, now: `mean`, `low`, `high` (95 %); worse: by how much it is worse now, below 0 where it is
    better; p_corrected: how likely so much is by chance, over all metrics (Holm); method: None where it is not judged,
    since nobody said whether more is better. `level`: none or alarm."""

    metric: str
    then: Mapping[str, Any]
    now: Mapping[str, Any]
    worse: float
    method: str | None
    p: float
    p_corrected: float
    level: str


def decayed(then: Outcomes, now: Outcomes, modes: Mapping[str, str], *, level: float) -> list[Decay]:
    """Every metric that both have. modes: metric -> `min` (less is better) or `max`; others are shown, not judged."""
    before, after = then.metrics(), now.metrics()
    found = []
    for name in before:
        if name not in after:
            continue
        higher = after[name]["mean"] - before[name]["mean"]
        shares = before[name]["method"] == after[name]["method"] == "wilson"
        test, p = (None, 1.0) if name not in modes else _tested(name, then, now, shares, modes[name] == "max")
        worse = -higher if modes.get(name) == "max" else higher
        found.append(Decay(name, before[name], after[name], worse, test, p, p, "none"))
    judged = [one for one in found if one.method is not None]
    corrected = dict(zip((one.metric for one in judged), holm([one.p for one in judged]), strict=True))
    return [
        replace(one, p_corrected=corrected[one.metric], level="alarm" if corrected[one.metric] <= level else "none")
        if one.method is not None
        else one
        for one in found
    ]


def _tested(name: str, then: Outcomes, now: Outcomes, shares: bool, more_is_better: bool) -> tuple[str, float]:
    """The test's name, and how likely fresh samples look at least so bad where they are as good as the test samples."""
    old, new = then.sums[name], now.sums[name]
    if shares:
        return "Fisher's exact", _fisher(old, new) if more_is_better else _fisher(1 - old, 1 - new)
    sign = -1.0 if more_is_better else 1.0
    p = _welch(_moments(old, then.weight), _moments(new, now.weight), sign)
    if p > DOUBTED or not all((one.weight == 1).all() for one in (then, now)):
        return "Welch's t", p
    return "Welch's t, permuted", _permuted(sign * old, sign * new, p)


def _fisher(then: Any, now: Any) -> float:
    """Of so few hits among the fresh samples, all margins given (Fisher 1935): exact for any number of samples."""
    from scipy.stats import hypergeom

    hits = int(then.sum()), int(now.sum())
    return float(hypergeom.cdf(hits[1], len(then) + len(now), sum(hits), len(now)))


def _welch(then: tuple[float, float, float], now: tuple[float, float, float], sign: float) -> float:
    """One-sided, with unequal variances (Welch 1947), of (mean, error, degrees of freedom)."""
    from scipy.special import stdtr

    higher = sign * (now[0] - then[0])
    squares = [then[1] ** 2, now[1] ** 2]
    if not sum(squares):
        return 1.0 if higher <= 0 else 0.0
    freedom = sum(squares) ** 2 / (squares[0] ** 2 / then[2] + squares[1] ** 2 / now[2])
    return float(stdtr(freedom, -higher / math.sqrt(sum(squares))))


def _permuted(then: Any, now: Any, p: float) -> float:
    """How often samples dealt out anew look at least so bad: right for any distribution, also where few samples make
    most of a mean, of which Welch's t thinks too little (Janssen 1997, on permuting a studentised difference). `p`,
    Welch's, is taken where none does."""
    every = numpy.concatenate([then, now])
    every = every - every.mean()
    num, part = len(every), min(len(then), len(now))
    few_are_now = part == len(now)

    def statistic(sums: Any, squares: Any) -> Any:
        """Welch's, of (P,) sums and sums of squares over the smaller side."""
        rest = num - part
        means = sums / part, (every.sum() - sums) / rest
        variances = [
            (square / size - mean**2).clip(min=0) / max(size - 1, 1)
            for square, mean, size in zip(
                (squares, numpy.square(every).sum() - squares), means, (part, rest), strict=True
            )
        ]
        higher = means[0] - means[1] if few_are_now else means[1] - means[0]
        return higher / numpy.sqrt(sum(variances)).clip(min=1e-300)

    seen = every[len(then) :] if few_are_now else every[: len(then)]
    wanted = statistic(seen.sum()[None], numpy.square(seen).sum()[None])[0]
    random, times, reached = numpy.random.default_rng(0), 0, 0
    most = min(MOST_DEALS, max(LEAST_DEALS, DEALT // num))
    while times < most:
        chunk = min(most - times, max(1, AT_A_TIME // num))
        rows = random.random((chunk, num)).argpartition(part - 1, axis=1)[:, :part]
        reached += int((statistic(every[rows].sum(1), numpy.square(every)[rows].sum(1)) >= wanted * (1 - 1e-9)).sum())
        times += chunk
    return (1 + reached) / (1 + times) if reached else min(p, 1 / (1 + times))


def _moments(sums: Any, weights: Any) -> tuple[float, float, float]:
    """A mean of sums over weights, its standard error (of a ratio, linearised: Cochran 1977, chapter 6) and its degrees
    of freedom.

    Outcomes that weigh more than one sample are stretches of a text, of which neighbours are alike: then the error is
    the largest that blocks of 1, 2, 4, ... of them show.
    """
    total = weights.sum()
    mean = float(sums.sum() / total)
    residuals = sums - mean * weights
    best = (_error(residuals, total), float(max(len(sums) - 1, 1)))
    while weights.max() > 1 and len(residuals) // 2 >= LEAST_BLOCKS:
        even = len(residuals) // 2 * 2
        rest = residuals[even:].sum()
        residuals = residuals[:even].reshape(-1, 2).sum(1)
        residuals[-1] += rest
        best = max(best, (_error(residuals, total), float(len(residuals) - 1)))
    return mean, *best


def _error(residuals: Any, total: float) -> float:
    num = len(residuals)
    if num < 2:
        return math.inf
    return math.sqrt(num / (num - 1) * float(numpy.square(residuals).sum())) / float(total)
