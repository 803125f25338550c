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

from sweeps.record.trial import TERMINAL, TrialRecord
from sweeps.sweep import describe
from trainable.settings import TASK_PREFIX

LEAST_ROWS, ROWS_AROUND = 5, 8  # of the table on a screen; title, headings, caption and what stands above
LEAST_PARAMS, OTHER_COLUMNS = 14, 66  # characters of a row on a screen
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
        # The latest last: where not all fit on the screen, those are shown.
        self._records.pop(record.number, None)
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
        table = Table(
            caption=caption, caption_justify="right", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
        )
        for heading in ("trial", "params", "state", "epoch", "loss", "val loss", "accuracy", "samples/s"):
            table.add_column(heading, justify="left" if heading in ("params", "state") else "right", no_wrap=True)
        shown = self._that_fit()
        if len(shown) < len(self._records):
            done = sum(record.state in TERMINAL for record in self._records.values())
            table.title = f"{done} of {len(self._records)} trials have ended; the latest:"
        for record in shown:
            measures = _measures(record)
            style = STYLES[record.state]
            table.add_row(
                str(record.number),
                Text(self._params(record)),
                f"[{style}]{record.state}[/]",
                f"{record.epochs:g}/{self._epochs}",
                *(measures[name] for name in ("loss", "val loss", "accuracy", "samples/s")),
            )
        return table

    def _params(self, record: TrialRecord) -> str:
        """On one line, cut where the screen ends."""
        text = describe(record.params)
        room = max(LEAST_PARAMS, self._console.size.width - OTHER_COLUMNS)
        if len(text) > room:
            text = text.replace(TASK_PREFIX, "")
        return text if len(text) <= room else f"{text[: room - 2]}.."

    def _that_fit(self) -> list[TrialRecord]:
        """As many trials as the screen has room for, in the order of their numbers: first of all those under way."""
        room = max(LEAST_ROWS, self._console.size.height - ROWS_AROUND)
        records = list(self._records.values())
        if len(records) > room:
            begun = [record for record in records if record.state != "waiting"]
            running = [record for record in begun if record.state == "running"]
            ended = [record for record in begun if record.state != "running"]
            records = [*running, *reversed(ended)][:room]
        return sorted(records, key=lambda record: record.number)


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
