"""A figure as plain values, drawn twice: by matplotlib as a PNG, by plotly.js on the page.

Knows neither of the two, and no sweep.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["line", "points", "bars", "spans"]

# Told apart also by those who see no red and green (Okabe and Ito 2008), and on white and on black.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6bb1", "#999933")
GREY = "#8a8f98"
DECADE = 10.0
FEW_DECADES = 1.5  # up to which 2 and 5 have room between the powers of ten
STATE_COLOURS = {
    "complete": "#0072b2", "pruned": "#e69f00", "diverged": "#d55e00", "failed": "#cc79a7", "running": "#56b4e9",
    "waiting": GREY,
}  # fmt: skip
SYMBOLS = {
    "complete": "circle",
    "pruned": "triangle-down",
    "diverged": "x",
    "failed": "cross",
    "running": "circle-open",
}


@dataclass(frozen=True)
class Axis:
    """ticks: (place, text) where they are not plain numbers; limits: (low, high) where the data would not show them."""

    title: str
    log: bool = False
    ticks: Sequence[tuple[float, str]] = ()
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Series:
    """kind "line" and "points": x, y; "bars": x long, at y; "spans": at y from x to `ends`. None in y is a gap.

    label: in the legend, "" keeps it out; texts: what each point says under the pointer, one for all where
    they say the same.
    """

    kind: Kind
    x: Sequence[float]
    y: Sequence[float | None]
    label: str = ""
    colour: str = COLOURS[0]
    texts: Sequence[str] = ()
    ends: Sequence[float] = ()
    dashed: bool = False
    symbol: str = "circle"
    width: float = 2.0
    opacity: float = 1.0


@dataclass(frozen=True)
class Panel:
    x: Axis
    y: Axis
    series: Sequence[Series]


@dataclass(frozen=True)
class Figure:
    """name: of the file; words: what it shows, for those who do not see it; note: what to know when reading it."""

    name: str
    title: str
    panels: Sequence[Panel]
    words: str
    note: str = ""


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def all_above_zero(values: Iterable[float | None]) -> bool:
    """Whether a logarithmic axis can show them; nothing at all it cannot."""
    found = [value for value in values if value is not None]
    return bool(found) and all(value > 0 for value in found)


def spread_over_decades(values: Sequence[float]) -> bool:
    """Whether a logarithmic axis shows them better."""
    return all_above_zero(values) and max(values) / min(values) >= DECADE


def short(value: Any) -> str:
    """A value as a tick or a cell."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
