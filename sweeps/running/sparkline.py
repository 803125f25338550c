"""A curve in a few characters, for a cell of the live table.

Knows only numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

BLOCKS, ASCII = "▁▂▃▄▅▆▇█", "_.-~=+*#"
NOT_FINITE = "!"
MOST = 512  # values that are kept of a curve, however long it is


class Curve:
    """A curve that grows: as so many means as are kept, each of equally many values. Mutable."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._each = 1  # values behind a mean
        self._open: list[float] = []

    def add(self, values: Iterable[float]) -> None:
        for value in values:
            self._open.append(value)
            if len(self._open) == self._each:
                self.values.append(sum(self._open) / self._each)
                self._open = []
            if len(self.values) == MOST:
                self.values = [sum(pair) / 2 for pair in zip(self.values[::2], self.values[1::2], strict=True)]
                self._each *= 2


def sparkline(values: list[float], width: int, *, ascii_only: bool) -> str:
    """The curve from its lowest to its highest, in at most `width` characters: each the mean of its stretch."""
    marks = ASCII if ascii_only else BLOCKS
    count = min(width, len(values))
    edges = [round(index * len(values) / count) for index in range(count + 1)] if count else []
    means = [sum(values[start:end]) / (end - start) for start, end in itertools.pairwise(edges)]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, span = min(finite, default=0.0), max(finite, default=0.0) - min(finite, default=0.0)
    return "".join(_mark(mean, low, span, marks) for mean in means)


def _mark(mean: float, low: float, span: float, marks: str) -> str:
    if not math.isfinite(mean):
        return NOT_FINITE
    return marks[min(len(marks) - 1, int((mean - low) / span * len(marks)))] if span > 0 else marks[0]
