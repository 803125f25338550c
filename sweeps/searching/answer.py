"""The answer of a search: its trials in order, and what is said of the best one.

Also whether the best one stands at an edge of its range. Knows nothing of how trials run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeps.answers.judgement import Judgement
from sweeps.answers.seeds import Configuration, ranked, without_seed
from sweeps.record.history import History
from sweeps.record.trial import TrialRecord
from sweeps.searching.front import best_first, pareto_trials, values_of
from sweeps.spaces.draw import holds
from sweeps.spaces.function import is_function
from sweeps.spaces.grammar import Choice, Entries, Fixed, Range, parse_space
from sweeps.sweep import Sweep, describe

NEAR_EDGE = 0.02  # of a range, as it is searched: of a logarithmic one, of its logarithm
STATES = ("pruned", "diverged", "failed")


@dataclass(frozen=True)
class SearchJudge:
    """Judges a search by the objectives and limits of its sweep."""

    sweep: Sweep

    def __call__(self, trials: Sequence[TrialRecord], history: History) -> Judgement:
        """Put the trials in order, and say in a few sentences what came of them."""
        sweep = self.sweep
        if sweep.num_seeds > 1:
            configurations = self._over_seeds(trials)
            order = [one.first for one in configurations if one.estimate is not None]
            opening = _of_seeds(configurations, sweep)
        else:
            configurations, order = [], best_first(trials, sweep)
            opening = _of_front(trials, sweep) if sweep.metrics else _of_best(order, sweep)
        sentences = [opening, _counted(trials, sweep)]
        if order:
            sentences += map(str, at_edges(sweep, without_seed(order[0].params)))
        return Judgement(list(trials), order, " ".join(sentences), configurations)

    def _over_seeds(self, trials: Sequence[TrialRecord]) -> list[Configuration]:
        """By the first objective's mean. What is off limits for one seed is so for all."""
        within = {trial.number: values_of(trial, self.sweep)[0] for trial in best_first(trials, self.sweep)}
        found = ranked(trials, within, self.sweep.train.seed, larger_is_better=self.sweep.mode == "max")
        off = [one for one in found if any(not trial.feasible for trial in one.trials.values())]
        return [*(one for one in found if one not in off), *off]


def _of_best(order: Sequence[TrialRecord], sweep: Sweep) -> str:
    if not order:
        return f"No trial has an answer{' within the limits' if sweep.constraints else ''}."
    best = order[0]
    said = f"Best: trial {best.number} with {sweep.metric} {best.metrics[sweep.metric]:.4g} ({describe(best.params)})"
    if len(order) > 1:
        said += f"; the next has {order[1].metrics[sweep.metric]:.4g}"
    return said + "."


def _of_front(trials: Sequence[TrialRecord], sweep: Sweep) -> str:
    front = pareto_trials(trials, sweep)
    if not front:
        return _of_best(front, sweep)
    knee = front[0]
    values = ", ".join(
        f"{name} {value:.4g}" for (name, _), value in zip(sweep.objectives, values_of(knee, sweep), strict=True)
    )
    whole = "one trial beats all others" if len(front) == 1 else f"{len(front)} trials that no other beats"
    return f"Pareto set: {whole}; its knee is trial {knee.number} with {values} ({describe(knee.params)})."


def _of_seeds(configurations: Sequence[Configuration], sweep: Sweep) -> str:
    placed = [one for one in configurations if one.estimate is not None]
    if not placed:
        return _of_best([], sweep)
    best, others = placed[0], placed[1:]
    said = f"Best: {describe(best.params)} with {sweep.metric} {best.estimate} over {len(best.counted)} seeds"
    known = [one for one in others if one.beside is not None and one.beside.is_known]
    tied = [one for one in known if one.beside is not None and one.beside.tied]
    if tied:
        more = [one.beside.seeds for one in tied if one.beside is not None and one.beside.seeds is not None]
        said += f"; a tie: {len(tied)} of the {len(known)} others lie within the noise"
        said += f" (the next: {describe(tied[0].params)})"
        if more:
            said += f", about {min(more)} seeds would tell the easiest of them"
    elif known:
        said += f"; the difference from the next ({known[0].estimate}) is more than noise"
    return said + "."


