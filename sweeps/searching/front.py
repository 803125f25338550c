"""Trials in order, by one objective or several: the answer to a search.

Whatever is off limits, or has no answer, has no place. Knows what the ledger knows of trials, and no table.
"""

from __future__ import annotations

from collections.abc import Sequence

from sweeps.record.trial import TrialRecord
from sweeps.searching.pareto import knee, pareto_set
from sweeps.sweep import Sweep


def best_first(trials: Sequence[TrialRecord], sweep: Sweep) -> list[TrialRecord]:
    """Complete trials within the limits. With several objectives the knee of the Pareto set comes first, then the
    rest of the set; then the same for the trials that are left without them, and so on."""
    left = [trial for trial in trials if trial.state == "complete" and trial.feasible]
    modes = [mode for _, mode in sweep.objectives]
    if len(modes) == 1:
        sign = 1 if modes[0] == "min" else -1
        return sorted(left, key=lambda trial: (sign * values_of(trial, sweep)[0], trial.number))
    found: list[TrialRecord] = []
    while left:
        rows = [values_of(trial, sweep) for trial in left]
        first = knee(rows, modes)
        front = sorted(pareto_set(rows, modes), key=lambda index: (index != first, left[index].number))
        found += [left[index] for index in front]
        left = [trial for index, trial in enumerate(left) if index not in front]
    return found


def pareto_trials(trials: Sequence[TrialRecord], sweep: Sweep) -> list[TrialRecord]:
    """Those that no other beats in all objectives, the knee first."""
    within = [trial for trial in trials if trial.state == "complete" and trial.feasible]
    count = len(pareto_set([values_of(trial, sweep) for trial in within], [mode for _, mode in sweep.objectives]))
    return best_first(within, sweep)[:count]


def values_of(trial: TrialRecord, sweep: Sweep) -> list[float]:
    """The objectives of a complete trial, in the order of the sweep."""
    return [trial.metrics[name] for name, _ in sweep.objectives]
