"""A column of samples in bins: what training had, as plain JSON values, and the counts of others in the same bins.

Numbers: bins by quantiles, and one for gaps (NaN). Codes (integers): a bin for each frequent one, one for the rest.
Knows numbers only, no tasks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

Array = NDArray[Any]
NUM_BINS = 10  # of numbers, by quantiles: what the usual thresholds of the stability index are said for
MIN_CODE_SHARE = 0.01  # of training's values; rarer codes share a bin
MOST_CODES = 30
MOST_SAMPLED, LEAST_SAMPLED = 2000, 500  # values of a column that are kept for the two-sample test
MOST_SAMPLED_OF_ALL = 100_000  # of all columns together, as long as each has the least
DIGITS = 6  # significant ones of a number: what is equal in the file is equal after any arithmetic on the way
LEAST_BLOCKS = 8  # that the likeness of neighbours is seen from
PLAIN_BELOW = 1e7  # in the name of a bin; larger numbers are written with an exponent
OTHER, GAP = "other", "missing"


def described(values: Array, names: Sequence[str], seed: int, most_sampled: int = MOST_SAMPLED) -> dict[str, Any]:
    """A column of training as plain values: its bins, their counts, and a bounded sample of numbers.

    values: (N,) floats; or (N,) or (N, T) integers, codes of categories, of which one below 0 is nothing.
    """
    if is_codes(values):
        return _described_codes(values, names)
    column = rounded(values)
    known = numpy.sort(column[~numpy.isnan(column)])
    found: dict[str, Any] = {"kind": "numbers", "edges": _edges(known)}
    counts, _ = counted(found, values)
    found["counts"] = counts.astype(int).tolist()
    rows = numpy.arange(len(column))
    if len(column) > most_sampled:
        rows = numpy.sort(numpy.random.default_rng(seed).choice(rows, most_sampled, replace=False))
    found["sample"] = [None if math.isnan(value) else value for value in column[rows].tolist()]
    if len(known):
        quartiles = rounded(numpy.quantile(known, [0, 0.25, 0.5, 0.75, 1])).tolist()
        spread = {"mean": float(known.mean()), "deviation": float(known.std())}
        found |= {**spread, **dict(zip(("min", "low", "median", "high", "max"), quartiles, strict=True))}
    return found


def described_all(
    columns: Mapping[str, Array], names: Mapping[str, Sequence[str]], seed: int
) -> dict[str, dict[str, Any]]:
    """Every column, with smaller samples where there are many columns."""
    most = max(LEAST_SAMPLED, min(MOST_SAMPLED, MOST_SAMPLED_OF_ALL // max(1, len(columns))))
    return {name: described(values, names.get(name, ()), seed, most) for name, values in columns.items()}


def counted(described: Mapping[str, Any], values: Array) -> tuple[Array, float]:
    """How many of `values` are in each bin, and how many of them tell as much as one that is independent.

    The latter is 1 but for (N, T) codes, stretches of a text: it is what training's stretches of that length show.
    """
    if described["kind"] == "numbers":
        column = rounded(values)
        gaps = numpy.isnan(column)
        places = numpy.searchsorted(numpy.asarray(described["edges"], float), column[~gaps], side="left")
        counts = numpy.bincount(places, minlength=len(described["edges"]) + 1)
        return numpy.append(counts, gaps.sum()).astype(float), 1.0
    kept = numpy.asarray(described["codes"], dtype=numpy.int64)
    counts = _code_counts(values, kept)
    if values.ndim == 1 or not described["alike"]:
        return counts, 1.0
    lengths, alike = numpy.asarray(described["alike"], float).T
    return counts, float(
        numpy.exp(numpy.interp(math.log(max(1.0, counts.sum())), numpy.log(lengths), numpy.log(alike)))
    )


def bin_names(described: Mapping[str, Any]) -> list[str]:
    """What each bin is called, in the order of its counts."""
    if described["kind"] == "codes":
        return [*described["names"], OTHER]
    edges = described["edges"]
    if not edges:
        return ["any", GAP]
    # An edge that is none of the rounded values is the last number before one.
    before = [edge != rounded(edge) for edge in edges]
    said = _spelled([math.nextafter(edge, math.inf) if one else edge for edge, one in zip(edges, before, strict=True)])
    first = f"below {said[0]}" if before[0] else f"up to {said[0]}"
    between = [
        high if below and not beyond else f"{low} to {high}"
        for (low, high), (below, beyond) in zip(itertools.pairwise(said), itertools.pairwise(before), strict=True)
    ]
    return [first, *between, f"{said[-1]} or more" if before[-1] else f"above {said[-1]}", GAP]


def is_codes(values: Array) -> bool:
    return values.dtype.kind in "iub"


def rounded(values: Array) -> Array:
    """To `DIGITS` significant digits, as float64; what is not finite is a gap (NaN)."""
    column = numpy.asarray(values, dtype=numpy.float64)
    column = numpy.where(numpy.isfinite(column), column, numpy.nan)
    usable = ~numpy.isnan(column) & (column != 0)
    size = numpy.where(usable, numpy.abs(column), 1.0)
    scale = numpy.power(10.0, numpy.clip(DIGITS - 1 - numpy.floor(numpy.log10(size)), -290, 290))
    return numpy.where(usable, numpy.rint(column * scale) / scale, column)


def alikeness(blocks: Array) -> float:
    """The design effect of counting values that come in blocks of neighbours: how many of them tell as much as one
    independent value. blocks: (G, K) counts.

    The mean over categories of the variance between blocks over that of a multinomial (Rao and Scott 1981, "The
    analysis of categorical data from complex sample surveys", first-order correction); never below 1.
    """
    blocks = blocks[blocks.sum(1) > 0]
    blocks = blocks[:, blocks.sum(0) > 0]
    num_blocks, num_codes = blocks.shape
    if num_blocks < 2 or num_codes < 2:
        return 1.0
    sizes, total = blocks.sum(1, keepdims=True), blocks.sum()
    shares = blocks.sum(0) / total
    between = num_blocks / (num_blocks - 1) * ((blocks - shares * sizes) ** 2).sum(0) / total**2
    return max(1.0, float((between * total / shares).sum() / (num_codes - 1)))


def _edges(known: Array) -> list[float]:
    """Upper ends of all bins but the last, from quantiles; of equal ones the first."""
    if not len(known):
        return []
    least, most = float(known[0]), float(known[-1])
    if least == most:  # a constant: below it, it, above it
        return [math.nextafter(least, -math.inf), least]
    inner = numpy.quantile(known, numpy.arange(1, NUM_BINS) / NUM_BINS, method="inverted_cdf")
    edges: list[float] = [edge for edge in numpy.unique(inner).tolist() if edge < most]
    return edges or [math.nextafter(most, -math.inf)]  # nearly all values are the largest one


def _spelled(numbers: Sequence[float]) -> list[str]:
    """With as few digits as tell different ones apart."""
    texts: list[str] = []
    for digits in range(3, DIGITS + 1):
        texts = [_with_digits(number + 0.0, digits) for number in numbers]  # no minus before a zero
        if len(set(texts)) == len(set(numbers)):
            break
    return texts


def _with_digits(number: float, digits: int) -> str:
    text = f"{number:.{digits}g}"
    return f"{number:.0f}" if "e+" in text and abs(number) < PLAIN_BELOW else text


def _described_codes(values: Array, names: Sequence[str]) -> dict[str, Any]:
    flat = values[values >= 0].astype(numpy.int64)
    frequency = numpy.bincount(flat, minlength=1)
    order = numpy.argsort(-frequency, kind="stable")[:MOST_CODES]
    kept = sorted(int(code) for code in order if frequency[code] >= max(1, MIN_CODE_SHARE * len(flat)))
    called = [names[code] if code < len(names) else str(code) for code in kept]
    found: dict[str, Any] = {"kind": "codes", "codes": kept, "names": called}
    counts = _code_counts(values, numpy.asarray(kept, dtype=numpy.int64))
    return {**found, "counts": counts.astype(int).tolist(), "alike": _alike_by_length(values, kept)}


def _alike_by_length(values: Array, kept: Sequence[int]) -> list[list[float]]:
    """(length, alikeness) of stretches of (N, T) codes, from single samples to an eighth of all, doubling."""
    if values.ndim == 1:
        return []
    codes = numpy.asarray(kept, dtype=numpy.int64)
    blocks = numpy.stack([_code_counts(sample, codes) for sample in values])
    found, largest = [], 1.0
    while len(blocks) >= LEAST_BLOCKS:
        largest = max(largest, alikeness(blocks))
        found.append([float(blocks.sum(1).mean()), largest])
        even = len(blocks) // 2 * 2
        blocks = blocks[:even].reshape(even // 2, 2, -1).sum(1)
    return found


def _code_counts(values: Array, kept: Array) -> Array:
    flat = values[values >= 0].astype(numpy.int64)
    if not len(kept):
        return numpy.asarray([len(flat)], float)
    places = numpy.searchsorted(kept, flat).clip(max=len(kept) - 1)
    places = numpy.where(kept[places] == flat, places, len(kept))
    return numpy.bincount(places, minlength=len(kept) + 1).astype(float)
