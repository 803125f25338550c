"""A figure as what plotly.js draws: plain values (JSON), one picture for each panel.

plotly itself is not imported: of its package only the script is used, which the page brings along. Knows no sweep.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

from sweeps.reporting.drawing import FEW_DECADES, Axis, Figure, Panel, Series

SYMBOLS = {"cross": "cross", "x": "x-thin-open", "dot": "circle"}
BESIDE_LOG = 0.05  # of an axis' length, as plotly would leave free where it sets the limits itself


def plotly_of(figure: Figure) -> list[dict[str, Any]]:
    """For each panel `data` and `layout`. Several panels have one legend between them, which is for the page."""
    return [_panel(panel, with_legend=len(figure.panels) == 1) for panel in figure.panels]


def _panel(panel: Panel, *, with_legend: bool) -> dict[str, Any]:
    named = [series for series in panel.series if series.label]
    layout: dict[str, Any] = {
        "xaxis": _axis(panel.x, [x for series in panel.series for x in (*series.x, *series.ends)]),
        "yaxis": _axis(panel.y, [y for series in panel.series for y in series.y]),
        "showlegend": with_legend and (len(named) > 1 or any(series.kind == "line" for series in named)),
        "barmode": "overlay",
    }
    return {"data": [_trace(series) for series in panel.series], "layout": layout}


def _axis(axis: Axis, values: Sequence[float | None]) -> dict[str, Any]:
    found: dict[str, Any] = {"title": {"text": _safe(axis.title)}, "type": "log" if axis.log else "linear"}
    if axis.ticks:
        found |= {
            "tickmode": "array",
            "tickvals": [place for place, _ in axis.ticks],
            "ticktext": [_safe(text).replace("\n", "<br>") for _, text in axis.ticks],
        }
    elif axis.log:
        found |= {"dtick": 1 if _decades(axis, values) > FEW_DECADES else "D2", "tickformat": ".3~g"}
    if axis.limits:
        low, high = (math.log10(limit) for limit in axis.limits) if axis.log else axis.limits
        found["range"] = [low, high + BESIDE_LOG * (high - low)]
    return found


def _decades(axis: Axis, values: Sequence[float | None]) -> float:
    """How many powers of ten are in view."""
    shown = axis.limits or [value for value in values if value is not None]
    return math.log10(max(shown) / min(shown)) if shown else 0.0


def _trace(series: Series) -> dict[str, Any]:
    look = {"name": _safe(series.label), "showlegend": bool(series.label), "opacity": series.opacity}
    texts = [_safe(text) for text in series.texts]
    said = texts[0] if len(set(texts)) == 1 else texts  # plotly takes one text for all points
    hover = {"hovertext": said, "hovertemplate": "%{hovertext}<br>%{x:.4g}, %{y:.4g}<extra></extra>"} if texts else {}
    y = [_finite(value) for value in series.y]
    if series.kind in ("bars", "spans"):
        begins = list(series.x) if series.kind == "spans" else [0.0] * len(series.x)
        ends = series.ends if series.kind == "spans" else series.x
        return {
            "type": "bar", "orientation": "h", "base": begins, "y": y, "marker": {"color": series.colour},
            "x": [end - begin for begin, end in zip(begins, ends, strict=True)],
            "width": 0.6, **look, **({**hover, "hovertemplate": "%{hovertext}<extra></extra>"} if texts else {}),
        }  # fmt: skip
    trace = {"type": "scatter", "x": _shortened(series.x), "y": _shortened(y), **look, **hover}
    if series.kind == "line":
        mode = "lines+markers" if series.symbol == "dot" else "lines"
        line = {"color": series.colour, "width": series.width, "dash": "dash" if series.dashed else "solid"}
        return {**trace, "mode": mode, "line": line, "marker": {"size": 7}, "connectgaps": False}
    symbol = SYMBOLS.get(series.symbol, series.symbol)
    edge = {"width": 2 if symbol.endswith("-open") else 0, "color": series.colour}
    size = 14 if symbol == "star" else 9
    return {
        **trace, "mode": "markers",
        "marker": {"color": series.colour, "symbol": symbol, "size": size, "line": edge},
    }  # fmt: skip


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _shortened(values: Sequence[float | None]) -> list[float | None]:
    """Five digits are more than a screen shows, and a third of the bytes."""
    return [None if value is None else float(f"{value:.5g}") for value in values]


def _safe(text: str) -> str:
    """plotly reads some tags and formulas in its texts; a value that has any shall look as it is written."""
    return html.escape(text, quote=False).replace("$", "&#36;")
