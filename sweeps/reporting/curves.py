"""Figures over time: the losses of all trials, their order of success, and who worked when.

Knows the facts of a sweep, and nothing of how a figure is drawn.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from sweeps.answers.seeds import without_seed
from sweeps.record.trial import TrialRecord
from sweeps.reporting.drawing import (
    COLOURS,
    GREY,
    STATE_COLOURS,
    SYMBOLS,
    Axis,
    Figure,
    Panel,
    Series,
    all_above_zero,
    spread_over_decades,
)
from sweeps.reporting.facts import Facts, Track
from sweeps.sweep import describe

NAMED = len(COLOURS)  # configurations with a colour of their own; the others are grey
LEGEND_CHARACTERS = 24  # of parameters in a legend; where they are longer, it names the trial
SMOOTH_SHARE = 0.05  # of its points that a smoothed curve averages over
PAUSE_S = 2.0  # between two stretches of work on a trial; shorter gaps are what a report costs
HEADROOM = 1.5  # over the loss of an untrained model: what diverges leaves the picture there


def loss_curves(facts: Facts) -> Figure | None:
    """Training and validation loss of every trial over its epochs; None before the first report."""
    order = [trial for trial in facts.in_order() if trial.number in facts.tracks]
    if not order:
        return None
    colours = _colours(order)
    series: list[Series] = []
    firsts = {_name(trial): trial.number for trial in reversed(order)}  # of several seeds one stands in the legend
    for trial in reversed(order):  # the best is drawn last, above the others
        name = _name(trial)
        short = name if len(name) <= LEGEND_CHARACTERS else f"trial {trial.number}"
        label = short if name in colours and firsts[name] == trial.number else ""
        colour = colours.get(name, GREY)
        series += _curves_of(trial, facts.tracks[trial.number], colour, label, named=name in colours)
    series += _ends_of_diverged(facts, order)
    values = [value for one in series for value in one.y if value is not None]
    every = max(facts.tracks[trial.number].every for trial in order)
    note = f"With dots: validation loss. Without: training loss, smoothed over {SMOOTH_SHARE:.0%} of its steps."
    if every > 1:
        note += f" Each of its points is the mean over up to {every} steps."
    if len(colours) < len({_name(trial) for trial in order}):
        note += f" The {NAMED} best are coloured, the others grey."
    if any(trial.state == "diverged" for trial in order):
        note += " A cross is where a trial diverged."
    best = facts.best
    words = f"Loss curves of {len(order)} trials over their epochs, training and validation."
    if best is not None and "val_loss" in best.metrics:
        words += f" The best, trial {best.number}, ends with a validation loss of {best.metrics['val_loss']:.4g}."
    y = Axis("loss", log=all_above_zero(values), limits=_in_view(facts, order, values))
    return Figure("loss_curves", "Loss curves", [Panel(Axis("epoch"), y, series)], words, note)


def _name(trial: TrialRecord) -> str:
    return describe(without_seed(trial.params))


def _colours(order: Sequence[TrialRecord]) -> dict[str, str]:
    """Of the first configurations; over seeds they share one."""
    names = list(dict.fromkeys(_name(trial) for trial in order))
    return dict(zip(names, COLOURS, strict=False))


def _curves_of(trial: TrialRecord, track: Track, colour: str, label: str, *, named: bool) -> list[Series]:
    said = f"trial {trial.number} ({describe(trial.params)})"
    epochs, losses = [epoch for epoch, _ in track.losses], smoothed([loss for _, loss in track.losses])
    evaluated = [report for report in track.reports if report["metrics"].get("val_loss") is not None]
    thick = 2.0 if named else 1.0
    if len(evaluated) < 2:  # then the training loss is the curve, and the validation loss a point
        found = [Series("line", epochs, losses, label, colour, [f"{said}, training"], width=thick)]
    else:
        found = [Series("line", epochs, losses, "", colour, [f"{said}, training"], width=1.0, opacity=0.6)]
    if evaluated:
        x = [float(report["epoch"]) for report in evaluated]
        y = [float(report["metrics"]["val_loss"]) for report in evaluated]
        label = label if len(evaluated) > 1 else ""
        found.append(Series("line", x, y, label, colour, [f"{said}, validation"], symbol="dot", width=thick))
    return found


def _ends_of_diverged(facts: Facts, order: Sequence[TrialRecord]) -> list[Series]:
    """A cross at the last finite loss of each."""
    x, y, texts = [], [], []
    for trial in order:
        finite = [(epoch, loss) for epoch, loss in facts.tracks[trial.number].losses if loss is not None]
        if trial.state == "diverged" and finite:
            x.append(finite[-1][0])
            y.append(finite[-1][1])
            texts.append(f"trial {trial.number} ({describe(trial.params)}) diverged: {trial.reason or ''}")
    if not x:
        return []
    return [Series("points", x, y, "", STATE_COLOURS["diverged"], texts, symbol=SYMBOLS["diverged"])]


def smoothed(values: Sequence[float | None]) -> list[float | None]:
    """An exponential average without the bias of its start (as Adam's), which begins anew after a gap."""
    new = 1 / max(1.0, SMOOTH_SHARE * len(values))
    smooth, weight = 0.0, 0.0
    found: list[float | None] = []
    for value in values:
        if value is None:
            smooth, weight = 0.0, 0.0
            found.append(None)
            continue
        smooth = (1 - new) * smooth + new * value
        weight = (1 - new) * weight + new
        found.append(smooth / weight)
    return found


def _in_view(facts: Facts, order: Sequence[TrialRecord], values: Sequence[float]) -> tuple[float, float] | None:
    """Where one trial's loss shoots up, the others would be a line at the bottom."""
    firsts = [loss for trial in order for _, loss in facts.tracks[trial.number].losses[:1] if loss is not None]
    if not firsts or not values:
        return None
    top = HEADROOM * max(abs(statistics.median(firsts)), abs(min(values)))
    return (min(values), top) if max(values) > top > min(values) else None


def by_number(facts: Facts) -> Figure | None:
    """What each trial came to, in the order of their numbers, and the best so far; None where no order means anything
    (a scan tries what it was given) or no trial has a value."""
    if not facts.sweep.space or facts.sweep.metrics:
        return None
    measured = [(trial, value) for trial in facts.begun if (value := facts.value(trial)) is not None]
    if not measured:
        return None
    series = by_state(facts, [(float(trial.number), trial) for trial, _ in measured])
    best: list[float] = []
    order = [(trial, value) for trial, value in measured if trial.state == "complete" and trial.feasible]
    for _, value in order:
        best.append(value if not best else max(best[-1], value) if facts.larger_is_better else min(best[-1], value))
    if best:
        numbers = [float(trial.number) for trial, _ in order]
        series.append(Series("line", numbers, best, "best so far", COLOURS[2], width=2.0))
    values = [value for _, value in measured]
    log = spread_over_decades(values)
    words = f"{facts.measure} of {len(measured)} trials in the order of their numbers, and the best so far."
    panel = Panel(Axis("trial"), Axis(facts.measure, log=log), series)
    return Figure("history", "What each trial came to", [panel], words)


def by_state(facts: Facts, placed: Sequence[tuple[float, TrialRecord]], y: float | None = None) -> list[Series]:
    """Points for trials at these places, a series for each state, all at `y` where that is given."""
    found = []
    for state in STATE_COLOURS:
        some = [(x, trial) for x, trial in placed if trial.state == state]
        if some:
            heights = [facts.value(trial) if y is None else y for _, trial in some]
            texts = [f"trial {trial.number} ({describe(trial.params)}), {state}" for _, trial in some]
            found.append(
                Series(
                    "points", [x for x, _ in some], heights, state, STATE_COLOURS[state], texts,
                    symbol=SYMBOLS.get(state, "circle"),
                )
            )  # fmt: skip
    return found


def timeline(facts: Facts) -> Figure | None:
    """Which trial was worked on when, a row for each that ran at a time; None before the first report."""
    stretches = [
        (begin, end, trial)
        for trial in facts.begun
        if trial.number in facts.tracks
        for begin, end in _stretches(facts.tracks[trial.number])
    ]
    if not stretches:
        return None
    stretches.sort(key=lambda stretch: (stretch[0], stretch[1]))
    start = stretches[0][0]
    free_at: list[float] = []  # of each row
    rows: dict[str, list[tuple[float, float, int, TrialRecord]]] = {}
    for begin, end, trial in stretches:
        row = next((index for index, free in enumerate(free_at) if free <= begin), len(free_at))
        free_at[row:] = [end, *free_at[row + 1 :]]
        rows.setdefault(trial.state, []).append((begin - start, end - start, row, trial))
    longest = max(end for _, end, _ in stretches) - start
    unit, seconds = ("h", 3600.0) if longest > 3 * 3600 else ("min", 60.0) if longest > 300 else ("s", 1.0)
    series = [
        Series(
            "spans", [begin / seconds for begin, _, _, _ in some], [float(row) for _, _, row, _ in some], state,
            STATE_COLOURS[state], [f"trial {trial.number} ({describe(trial.params)}), {state}" for *_, trial in some],
            [end / seconds for _, end, _, _ in some],
        )
        for state, some in rows.items()
    ]  # fmt: skip
    ticks = [(float(row), str(row + 1)) for row in range(len(free_at))]
    words = f"{len(stretches)} stretches of work on trials, at most {len(free_at)} of them at a time."
    note = "From each trial's reports: what an attempt did after its last report is not in it."
    panel = Panel(Axis(f"{unit} since the first"), Axis("at once", ticks=ticks), series)
    return Figure("timeline", "Who worked when", [panel], words, note)


def _stretches(track: Track) -> list[tuple[float, float]]:
    """Begin and end of each attempt, in seconds of the clock, as far as its reports tell: each was written when it
    was made, and says how long the training had taken by then."""
    found: list[tuple[float, float]] = []
    before = 0.0
    for report in track.reports:
        end, took = report["time_ms"] / 1000, max(0.0, report["seconds"] - before)
        before = report["seconds"]
        begin = end - took
        if found and begin - found[-1][1] < max(PAUSE_S, took):
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found
