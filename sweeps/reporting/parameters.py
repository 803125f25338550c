"""Figures over hyperparameters: the metric against each, all of them together, and several objectives.

Knows the facts of a sweep, and nothing of how a figure is drawn.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sweeps.record.trial import TrialRecord
from sweeps.reporting.curves import by_state
from sweeps.reporting.drawing import (
    COLOURS,
    GREY,
    STATE_COLOURS,
    Axis,
    Figure,
    Panel,
    Series,
    all_above_zero,
    is_number,
    short,
    spread_over_decades,
)
from sweeps.reporting.facts import Facts
from sweeps.searching.front import pareto_trials
from sweeps.sweep import describe

MOST_PANELS = 12  # hyperparameters with a panel of their own
MOST_LINES = 200  # of the parallel coordinates: more of them are a grey area
FEW = 5  # whole numbers, each of which has a tick
TICK_CHARACTERS = 20  # of a value on an axis; of more, the picture has no room left
OUTSIDE = 0.08  # of the height: how far beyond the worst value those stand that have none


@dataclasses.dataclass(frozen=True)
class Scale:
    """Where the values of one hyperparameter stand on an axis."""

    axis: Axis
    places: Mapping[str, float]

    def at(self, value: Any) -> float:
        return self.places[repr(value)]


def scale_of(name: str, trials: Sequence[TrialRecord]) -> Scale:
    """Numbers stand where they are; whatever else there is, side by side."""
    values = [trial.params[name] for trial in trials if name in trial.params]
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values) and len(set(values)) <= FEW:
        return Scale(Axis(name, ticks=[(float(v), str(v)) for v in sorted(set(values))]), {repr(v): v for v in values})
    if all(map(is_number, values)):
        log = spread_over_decades([float(value) for value in values])
        return Scale(Axis(name, log=log), {repr(value): float(value) for value in values})
    texts = {repr(value): _cut(value if isinstance(value, str) else json.dumps(value, default=str)) for value in values}
    order = sorted(texts, key=lambda key: texts[key])
    ticks = [(float(index), texts[key]) for index, key in enumerate(order)]
    return Scale(Axis(name, ticks=ticks), {key: float(index) for index, key in enumerate(order)})


def _cut(text: str) -> str:
    return text if len(text) <= TICK_CHARACTERS else f"{text[: TICK_CHARACTERS - 3]}..."


def against_parameters(facts: Facts, importances: Mapping[str, float]) -> Figure | None:
    """The metric against each hyperparameter, the most important first; None where nothing was varied, or no trial
    has a value."""
    names = facts.searched()
    values = [value for trial in facts.begun if (value := facts.value(trial)) is not None]
    if not names or not values:
        return None
    names.sort(key=lambda name: -importances.get(name, 0.0))
    log = spread_over_decades(values)
    outside = _beyond_the_worst(values, log=log, larger_is_better=facts.larger_is_better)
    panels = []
    for name in names[:MOST_PANELS]:
        scale = scale_of(name, facts.begun)
        placed = [(scale.at(trial.params[name]), trial) for trial in facts.begun if name in trial.params]
        series = by_state(facts, [(x, trial) for x, trial in placed if facts.value(trial) is not None])
        without = [(x, trial) for x, trial in placed if facts.value(trial) is None and trial.state != "running"]
        series += [_faint(one) for one in by_state(facts, without, y=outside)]
        panels.append(Panel(scale.axis, Axis(facts.measure, log=log), series))
    words = f"{facts.measure} of {len(values)} trials against {', '.join(names[:MOST_PANELS])}."
    note = ""
    if any(facts.value(trial) is None and trial.state in ("diverged", "failed", "pruned") for trial in facts.begun):
        edge = "bottom" if facts.larger_is_better else "top"
        note = (
            f"What stands at the {edge} edge, pale, has no value: it diverged, failed, or was pruned before it had one."
        )
    if len(names) > MOST_PANELS:
        note += f" {len(names) - MOST_PANELS} more hyperparameters have no panel."
    return Figure("parameters", f"{facts.measure} against each hyperparameter", panels, words, note.strip())


def _faint(series: Series) -> Series:
    return dataclasses.replace(series, opacity=0.5, label=f"{series.label}, no value")


def _beyond_the_worst(values: Sequence[float], *, log: bool, larger_is_better: bool) -> float:
    low, high = min(values), max(values)
    if log:
        factor = math.exp(OUTSIDE * math.log(high / low))
        return low / factor if larger_is_better else high * factor
    far = OUTSIDE * (high - low) or 0.1 * abs(high) or 0.1
    return low - far if larger_is_better else high + far


def parallel(facts: Facts) -> Figure | None:
    """Each trial as a line through all its hyperparameters to what it came to; None for fewer than two."""
    names = facts.searched()[:MOST_PANELS]
    measured = [trial for trial in facts.in_order() if facts.value(trial) is not None]
    whole = [trial for trial in measured if all(name in trial.params for name in names)][:MOST_LINES]
    if len(names) < 2 or len(whole) < 2:
        return None
    columns = [_heights(scale_of(name, whole), [trial.params[name] for trial in whole]) for name in names]
    results = [value for trial in whole if (value := facts.value(trial)) is not None]
    log = spread_over_decades(results)
    columns.append(_heights(Scale(Axis(facts.measure, log=log), {repr(v): v for v in results}), results))
    x = [float(index) for index in range(len(columns))]
    series = []
    for rank, (trial, *heights) in reversed(list(enumerate(zip(whole, *(c[0] for c in columns), strict=True)))):
        best = rank < 3
        text = f"trial {trial.number} ({describe(trial.params)}): {facts.measure} {facts.value(trial):.4g}"
        colour = COLOURS[rank] if best else GREY
        label = f"{rank + 1}. trial {trial.number}" if best else ""
        series.append(
            Series(
                "line", x, heights, label, colour, [text] * len(x), width=2.5 if best else 1.0,
                opacity=1.0 if best else 0.5,
            )
        )  # fmt: skip
    ends = [f"{name}\n{low} to {high}" for name, (_, low, high) in zip([*names, facts.measure], columns, strict=True)]
    note = "From the lowest value of each at the bottom to the highest at the top, logarithmic where it spans decades;"
    note += " the three best are coloured."
    if len(measured) > len(whole):
        note += f" {len(whole)} of {len(measured)} trials are shown."
    words = f"Each of {len(whole)} trials as a line through {', '.join(names)} and {facts.measure}."
    x_axis = Axis("", ticks=list(zip(x, ends, strict=True)), limits=(-0.15, len(x) - 0.85))
    panel = Panel(x_axis, Axis("", ticks=[(0.0, "low"), (1.0, "high")]), series)
    return Figure("parallel", "All hyperparameters together", [panel], words, note)


def _heights(scale: Scale, values: Sequence[Any]) -> tuple[list[float], str, str]:
    """Where values stand between 0 and 1, and the lowest and the highest of them in words."""
    places = [scale.at(value) for value in values]
    used = [math.log(place) for place in places] if scale.axis.log else places
    low, high = min(used), max(used)
    heights = [(place - low) / (high - low) if high > low else 0.5 for place in used]
    named = dict(scale.axis.ticks)
    bottom, top = (named.get(place, short(place)) for place in (min(places), max(places)))
    return heights, bottom[:12], top[:12]


def pareto(facts: Facts) -> Figure | None:
    """The trials by their first two objectives, and those that no other beats; None for one objective."""
    if len(facts.sweep.objectives) < 2:
        return None
    (first, _), (second, _) = facts.sweep.objectives[:2]
    complete = [
        trial for trial in facts.trials
        if trial.state == "complete" and all(is_number(trial.metrics.get(name)) for name in (first, second))
    ]  # fmt: skip
    if not complete:
        return None
    front = pareto_trials(facts.trials, facts.sweep)
    within = [trial for trial in complete if trial.feasible and trial not in front]
    beyond = [trial for trial in complete if not trial.feasible]

    def points(trials: Sequence[TrialRecord], label: str, colour: str, **how: Any) -> Series:
        texts = [f"trial {trial.number} ({describe(trial.params)})" for trial in trials]
        x, y = ([trial.metrics[name] for trial in trials] for name in (first, second))
        return Series("points", x, y, label, colour, texts, **how)

    series = [points(within, "beaten by another", GREY)] if within else []
    if beyond:
        series.append(points(beyond, "beyond the limits", STATE_COLOURS["diverged"], symbol="x", opacity=0.6))
    if front:
        line = sorted(front, key=lambda trial: trial.metrics[first])
        x, y = ([trial.metrics[name] for trial in line] for name in (first, second))
        if len(facts.sweep.objectives) == 2:
            series.append(Series("line", x, y, "", COLOURS[0], width=1.0, opacity=0.5))
        series.append(points(front, "beaten by none", COLOURS[0]))
        series.append(points(front[:1], "knee", COLOURS[1], symbol="star"))
    words = f"{len(complete)} trials by {first} and {second}; {len(front)} of them are beaten by no other."
    note = "" if len(facts.sweep.objectives) == 2 else "The first two objectives; the ranking goes by all of them."
    x_axis, y_axis = (Axis(name, log=_is_log(complete, name)) for name in (first, second))
    return Figure("pareto", "Objectives against each other", [Panel(x_axis, y_axis, series)], words, note)


def _is_log(trials: Sequence[TrialRecord], name: str) -> bool:
    values = [trial.metrics[name] for trial in trials]
    return all_above_zero(values) and spread_over_decades(values)
