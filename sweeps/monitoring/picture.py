"""Training and now, side by side: the columns that drifted most, and the metrics with their intervals; as a PNG.

Knows what was judged, and nothing of how.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeps.monitoring.judgement import Judgement

if TYPE_CHECKING:
    from trainable.release.decay import Decay
    from trainable.release.drift import ColumnDrift

MOST_COLUMNS = 6
MOST_METRICS = 4
ACROSS = 3
THEN, NOW = "0.65", "C3"


def draw(judged: Judgement, title: str, path: Path) -> None:
    """Write the figure; where nothing was compared, it says so."""
    # The object-oriented interface needs no display and leaves no global state behind.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = list(judged.columns[:MOST_COLUMNS])
    decays = [one for one in judged.decays if one.method is not None][:MOST_METRICS]
    panels = len(columns) + len(decays)
    rows = max(1, -(-panels // ACROSS))
    figure = Figure(figsize=(13, 1 + 3.4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, wrap=True)
    if not panels:
        figure.text(0.5, 0.4, "too few samples to compare", ha="center")
    for place, one in enumerate(columns):
        _draw_column(figure.add_subplot(rows, ACROSS, place + 1), one)
    for place, decay in enumerate(decays, start=len(columns)):
        _draw_metric(figure.add_subplot(rows, ACROSS, place + 1), decay)
    figure.savefig(path, dpi=110)


def _draw_column(axes: Any, one: ColumnDrift) -> None:
    shown = [place for place in range(len(one.bins)) if one.then[place] or one.now[place]]
    for shift, shares, color, label in ((-0.2, one.then, THEN, "training"), (0.2, one.now, NOW, "now")):
        axes.bar([n + shift for n in range(len(shown))], [shares[n] for n in shown], 0.4, color=color, label=label)
    names = [_short(one.bins[place]) for place in shown]
    turned = 60 if max(map(len, names), default=0) > 5 else 0
    axes.set_xticks(range(len(shown)), names, rotation=turned, fontsize=7)
    axes.margins(y=0.3)  # room for the legend
    axes.set_ylabel("share")
    axes.set_title(f"{_short(one.name, 40)}: index {one.psi:.2g}{_mark(one.level)}", fontsize=10)
    axes.legend(fontsize=8)


def _draw_metric(axes: Any, one: Decay) -> None:
    for place, (found, color) in enumerate(((one.then, THEN), (one.now, NOW))):
        low, high = (found["mean"] if end is None else end for end in (found["low"], found["high"]))
        spread = [[max(0.0, found["mean"] - low)], [max(0.0, high - found["mean"])]]
        axes.errorbar([place], [found["mean"]], yerr=spread, fmt="o", color=color, capsize=6)
    axes.set_xticks([0, 1], ["test", "now"])
    axes.set_xlim(-0.6, 1.6)
    axes.grid(visible=True, alpha=0.3)
    axes.set_title(f"{one.metric}: p={one.p_corrected:.2g}{_mark(one.level)}", fontsize=10)


def _mark(level: str) -> str:
    return "" if level == "none" else f" ({level})"


def _short(text: str, most: int = 16) -> str:
    # A pair of dollars would be read as a formula.
    return (text if len(text) <= most else f"{text[: most - 3]}...").replace("$", r"\$")
