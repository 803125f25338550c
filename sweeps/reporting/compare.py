"""Several sweeps side by side: what each found, how sure, how long it took, and what makes them incomparable.

Knows the facts of each, and nothing of how a figure is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sweeps.answers.seeds import Configuration, without_seed
from sweeps.answers.statistics import Estimate, estimate
from sweeps.record.trial import TERMINAL
from sweeps.reporting.drawing import COLOURS, GREY, Axis, Figure, Panel, Series, spread_over_decades
from sweeps.reporting.facts import Facts
from sweeps.reporting.page import Section, Table
from sweeps.running.progress import spoken
from sweeps.sweep import describe

CONFIDENCE = 0.95
MARGIN = 0.08  # of the width, beside the outermost of what is drawn


@dataclass(frozen=True)
class Found:
    """The best of a sweep by the metric that all are compared by. interval: of the mean over seeds; None: one seed."""

    name: str
    value: Estimate | None
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        if self.value is None:
            return "none"
        if self.interval is None:
            return f"{self.value.mean:.4g} (one seed)"
        low, high = self.interval
        return f"{self.value.mean:.4g} ({low:.4g} to {high:.4g} over {self.value.num} seeds)"


def common_metric(several: Sequence[Facts]) -> str:
    """What all of them rank by; else the validation loss, which every trial has."""
    measures = {facts.measure for facts in several}
    return measures.pop() if len(measures) == 1 else "val_loss"


def found_by(facts: Facts, metric: str) -> Found:
    best = facts.best
    if best is None:
        return Found(facts.sweep.name, None, None)
    one = _configuration_of(facts)
    trials = [best] if one is None else [one.trials[seed] for seed in one.counted]
    values = [trial.metrics[metric] for trial in trials if math.isfinite(trial.metrics.get(metric, math.nan))]
    value = estimate(values) if values else None
    return Found(facts.sweep.name, value, None if value is None else interval_of(value))


def _configuration_of(facts: Facts) -> Configuration | None:
    best = facts.best
    return next((one for one in facts.judgement.configurations if best in one.trials.values()), None)


def interval_of(value: Estimate) -> tuple[float, float] | None:
    """Where the true mean lies, 95 % sure, by Student's t; None for one seed."""
    if value.error is None:
        return None
    from scipy.special import stdtrit

    half = float(stdtrit(value.num - 1, (1 + CONFIDENCE) / 2)) * value.error
    return value.mean - half, value.mean + half


def differences(several: Sequence[Facts]) -> list[str]:
    """Sentences about what makes the numbers of these sweeps mean different things."""
    said = []

    def told(what: str, of: dict[str, str]) -> None:
        if len(set(of.values())) > 1:
            said.append(f"Not comparable: {what}: " + "; ".join(f"{name}: {value}" for name, value in of.items()) + ".")

    told("they are of different tasks", {facts.sweep.name: facts.sweep.task for facts in several})
    settings = {facts.sweep.name: describe(facts.sweep.task_settings) or "default" for facts in several}
    told("the settings of the task differ, and with them perhaps its data", settings)
    data = {
        facts.sweep.name: ", ".join(sorted({value[:8] for value in (facts.data or {}).values()})) for facts in several
    }
    if all(data.values()):
        told("they were trained on different data, or on another split of them", data)
    measures = {facts.sweep.name: facts.measure for facts in several}
    if len(set(measures.values())) > 1:
        parts = "; ".join(f"{name}: {measure}" for name, measure in measures.items())
        said.append(
            f"They rank by different metrics ({parts}), and are compared by the val_loss of what each found best."
        )
    epochs = {facts.sweep.name: f"{facts.sweep.epochs} epoch{'s' * (facts.sweep.epochs > 1)}" for facts in several}
    if len(set(epochs.values())) > 1:
        parts = "; ".join(f"{name}: {value}" for name, value in epochs.items())
        said.append(f"Their trials were trained for different times ({parts}).")
    for facts in several:
        if facts.state in ("running", "interrupted"):
            said.append(f"{facts.sweep.name} is {facts.state}: its best may change.")
    return said


def comparison(several: Sequence[Facts]) -> tuple[Table, Figure | None, list[str]]:
    """The table, its figure, and what to know when reading them."""
    metric = common_metric(several)
    found = [found_by(facts, metric) for facts in several]
    rows = []
    for facts, best in zip(several, found, strict=True):
        done = sum(trial.state in TERMINAL for trial in facts.trials)
        params = describe(without_seed(facts.best.params)) if facts.best else "none"
        took = spoken(facts.seconds) if facts.seconds is not None else ""
        rows.append([
            facts.sweep.name, facts.sweep.task, facts.sweep.question, f"{done} of {len(facts.trials)}", params,
            str(best), took,
        ])  # fmt: skip
    headings = ["sweep", "task", "question", "#trials", "best", metric, "#time"]
    table = Table(
        f"{len(several)} sweeps by the {metric} of the best of each (with the 95 % interval over seeds)", headings, rows
    )
    return table, _figure(found, metric), differences(several)


def _figure(found: Sequence[Found], metric: str) -> Figure | None:
    placed = [(float(len(found) - index), one) for index, one in enumerate(found) if one.value is not None]
    if not placed:
        return None
    series = []
    for y, one in placed:
        if one.interval is not None:
            series.append(
                Series("line", list(one.interval), [y, y], "", GREY, [f"{one.name}: {one}"] * 2, width=6, opacity=0.6)
            )
    x = [one.value.mean for _, one in placed if one.value is not None]
    series.append(
        Series("points", x, [y for y, _ in placed], "", COLOURS[0], [f"{one.name}: {one}" for _, one in placed])
    )
    ends = [end for _, one in placed if one.interval is not None for end in one.interval]
    values = [*x, *ends]
    log = spread_over_decades(values)
    margin = MARGIN * (max(values) - min(values)) or 0.1 * abs(values[0]) or 0.1
    limits = None if log else (min(values) - margin, max(values) + margin)
    ticks = [(float(len(found) - index), one.name) for index, one in enumerate(found)]
    y_axis = Axis("", ticks=ticks, limits=(0.5, len(found) + 0.5))
    words = (
        f"{metric} of the best of {len(placed)} sweeps: " + "; ".join(f"{one.name} {one}" for _, one in placed) + "."
    )
    note = (
        "Grey: the 95 % interval of the mean over seeds." if ends else "One seed each: how sure this is, is not known."
    )
    panel = Panel(Axis(metric, log=log, limits=limits), y_axis, series)
    return Figure("comparison", f"{metric} of the best of each", [panel], words, note)


def comparison_sections(table: Table, figure: Figure | None, words: Sequence[str]) -> list[Section]:
    return [Section("Comparison", words, table=table, figures=[figure] if figure else [])]
