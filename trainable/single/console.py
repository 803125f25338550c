"""How one trial in this process shows where it stands: a progress bar on a terminal, lines elsewhere.

Everything goes to stderr: stdout is for the result. Needs rich for the bar only.
"""

from __future__ import annotations

import sys
import time
import warnings
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

from trainable.loop import Report

REDRAW_S = 0.1


class Console:
    """Lines, and below them a bar where there is a terminal and rich to draw it. Warnings become lines too."""

    def __init__(self, first_step: int, total_steps: int) -> None:
        self._began = time.perf_counter()
        self._drawn = 0.0
        self._first_step, self._total_steps = first_step, total_steps
        self._bar: Any = None
        self._show_warning: Any = None

    def __enter__(self) -> Self:
        self._show_warning, warnings.showwarning = warnings.showwarning, self._warn  # type: ignore[assignment]
        if sys.stderr.isatty() and find_spec("rich"):
            self._bar = _bar(self._total_steps, self._first_step)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        warnings.showwarning = self._show_warning
        if self._bar is not None:
            self._bar.stop()

    def line(self, text: str) -> None:
        if self._bar is None:
            print(text, file=sys.stderr, flush=True)
        else:
            self._bar.console.print(text, markup=False, highlight=False)

    def at(self, step: int) -> None:
        """Move the bar; cheap enough to be called at every step."""
        if self._bar is None or time.perf_counter() - self._drawn < REDRAW_S:
            return
        self._drawn = time.perf_counter()
        self._bar.update(self._bar.task_ids[0], completed=step, left=self._left(step))
        self._bar.refresh()

    def report(self, report: Report, epochs: int) -> None:
        values = [f"{name} {value:.4g}" for name, value in report.metrics.items()]
        words = [
            f"epoch {report.epoch:.4g}/{epochs}",
            f"step {report.step}/{report.total_steps}",
            *values,
            f"{report.samples_per_s:,.0f} samples/s",
        ]
        self.line("  ".join(words if report.done else [*words, self._left(report.step)]))
        self._drawn = 0.0
        self.at(report.step)

    def _left(self, step: int) -> str:
        if step <= self._first_step:
            return ""
        seconds = (time.perf_counter() - self._began) / (step - self._first_step) * (self._total_steps - step)
        return f"{seconds:.0f} s left" if seconds < 600 else f"{seconds / 60:.0f} min left"

    def _warn(self, message: Warning | str, *_: Any) -> None:
        self.line(f"warning: {message}")


def _bar(total: int, completed: int) -> Any:
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = RichConsole(stderr=True)
    # Drawn only when told to, and stdout left alone: a breakpoint() in the task keeps its prompt.
    bar = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps  {task.fields[left]}"),
        console=console,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    bar.add_task("", total=total, completed=completed, left="")
    bar.start()
    console.show_cursor(True)
    return bar