def _counted(trials: Sequence[TrialRecord], sweep: Sweep) -> str:
    """How many trials, and what became of those that are not in the order."""
    begun = [trial for trial in trials if trial.state != "waiting"]
    parts = [f"{len(begun)} trial{'s' * (len(begun) != 1)}"]
    for state in STATES:
        if count := sum(trial.state == state for trial in begun):
            parts.append(f"{count} {state}")
    if count := sum(trial.state == "complete" and not trial.feasible for trial in begun):
        parts.append(f"{count} beyond the limits")
    if count := sum(trial.state == "running" for trial in begun):
        parts.append(f"{count} under way")
    said = ", ".join(parts) + "."
    if len(trials) < sweep.num_planned or _is_all(trials, sweep):
        said += " That is every configuration of the space."
    return said


def _is_all(trials: Sequence[TrialRecord], sweep: Sweep) -> bool:
    asked = (sweep.num_trials or 0) * sweep.num_seeds
    return bool(sweep.space) and sweep.num_planned < asked and all(trial.state != "waiting" for trial in trials)


@dataclass(frozen=True)
class Edge:
    """A number that lies at an end of its range, and where the range could end instead."""

    name: str
    value: float
    end: str  # lower or upper
    bound: float
    further: float

    def __str__(self) -> str:
        return (
            f"{self.name}={self.value:g} is at the {self.end} end of its range ({self.bound:g}): "
            f"widen it to {self.further:g}, the best may lie beyond."
        )


def at_edges(sweep: Sweep, params: Mapping[str, Any]) -> list[Edge]:
    """Each number of these parameters that lies at an end of its range and could go beyond it."""
    if not sweep.space or is_function(sweep.space):
        return []
    found = []
    for name, entry in _ranges(parse_space(sweep.space), params):
        position = _position(entry, float(params[name]))
        for end, bound, is_near in (
            ("lower", entry.low, position <= NEAR_EDGE),
            ("upper", entry.high, position >= 1 - NEAR_EDGE),
        ):
            further = _beyond(entry, upper=end == "upper") if is_near else None
            if further is not None and _is_possible(sweep, {**params, name: further}):
                found.append(Edge(name, params[name], end, bound, further))
    return found


def _ranges(entries: Entries, params: Mapping[str, Any]) -> Iterator[tuple[str, Range]]:
    """The ranges that these parameters were drawn from, along the branches that were chosen."""
    for name, entry in entries.items():
        if name not in params:
            continue
        if isinstance(entry, Range):
            yield name, entry
        for option in entry.options if isinstance(entry, Choice) else ():
            if holds(option.drawn or Fixed(option.value), params[name]):
                if isinstance(option.drawn, Range):
                    yield name, option.drawn
                yield from _ranges(option.brings, params)


def _position(entry: Range, value: float) -> float:
    """0 at the lower end, 1 at the upper."""
    low, high = float(entry.low), float(entry.high)
    if entry.log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return (value - low) / (high - low)


def _beyond(entry: Range, *, upper: bool) -> float | None:
    """A round place beyond an end: ten times as far, or half a range further; None where there is none."""
    if entry.log:
        further = entry.high * 10 if upper else entry.low / 10
        return further if not entry.whole else int(further) or None
    if entry.step is not None:  # a range that its step does not divide is none
        steps = entry.count() or 1
        return entry.at(steps - 1 + (steps + 1) // 2) if upper else entry.at(-((steps + 1) // 2))
    far = (entry.high - entry.low) / 2
    if entry.whole:
        far = max(1, int(far))
    return entry.high + far if upper else entry.low - far


def _is_possible(sweep: Sweep, params: Mapping[str, Any]) -> bool:
    try:
        sweep.trial_config(params)
    except ValueError:
        return False
    return True
