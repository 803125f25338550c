"""python -m sweeps: all sweeps of a results folder, the newest first. Reads only, also while they run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from sweeps.answers.overview import Overview, look
from sweeps.cli import Parser, fail
from sweeps.record.store import sweeps_in
from sweeps.running.resume import resume_command
from sweeps.show import console_for_tables


def parser() -> Parser:
    flags = Parser(prog="python -m sweeps", description=__doc__.partition("\n")[0])
    flags.add_argument("--results", metavar="DIR", default="results", help="where sweeps are kept (default: results)")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code (0 listed, 1 one of them cannot be read, 2 there is no such folder)."""
    results = Path(parser().parse_args(arguments).results).expanduser().resolve()
    if not results.is_dir():
        fail(f"there is no folder {results}; say with --results DIR where the sweeps are")
    found, unreadable = [], []
    for folder in sweeps_in(results):
        try:
            found.append(look(folder))
        except ValueError as error:
            unreadable.append(str(error))
    console = console_for_tables()
    if found:
        console.print(_table(found))
    elif not unreadable:
        console.print(f"no sweeps in {results}; begin one with python -m sweeps.lr_scan", markup=False)
    for line in unreadable:
        print(f"error: {line}", file=sys.stderr)
    return 1 if unreadable else 0


def _table(found: Sequence[Overview]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", "state", "trials", "best", "last active", "resume"):
        table.add_column(heading, no_wrap=heading not in ("name", "best", "resume"), overflow="fold")
    for sweep in found:
        table.add_row(
            Text(sweep.name),
            sweep.state,
            f"{sweep.done}/{len(sweep.trials)}",
            Text(sweep.best),
            f"{sweep.age} ago",
            Text(resume_command(sweep.folder, sweep.question)),
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
