"""python -m sweeps.show NAME: one sweep with its trials, their failures and reasons. Reads only, also while it runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sweeps.answers.overview import Overview, look
from sweeps.cli import Parser, fail
from sweeps.record.store import existing_sweep
from sweeps.release.openings import openings_in
from sweeps.running.live import STYLES
from sweeps.running.resume import resume_command
from sweeps.sweep import describe


def parser() -> Parser:
    flags = Parser(prog="python -m sweeps.show", description=__doc__.partition("\n")[0])
    flags.add_argument("name", help="the sweep's name")
    flags.add_argument("--results", metavar="DIR", default="results", help="where sweeps are kept (default: results)")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code (0 shown, 2 there is no such sweep)."""
    asked = parser().parse_args(arguments)
    try:
        found = look(existing_sweep(Path(asked.results).expanduser().resolve(), asked.name))
    except ValueError as error:
        fail(str(error))
    show(found, console_for_tables())
    return 0


def console_for_tables() -> Console:
    """A table fits itself into a terminal; a pipe or a file gets whole lines, however long."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 1000)


def show(found: Overview, console: Console) -> None:
    """Print a sweep: what it is, its trials, what went wrong, and what goes on with it."""
    console.print(
        f"{found.name} ({found.state}): {found.question} of {found.task}, last active {found.age} ago", markup=False
    )
    if found.owner:
        console.print(f"its driver is process {found.owner[1]} on {found.owner[0]}", markup=False)
    metric = found.metric
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("trial", "params", "state", "epoch", metric, "attempts"):
        table.add_column(heading, justify="left" if heading in ("params", "state") else "right", no_wrap=True)
    for trial in found.trials:
        value = trial.metrics.get(metric)
        table.add_row(
            str(trial.number),
            Text(describe(trial.params)),
            Text(trial.state, style=STYLES[trial.state]),
            f"{trial.epochs:g}/{found.epochs}",
            "" if value is None or not math.isfinite(value) else f"{value:.4g}",
            str(trial.attempts),
        )
    console.print(table)
    for trial in found.trials:
        if trial.reason:
            console.print(f"trial {trial.number} {trial.state}: {trial.reason.strip().splitlines()[-1]}", markup=False)
    for change in found.drift:
        console.print(f"changed on a resume: {change}", markup=False)
    if found.verdict:
        console.print(f"\n{found.verdict}\n", markup=False)
    if looks := openings_in(found.folder):
        times = "once" if len(looks) == 1 else f"{len(looks)} times"
        console.print(f"its test samples were opened {times}, last at {looks[-1].day} UTC for trial {looks[-1].trial}")
    console.print(f"results  {found.folder.path}", markup=False)
    console.print(f"MLflow   {found.tracking_uri}", markup=False)
    console.print(f"resume   {resume_command(found.folder, found.question)}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
