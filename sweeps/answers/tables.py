"""The answer of a sweep as a table.

Knows what the ledger and the history say, and nothing of how it came about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from sweeps.answers.seeds import Configuration
from sweeps.record.trial import TERMINAL, TrialRecord
from sweeps.searching.front import pareto_trials
from sweeps.sweep import Sweep, describe
from trainable.settings import TASK_PREFIX

MOST_ROWS = 20  # of a search's table; the rest is counted
MOST_COLUMNS = 4  # for parameters; of more, each row is one text that takes as many lines as it needs


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
        accuracy = one.mean("val_accuracy")
        table.add_row(
            "" if one.estimate is None else first,
            Text(describe(one.params)),
            _seeds_cell(one),
            "" if one.estimate is None else str(one.estimate),
            *(_cell(one.mean(name)) for name in ("train_loss", "val_loss")),
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


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _param(value: Any) -> Text:
    return Text("" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value))


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def search_table(order: Sequence[TrialRecord], trials: Sequence[TrialRecord], sweep: Sweep, title: str) -> Table:
    """The best trials first; with several objectives, `*` marks the Pareto set, its knee stands first."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    front = {trial.number for trial in pareto_trials(trials, sweep)} if sweep.metrics else set()
    for heading in ("rank", "trial"):
        table.add_column(heading, no_wrap=True)
    names = list(dict.fromkeys(name for trial in order or trials for name in trial.params))
    split = len(names) <= MOST_COLUMNS  # so many are read more easily one below the other
    for name in names if split else ["params"]:
        table.add_column(name.removeprefix(TASK_PREFIX), overflow="fold", no_wrap=split)
    for name in sweep.named_metrics:
        table.add_column(name.replace("_", " "), justify="right")
    table.add_column("epochs", justify="right")
    table.add_column("state", no_wrap=True)
    numbers = {trial.number for trial in order}
    rest = [trial for trial in trials if trial.number not in numbers and trial.state != "waiting"]
    rest.sort(key=lambda trial: (trial.state == "diverged", trial.number))
    rows = [*enumerate(order, start=1), *((None, trial) for trial in rest)]
    for rank, trial in rows[:MOST_ROWS]:
        mark = "*" if trial.number in front else ""
        values = [trial.metrics.get(name) for name in sweep.named_metrics]
        state = trial.state if trial.feasible or trial.state != "complete" else "off limits"
        table.add_row(
            f"{'' if rank is None else rank}{mark}",
            str(trial.number),
            *(_param(trial.params.get(name)) for name in names if split),
            *(() if split else [Text(describe(trial.params).replace(TASK_PREFIX, ""))]),
            *(_number(value) for value in values),
            f"{trial.epochs:g}",
            state,
        )
    if len(rows) > MOST_ROWS:
        table.caption = f"and {len(rows) - MOST_ROWS} more, all of them in result.json"
        table.caption_justify = "left"
    return table
