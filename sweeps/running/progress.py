"""What a running sweep shows on stderr: a table that redraws on a terminal, a line a change elsewhere, or nothing.

Knows only trial records, how fast they went, and the folder of their curves.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from rich.console import Console

from sweeps.record.history import History
from sweeps.record.trial import TERMINAL, TrialRecord
from sweeps.running.live import LiveTable, measures
from sweeps.sweep import describe

MODES = ("auto", "rich", "plain", "none")


def progress_console(mode: str | None) -> Console:
    """stderr as `--progress` wants it; auto: rich on a terminal, plain on a pipe, in CI and where nothing can redraw.

    Raises ValueError for any other word.
    """
    mode = mode or "auto"
    if mode not in MODES:
        raise ValueError(f"--progress {mode} must be one of {', '.join(MODES)}")
    if mode == "auto":
        in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
        can_redraw = sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        mode = "rich" if can_redraw and not in_ci else "plain"
    return Console(stderr=True, force_terminal=mode == "rich", force_jupyter=False, quiet=mode == "none")


class Progress:
    """Shows every trial as it goes, the best so far and the time left for the sweep. A context.

    objectives: (metric, mode) that the sweep optimizes, for the best so far.
    """

    def __init__(
        self,
        console: Console,
        records: Sequence[TrialRecord],
        epochs: int,
        history: History,
        objectives: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._console = console
        self._records = {record.number: record for record in records}
        self._epochs = epochs
        self._objectives = objectives
        self._began = time.monotonic()
        self._done_at_start = self._share_done()
        self._live: LiveTable | None = None
        if console.is_terminal and not console.quiet:
            self._live = LiveTable(console, history, epochs, self._latest_last, self.said)

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.__exit__(*error)

    def update(self, record: TrialRecord) -> None:
        before = self._records.get(record.number, record)  # one that a growing sweep has added is new here
        # The latest last: where not all fit on the screen, those are shown. As a new table: a thread may be drawing.
        others = {number: other for number, other in self._records.items() if number != record.number}
        self._records = {**others, record.number: record}
        if self._live is None and (record.state, record.epochs) != (before.state, before.epochs):
            self._console.print(self._line(record), highlight=False, markup=False, soft_wrap=True)

    def seconds_left(self) -> float | None:
        """For the whole sweep, at the pace so far; None before there is one."""
        done = self._share_done() - self._done_at_start
        if done <= 0:
            return None
        return (time.monotonic() - self._began) / done * (len(self._records) - self._share_done())

    def said(self) -> str:
        """The best so far of each metric that the sweep optimizes, and the time that is left."""
        left = self.seconds_left()
        words = "starting" if left is None else f"{spoken(left)} left" if left > 0 else "finishing"
        return "; ".join([*self._bests(), words])

    def _bests(self) -> list[str]:
        found = []
        for metric, mode in self._objectives:
            rivals = [
                (record.metrics[metric], record.number)
                for record in self._records.values()
                if metric in record.metrics and record.feasible and record.state not in ("failed", "diverged")
            ]
            if rivals:
                value, number = min(rivals) if mode == "min" else max(rivals)
                found.append(f"best {metric} so far {value:.4g} (trial {number})")
        return found

    def _latest_last(self) -> list[TrialRecord]:
        return list(self._records.values())

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
            *(f"{name} {text}" for name, text in measures(record).items() if text),
        ]
        left = self.seconds_left()
        if left is not None and record.state == "running":
            cells.append(f"{spoken(left)} left")
        return "  ".join(cells)


def spoken(seconds: float) -> str:
    """A duration for people: 8 s, 3 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
