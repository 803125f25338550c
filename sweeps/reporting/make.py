"""The report of one sweep, written: its figures as PNG, its page, what the next command reads.

Holds the parts together; each does its own work.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeps.answers.judgement import Judgement
from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.reporting.commands import commands_of
from sweeps.reporting.content import diagnosis_lines, diagnosis_of_best, sections, subtitle
from sweeps.reporting.curves import by_number, loss_curves, timeline
from sweeps.reporting.drawing import Figure
from sweeps.reporting.facts import Facts, gather
from sweeps.reporting.importance import Importances, importance_figure, importances_of
from sweeps.reporting.next_step import NextStep, next_step
from sweeps.reporting.page import page_of
from sweeps.reporting.parameters import against_parameters, parallel, pareto
from sweeps.reporting.png import write_png
from trainable.files import write_text

PAGE = "report.html"
FIGURES = ("loss_curves", "parameters", "pareto", "importances", "parallel", "history", "timeline")


@dataclass(frozen=True)
class Report:
    """What was written, and what is said beside the answer. figures: the PNG files, in the order of the page."""

    page: Path
    figures: Sequence[Path]
    step: NextStep | None
    importances: Importances
    diagnosis: str | None  # of the best, in words

    @property
    def files(self) -> list[Path]:
        return [self.page, *self.figures]


def make_report(facts: Facts) -> Report:
    """Write the report to its place, each file as a whole. Its figures of an earlier time are gone where there is
    nothing to draw any more."""
    place, importances = facts.place, importances_of(facts)
    figures = figures_of(facts, importances)
    paths = []
    for figure in figures:
        paths.append(place / f"{figure.name}.png")
        write_png(figure, paths[-1])
    for name in FIGURES:
        if name not in {figure.name for figure in figures}:
            (place / f"{name}.png").unlink(missing_ok=True)
    step = next_step(facts)
    for name, content in (step.files if step else {}).items():
        write_text(place / name, json.dumps(content, indent=1))
    page = page_of(facts.sweep.name, subtitle(facts), sections(facts, figures, importances, step), commands_of(facts))
    write_text(place / PAGE, page)
    said = next(iter(diagnosis_lines(facts)), None) if diagnosis_of_best(facts) else None
    return Report(place / PAGE, paths, step, importances, said)


def try_report(
    folder: Folder, ledger: Ledger, history: History, judgement: Judgement, state: str, verdict: str
) -> tuple[Report | None, str | None]:
    """The report at the end of a sweep, or a remark: the answer itself is on the disk, and no picture is worth it."""
    try:
        return make_report(gather(folder, ledger, history, judgement, state, verdict, folder.path)), None
    except Exception as error:  # the edge between the answer and its pictures
        return None, (
            f"the report could not be made ({type(error).__name__}: {error}); the answer is whole, and "
            f"python -m sweeps.report {folder.name} tries again"
        )


def report_files(folder: Folder) -> list[Path]:
    """What of a report is there, for whoever sends it on."""
    names = [PAGE, *(f"{name}.png" for name in FIGURES)]
    return [path for name in names if (path := folder.path / name).is_file()]


def figures_of(facts: Facts, importances: Importances) -> list[Figure]:
    found = (
        loss_curves(facts),
        against_parameters(facts, importances.shares),
        pareto(facts),
        importance_figure(importances),
        parallel(facts),
        by_number(facts),
        timeline(facts),
    )
    return [figure for figure in found if figure is not None]
