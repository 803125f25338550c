"""A figure as a PNG, drawn by matplotlib without a display.

Knows no sweep.
"""

from __future__ import annotations

import io
import math
import os
from pathlib import Path
from typing import Any

from sweeps.reporting.drawing import FEW_DECADES, Axis, Figure, Panel, Series
from trainable.files import BESIDE

MARKERS = {
    "circle": "o", "triangle-down": "v", "x": "x", "cross": "P", "circle-open": "o", "star": "*", "dot": ".",
}  # fmt: skip
MOST_LABELS = 12  # in a legend
PANEL_INCHES, ONE_INCHES = (4.0, 3.0), (8.0, 5.0)


def write_png(figure: Figure, path: Path) -> None:
    """Replace the file as a whole."""
    # The object-oriented interface needs no display and leaves no global state behind.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    num = len(figure.panels)
    columns = 1 if num == 1 else 2 if num < 5 else 3
    rows = math.ceil(num / columns)
    width, height = ONE_INCHES if num == 1 else (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows)
    canvas = Canvas(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(canvas)
    grid = canvas.subplots(rows, columns, squeeze=False)
    for index, axes in enumerate(grid.flat):
        if index < num:
            _draw(axes, figure.panels[index], with_legend=index == 0)
        else:
            axes.set_visible(False)
    canvas.suptitle(_plain(figure.title))
    found = io.BytesIO()
    canvas.savefig(found, dpi=120, format="png")
    beside = path.with_name(path.name + BESIDE)
    beside.write_bytes(found.getvalue())
    os.replace(beside, path)


def _draw(axes: Any, panel: Panel, *, with_legend: bool) -> None:
    for series in panel.series:
        _draw_series(axes, series)
    axes.set(xlabel=_plain(panel.x.title), ylabel=_plain(panel.y.title))
    _scale(axes.xaxis, axes.set_xscale, axes.set_xlim, panel.x)
    _scale(axes.yaxis, axes.set_yscale, axes.set_ylim, panel.y)
    axes.grid(visible=True, alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    if with_legend and (len(labels) > 1 or any(series.kind == "line" for series in panel.series if series.label)):
        axes.legend(handles[::-1][:MOST_LABELS], labels[::-1][:MOST_LABELS], fontsize="small")


def _draw_series(axes: Any, series: Series) -> None:
    y = [math.nan if value is None else value for value in series.y]
    label = _plain(series.label) if series.label else None
    look = {"color": series.colour, "alpha": series.opacity, "label": label}
    if series.kind == "line":
        style = "--" if series.dashed else "-"
        marker = "." if series.symbol == "dot" else None
        axes.plot(series.x, y, style, linewidth=series.width, marker=marker, **look)
    elif series.kind == "points":
        hollow = {"facecolors": "none", "edgecolors": series.colour} if series.symbol == "circle-open" else {}
        if hollow:
            look.pop("color")
        axes.scatter(series.x, y, marker=MARKERS[series.symbol], s=28, zorder=3, **look, **hollow)
    elif series.kind == "bars":
        axes.barh(y, series.x, **look)
    else:
        lengths = [end - begin for begin, end in zip(series.x, series.ends, strict=True)]
        axes.barh(y, lengths, left=series.x, height=0.6, edgecolor="white", linewidth=0.5, **look)


def _scale(axis: Any, set_scale: Any, set_limits: Any, described: Axis) -> None:
    if described.log:
        set_scale("log")
        low, high = described.limits or axis.get_data_interval()
        few = math.log10(high / low) < FEW_DECADES
        from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

        # Plain numbers: 10^-3 as a formula is no easier to read, and costs a quarter of a second.
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
    if described.ticks:
        axis.set_ticks([place for place, _ in described.ticks], [_plain(text) for _, text in described.ticks])
    if described.limits:
        set_limits(*described.limits)


def _plain(text: str) -> str:
    """A dollar sign begins a formula for matplotlib, and a parameter's value may hold one."""
    return text.replace("$", r"\$")
