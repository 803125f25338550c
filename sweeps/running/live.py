"""The table of a running sweep that redraws itself on a terminal, from a thread of its own.

It draws as seldom as it takes to stay below one hundredth of the time. Knows only trial records and their curves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sweeps.record.history import Follower, History
from sweeps.record.trial import TrialRecord
from sweeps.running.sparkline import Curve, sparkline
from sweeps.sweep import describe
from trainable.settings import TASK_PREFIX

REFRESH_S, SHARE = 0.25, 0.01  # between two drawings; of the time, that drawing may take
LEAST_ROWS, ROWS_AROUND = 5, 8  # of the table on a screen; title, headings, caption and what stands above
LEAST_PARAMS, MOST_PARAMS = 12, 60  # characters
CURVE_WIDTH = 8
STYLES = {
    "complete": "green",
    "running": "cyan",
    "failed": "red",
    "diverged": "yellow",
    "pruned": "dim",
    "waiting": "dim",
}
LEFT = ("params", "state", "curve")  # words; what is not here is numbers, to the right
DROPPED = ("samples/s", "accuracy", "curve", "loss", "epoch")  # in this order, where the screen is too narrow


class LiveTable:
    """Draws `records()`, the latest last, with `said()`, one line below. A context."""

    def __init__(
        self,
        console: Console,
        history: History,
        epochs: int,
        records: Callable[[], Sequence[TrialRecord]],
        said: Callable[[], str],
    ) -> None:
        self._console, self._history, self._epochs = console, history, epochs
        self._records, self._said = records, said
        self._curves: dict[int, tuple[Follower, Curve]] = {}
        self._live = Live(get_renderable=self._table, console=console, auto_refresh=False)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="progress", daemon=True)

    def __enter__(self) -> LiveTable:
        self._live.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._live.refresh()
        self._live.__exit__(None, None, None)

    def _draw(self) -> None:
        pause = REFRESH_S
        while not self._ended.wait(pause):
            began = time.thread_time()
            self._live.refresh()
            pause = max(REFRESH_S, (time.thread_time() - began) / SHARE)

    def _table(self) -> Table:
        records = list(self._records())
        shown = self._that_fit(records)
        cells = {record.number: self._cells(record) for record in shown}
        names, padding = self._columns(list(cells.values()))
        table = Table(
            caption=self._said(),
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, padding, 0, 0),
        )
        for name in names:
            table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=True)
        if len(shown) < len(records):
            done = sum(record.state not in ("waiting", "running") for record in records)
            table.title = f"{done} of {len(records)} trials have ended; the latest:"
        others = sum(_width(name, list(cells.values())) for name in names if name != "params")
        room = self._console.size.width - others - (1 + padding) * (len(names) - 1)
        for record in shown:
            row = {**cells[record.number], "params": _cut(record, min(MOST_PARAMS, max(LEAST_PARAMS, room)))}
            style = {"state": STYLES[record.state]}
            table.add_row(*(Text(row[name], style=style.get(name, "")) for name in names))
        return table

    def _columns(self, rows: Sequence[dict[str, str]]) -> tuple[list[str], int]:
        """Which columns the screen has room for, and how far apart."""
        names = ["trial", "params", "state", "epoch", "loss", "curve", "val loss", "accuracy", "samples/s"]
        for dropped in (None, *DROPPED):
            names = [name for name in names if name != dropped]
            width = LEAST_PARAMS + sum(_width(name, rows) for name in names if name != "params")
            for padding in (1, 0):
                if width + (1 + padding) * (len(names) - 1) <= self._console.size.width:
                    return names, padding
        return names, 0

    def _cells(self, record: TrialRecord) -> dict[str, str]:
        return {
            "trial": str(record.number),
            "state": record.state,
            "epoch": f"{record.epochs:g}/{self._epochs}",
            "curve": self._curve(record.number),
            **measures(record),
        }

    def _curve(self, number: int) -> str:
        """The training loss at every step so far."""
        follower, curve = self._curves.setdefault(number, (Follower(self._history.path(number)), Curve()))
        for report in follower.fresh():
            curve.add(report["curves"]["loss"])
        return sparkline(curve.values, CURVE_WIDTH, ascii_only=self._console.options.ascii_only)

    def _that_fit(self, records: Sequence[TrialRecord]) -> list[TrialRecord]:
        """As many trials as the screen has room for, in the order of their numbers: first of all those under way."""
        room = max(LEAST_ROWS, self._console.size.height - ROWS_AROUND)
        if len(records) > room:
            begun = [record for record in records if record.state != "waiting"]
            running = [record for record in begun if record.state == "running"]
            ended = [record for record in begun if record.state != "running"]
            records = [*running, *reversed(ended)][:room]
        return sorted(records, key=lambda record: record.number)


def measures(record: TrialRecord) -> dict[str, str]:
    """What a trial's last report said, as texts; empty where it said nothing."""
    metrics, speed = record.metrics, record.samples_per_s
    accuracy = metrics.get("val_accuracy")
    return {
        "loss": f"{metrics['train_loss']:.4f}" if "train_loss" in metrics else "",
        "val loss": f"{metrics['val_loss']:.4f}" if "val_loss" in metrics else "",
        "accuracy": "" if accuracy is None else f"{accuracy:.1%}",
        "samples/s": "" if speed is None else f"{speed:,.0f}",
    }


def _width(name: str, rows: Sequence[dict[str, str]]) -> int:
    least = CURVE_WIDTH if name == "curve" else len(name)
    return max([least, *(len(row[name]) for row in rows)])


def _cut(record: TrialRecord, room: int) -> str:
    """The parameters on one line, cut where there is no more room."""
    text = describe(record.params)
    if len(text) > room:
        text = text.replace(TASK_PREFIX, "")
    return text if len(text) <= room else f"{text[: room - 2]}.."
