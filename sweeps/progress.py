"""The live table of a running sweep on stderr: a table that redraws on a terminal, a line a report elsewhere.

Knows only trial records and how fast they went.
"""

from __future__ import annotations

import time

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sweeps.ledger import TERMINAL, TrialRecord
from sweeps.sweep import describe

STYLES = {
    "complete": "green",
    "running": "cyan",
    "failed": "red",
    "diverged": "yellow",
    "pruned": "dim",
    "waiting": "dim",
}


class Progress:
    """Shows every trial: epoch, loss, val loss, accuracy, samples/s; and the time left for the sweep."""

    def __init__(self, console: Console, records: list[TrialRecord], epochs: int) -> None:
        self._console = console
        self._records = {record.number: record for record in records}
        self._epochs = epochs
        self._began = time.monotonic()
        self._done_at_start = self._share_done()
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live = Live(get_renderable=self._table, console=self._console, refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.refresh()
            self._live.__exit__(None, None, None)

    def update(self, record: TrialRecord) -> None:
        before = self._records.get(record.number, record)  # one that a growing sweep has added is new here
        self._records[record.number] = record
        if self._live is None and (record.state, record.epochs) != (before.state, before.epochs):
            self._console.print(self._line(record), highlight=False, markup=False, soft_wrap=True)

    def seconds_left(self) -> float | None:
        """For the whole sweep, at the pace so far; None before there is one."""
        done = self._share_done() - self._done_at_start
        if done <= 0:
            return None
        return (time.monotonic() - self._began) / done * (len(self._records) - self._share_done())

    def _share_done(self) -> float:
        """In trials; a trial under way counts by its epochs."""
        return sum(
            1.0 if record.state in TERMINAL else min(1.0, record.epochs / self._epochs)
            for record in self._records.values()
        )

    def _line(self, record: TrialRecord) -> str:
        cells = [
            f"trial {record.number}  {describe(record.params)}  {record.state}",
            f"epoch {record.epochs:g}/{self._epochs}",
            *(f"{name} {text}" for name, text in _measures(record).items() if text),
        ]
        left = self.seconds_left()
        if left is not None and record.state == "running":
            cells.append(f"{spoken(left)} left")
        return "  ".join(cells)

    def _table(self) -> Table:
        left = self.seconds_left()
        caption = "starting" if left is None else f"{spoken(left)} left" if left > 0 else "finishing"
        table = Table(caption=caption, caption_justify="right", box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in ("trial", "params", "state", "epoch", "loss", "val loss", "accuracy", "samples/s"):
            table.add_column(heading, justify="left" if heading in ("params", "state") else "right")
        for record in self._records.values():
            measures = _measures(record)
            style = STYLES[record.state]
            table.add_row(
                str(record.number),
                Text(describe(record.params)),
                f"[{style}]{record.state}[/]",
                f"{record.epochs:g}/{self._epochs}",
                *(measures[name] for name in ("loss", "val loss", "accuracy", "samples/s")),
            )
        return table


def _measures(record: TrialRecord) -> dict[str, str]:
    """What a trial's last report said, as texts; empty where it said nothing."""
    metrics = record.metrics
    accuracy = metrics.get("val_accuracy")
    speed = record.samples_per_s
    return {
        "loss": f"{metrics['train_loss']:.4f}" if "train_loss" in metrics else "",
        "val loss": f"{metrics['val_loss']:.4f}" if "val_loss" in metrics else "",
        "accuracy": "" if accuracy is None else f"{accuracy:.1%}",
        "samples/s": "" if speed is None else f"{speed:,.0f}",
    }


def spoken(seconds: float) -> str:
    """A duration for people: 8 s, 3 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
