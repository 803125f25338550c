"""python -m sweeps.report NAME [NAME ...]: a sweep's report made anew, also while it runs; of several, a comparison.

Reads the ledger and the history, and writes beside them: figures, a page that works offline.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sweeps.answers.overview import look
from sweeps.callable import make_callable
from sweeps.cli import Parser, fail
from sweeps.questions import judge_of
from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder, existing_sweep, why_not_writable
from sweeps.reporting.compare import comparison, comparison_sections
from sweeps.reporting.content import diagnosis_lines
from sweeps.reporting.facts import Facts, gather, so_far
from sweeps.reporting.make import make_report
from sweeps.reporting.page import Table as PageTable
from sweeps.reporting.page import page_of
from sweeps.reporting.png import write_png
from sweeps.show import console_for_tables
from trainable.files import write_text

COMPARISON = "comparison"


def parser() -> Parser:
    flags = Parser(prog="python -m sweeps.report", description=__doc__.partition("\n")[0])
    flags.add_argument("names", nargs="+", metavar="NAME", help="the sweep's name; of several, a comparison")
    flags.add_argument("--results", metavar="DIR", default="results", help="where sweeps are kept (default: results)")
    flags.add_argument(
        "--to", metavar="DIR", help="where the report goes (default: the sweep's folder; a comparison: --results)"
    )
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code (0 made, 2 there is no such sweep, or no place to write)."""
    asked = parser().parse_args(arguments)
    try:
        write(asked.names, Path(asked.results), asked.to and Path(asked.to), console_for_tables())
    except ValueError as error:
        fail(str(error))
    return 0


def write(names: Sequence[str], results: Path, to: Path | None, console: Console) -> Path:
    """Make the report, say what is in it, and return its page. Raises ValueError in words."""
    results = results.expanduser().resolve()
    folders = [existing_sweep(results, name) for name in dict.fromkeys(names)]
    if to is not None:
        to = to.expanduser().resolve()
        try:
            to.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--to {to}: it cannot be made ({error.strerror})") from error
    place = to or (folders[0].path if len(folders) == 1 else results)
    if problem := why_not_writable(place):
        raise ValueError(f"the report cannot be written to {place} ({problem}); choose another place with --to DIR")
    several = [facts_of(folder, place) for folder in folders]
    return _one(several[0], console) if len(several) == 1 else _compared(several, place, console)


def facts_of(folder: Folder, place: Path) -> Facts:
    """A sweep as it stands, judged by its own question, whose report goes to `place`.

    Raises ValueError where it cannot be read.
    """
    found = look(folder)
    ledger, history = Ledger(folder.ledger), History(folder.history)
    try:
        judgement = judge_of(ledger)(ledger.trials(), history)
        verdict = judgement.verdict
        if found.state in ("running", "interrupted"):
            verdict = so_far(verdict, judgement.trials, found.state)
        return gather(folder, ledger, history, judgement, found.state, verdict, place)
    finally:
        ledger.close()


def _one(facts: Facts, console: Console) -> Path:
    made = make_report(facts)
    console.print(f"{facts.sweep.name} ({facts.state})\n\n{facts.verdict}\n", markup=False)
    for line in diagnosis_lines(facts):
        console.print(line, markup=False)
    if made.importances.shares:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in made.importances.shares.items())
        console.print(f"importance: {shares}", markup=False)
        console.print(made.importances.words, markup=False)
    console.print(f"\nreport   {made.page}", markup=False)
    console.print(f"figures  {', '.join(path.name for path in made.figures) or 'none yet'}", markup=False)
    if made.step is not None:
        console.print(f"next     {made.step.command}\n         {made.step.why}", markup=False)
    return made.page


def _compared(several: Sequence[Facts], place: Path, console: Console) -> Path:
    table, figure, words = comparison(several)
    page = place / f"{COMPARISON}.html"
    if figure is not None:
        write_png(figure, place / f"{COMPARISON}.png")
    names = [facts.sweep.name for facts in several]
    write_text(page, page_of(" and ".join(names), [], comparison_sections(table, figure, words), {}))
    console.print(_for_console(table))
    for line in words:
        console.print(line, markup=False)
    console.print(f"report   {page}", markup=False)
    return page


def _for_console(table: PageTable) -> Table:
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in table.headings:
        found.add_column(
            Text(heading.lstrip("#")), justify="right" if heading.startswith("#") else "left", overflow="fold"
        )
    for row in table.rows:
        found.add_row(*(Text(cell) for cell in row))
    return found


if __name__ == "__main__":
    sys.exit(main())
make_callable(__name__)
