"""The answer of a sweep: result.json, the ranking as a table, the plot of loss curves.

Knows what the ledger and the history say, and nothing of how it came about.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from sweeps.ledger import TERMINAL, TrialRecord
from sweeps.seeds import Configuration
from sweeps.sweep import describe

SMOOTH_SHARE = 0.05  # of the steps that a smoothed curve averages over; the raw losses stand behind it


@dataclass(frozen=True)
class SweepResult:
    """What result.json holds. `status` is "finished", "interrupted" or "failed"; `configurations` stand in the order
    of the answer, each with its value for every seed."""

    name: str
    status: str
    task: str
    best: TrialRecord | None
    verdict: str
    tracking_uri: str
    mlflow_run_id: str | None
    trials: Sequence[TrialRecord]
    configurations: Sequence[Configuration] = ()

    def to_dict(self) -> dict[str, Any]:
        """Strict JSON: a number that is not finite becomes null."""
        return {
            "name": self.name,
            "status": self.status,
            "task": self.task,
            "best": self.best
            and {"number": self.best.number, "params": self.best.params, "metrics": _finite(self.best.metrics)},
            "verdict": self.verdict,
            "tracking_uri": self.tracking_uri,
            "mlflow_run_id": self.mlflow_run_id,
            "trials": [
                {
                    "number": trial.number,
                    "params": trial.params,
                    "state": trial.state,
                    "attempts": trial.attempts,
                    "epochs": trial.epochs,
                    "metrics": _finite(trial.metrics),
                    "mlflow_run_id": trial.mlflow_run_id,
                    "weights_sha256": trial.weights_sha256,
                }
                for trial in self.trials
            ],
            "configurations": [configuration.to_dict() for configuration in self.configurations],
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def num_failed(self) -> int:
        return sum(trial.state == "failed" for trial in self.trials)


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def ranking_table(ranked: Sequence[TrialRecord], unranked: Sequence[TrialRecord], key: str, title: str) -> Table:
    """The trials in the order of the answer; what has no rank stands below, diverged trials last."""
    # Eighty columns hold it: a table that is cut is no answer.
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("rank", "trial", "params", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in (key.replace("_", " "), "loss", "val loss", "acc", "epochs"):
        table.add_column(heading, justify="right")  # where it is narrow, headings take two lines
    order = sorted(unranked, key=lambda trial: (trial.state == "diverged", trial.number))
    for rank, trial in [*enumerate(ranked, start=1), *((None, trial) for trial in order)]:
        metrics = trial.metrics
        table.add_row(
            "" if rank is None else str(rank),
            str(trial.number),
            Text(describe(trial.params)),  # as it is: a value with brackets is no markup
            trial.state,
            *(_cell(metrics.get(name)) for name in (key, "train_loss", "val_loss")),
            f"{metrics['val_accuracy']:.1%}" if "val_accuracy" in metrics else "",
            f"{trial.epochs:g}",
        )
    return table


def seeds_table(configurations: Sequence[Configuration], key: str, title: str) -> Table:
    """The configurations in the order of the answer, each as the mean over its seeds; `1=` ties for the first rank."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("rank", "params", "seeds"):
        table.add_column(heading, no_wrap=True)
    for heading in (key.replace("_", " "), "loss", "val loss", "acc"):
        table.add_column(heading, justify="right", no_wrap=heading == "acc")
    tie = any(_is_tied(one) for one in configurations)
    for rank, one in enumerate(configurations, start=1):
        first = "1=" if tie and (rank == 1 or _is_tied(one)) else str(rank)
        accuracy = _mean(one, "val_accuracy")
        table.add_row(
            "" if one.estimate is None else first,
            Text(describe(one.params)),
            _seeds_cell(one),
            "" if one.estimate is None else str(one.estimate),
            *(_cell(_mean(one, name)) for name in ("train_loss", "val_loss")),
            "" if accuracy is None else f"{accuracy:.1%}",
        )
    return table


def _is_tied(one: Configuration) -> bool:
    return one.beside is not None and one.beside.is_known and one.beside.tied


def _seeds_cell(one: Configuration) -> str:
    """`3`, or `1, 2 diverged`: how many count, and what became of the others."""
    others = {
        "diverged": len(one.seeds("diverged")),
        "failed": len(one.seeds("failed")),
        "to do": sum(trial.state not in TERMINAL for trial in one.trials.values()),
    }
    return ", ".join([str(len(one.counted)), *(f"{number} {what}" for what, number in others.items() if number)])


def _mean(one: Configuration, metric: str) -> float | None:
    """Over the seeds that count and have it."""
    found = [metrics[metric] for seed in one.counted if metric in (metrics := one.trials[seed].metrics)]
    return sum(found) / len(found) if found else None


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def plot_losses(curves: Mapping[str, Sequence[Sequence[float]]], path: Path, title: str) -> None:
    """The training loss of every configuration over its steps, as a PNG: its mean over seeds, smoothed, before the raw
    losses of each. `curves`: label -> for each seed one loss a step."""
    # The object-oriented interface needs no display and leaves no global state behind.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for index, (label, over_seeds) in enumerate(curves.items()):
        for losses in over_seeds:
            axes.plot(range(1, len(losses) + 1), losses, color=f"C{index % 10}", alpha=0.25, linewidth=1)
        mean = _smoothed(_mean_curve(over_seeds))
        axes.plot(range(1, len(mean) + 1), mean, color=f"C{index % 10}", label=label, linewidth=2)
    axes.set(xlabel="step", ylabel="training loss", title=title)
    if any(value > 0 for over_seeds in curves.values() for losses in over_seeds for value in losses):
        axes.set_yscale("log")
    axes.grid(visible=True, alpha=0.3)
    if curves:
        axes.legend()
    figure.savefig(path, dpi=120, format="png")


def _mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
    """The mean at each step, over the curves that got so far."""
    columns = (
        [curve[step] for curve in curves if step < len(curve)] for step in range(max(map(len, curves), default=0))
    )
    return [sum(column) / len(column) for column in columns]


def _smoothed(values: Sequence[float]) -> list[float]:
    """An exponential average without the bias of its start (as Adam's)."""
    new = 1 / max(1.0, SMOOTH_SHARE * len(values))
    smooth, weight, found = 0.0, 0.0, []
    for value in values:
        smooth = (1 - new) * smooth + new * value
        weight = (1 - new) * weight + new
        found.append(smooth / weight)
    return found
