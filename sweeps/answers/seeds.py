"""Configurations over seeds: which trials are repetitions of one, what is known of each, and in which order they stand.

Seeds are paired: a seed gives every configuration the same order of samples, and equal models the same initial weights.
Knows no question: the number that is ranked by is handed in.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeps.answers.statistics import Comparison, Estimate, compare_with_first, estimate
from sweeps.record.trial import TERMINAL, TrialRecord
from sweeps.sweep import LARGEST_SEED, Sweep
from sweeps.sweep import SEED as SEED


@dataclass(frozen=True)
class Configuration:
    """What one set of parameters came to over its seeds.

    trials: its trials in the order of their seeds; values: seed -> what is ranked by, of the trials that have it;
    estimate: over `counted`, the seeds that it shares with all it is ranked beside; None without a value.
    beside: how the first in rank compares with it (None: it is the first, or diverged or failed for some seed that
    the first did not, so that the two say little about each other).
    """

    params: Mapping[str, Any]
    trials: Mapping[int, TrialRecord]
    values: Mapping[int, float]
    estimate: Estimate | None = None
    counted: tuple[int, ...] = ()
    beside: Comparison | None = None

    def seeds(self, *states: str) -> list[int]:
        """The seeds whose trials are in one of these states."""
        return [seed for seed, trial in self.trials.items() if trial.state in states]

    @property
    def first(self) -> TrialRecord:
        """The trial that stands for all: the first seed's that has a value; which seed is never picked by its value."""
        return self.trials[next(iter(self.values), next(iter(self.trials)))]

    def mean(self, metric: str) -> float | None:
        """Of what the last reports said, over the seeds that count and have it."""
        found = [metrics[metric] for seed in self.counted if metric in (metrics := self.trials[seed].metrics)]
        return sum(found) / len(found) if found else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values (JSON), for result.json."""
        return {
            "params": dict(self.params),
            "mean": self.estimate and self.estimate.mean,
            "standard_error": self.estimate and self.estimate.error,
            "seeds": {str(seed): self.values.get(seed) for seed in self.trials},
            "counted": list(self.counted),
            "trials": {str(seed): trial.number for seed, trial in self.trials.items()},
            "tied_with_best": self.beside.tied if self.beside and self.beside.is_known else None,
        }


def repeated(points: Sequence[Mapping[str, Any]], seed: int, num_seeds: int) -> tuple[dict[str, Any], ...]:
    """Each point with each of the seeds `seed`, `seed` + 1, ...: all points of the first seed first.

    Raises ValueError for too few seeds, or such as the database cannot hold.
    """
    if num_seeds < 1:
        raise ValueError(f"--seeds {num_seeds} must be at least 1")
    if num_seeds == 1:
        return tuple(dict(point) for point in points)
    if seed + num_seeds > LARGEST_SEED:
        raise ValueError(
            f"--seeds {num_seeds} from seed {seed} on: seeds must stay below 2**53; choose a smaller --seed"
        )
    return tuple({**point, SEED: seed + index} for index in range(num_seeds) for point in points)


def seed_of(params: Mapping[str, Any], sweep: Sweep) -> int:
    """A trial's seed: its own, or that of the sweep where all its trials have one."""
    return int(params.get(SEED, sweep.train.seed))


def num_seeds_of(sweep: Sweep) -> int:
    return len({seed_of(point, sweep) for point in sweep.points}) or 1


def without_seed(params: Mapping[str, Any]) -> dict[str, Any]:
    """What all repetitions of a configuration share."""
    return {name: value for name, value in params.items() if name != SEED}


def lacking(sweep: Sweep, wanted: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those of the points `wanted` that the sweep does not have, however it spells the seed it began with."""
    present = [_with_seed(point, sweep) for point in sweep.points]
    return [dict(point) for point in wanted if _with_seed(point, sweep) not in present]


def with_fixed_split(sweep: Sweep) -> Sweep:
    """The same sweep, whose data are split by its own seed, whatever the seed of a trial."""
    train = sweep.train
    if train.split_seed is not None:
        return sweep
    return dataclasses.replace(sweep, train=dataclasses.replace(train, split_seed=train.seed))


def _with_seed(params: Mapping[str, Any], sweep: Sweep) -> dict[str, Any]:
    return {**params, SEED: seed_of(params, sweep)}


def ranked(
    trials: Sequence[TrialRecord],
    values: Mapping[int, float],
    seed: int,
    *,
    larger_is_better: bool,
    worst: float | None = None,
) -> list[Configuration]:
    """All configurations of these trials, the best first, those without a value last.

    values: trial number -> what is ranked by; seed: that of trials whose parameters name none; worst: values beyond
    this one are no further told apart, so that what is hopeless does not blur the others.
    What never diverged nor failed stands above what failed for some seed, and that above what diverged for some. Those
    of one kind are compared on the seeds that all of them have, so that none wins by an easy seed that another lacks.
    """
    found = [_measured(configuration, values) for configuration in _grouped(trials, seed)]
    placed: list[Configuration] = []
    for tier in sorted({_tier(one) for one in found}):
        alike = [one for one in found if one.values and _tier(one) == tier]
        shared = set.intersection(*(set(one.values) for one in alike)) if alike else set()
        estimated = [_estimated(one, shared) for one in alike]
        estimated.sort(key=lambda one: (_mean(one) * (-1 if larger_is_better else 1), one.first.number))
        placed += estimated if placed else _compared(estimated, worst, larger_is_better)
    without = [one for one in found if not one.values]
    return [*placed, *sorted(without, key=lambda one: (_tier(one), one.first.number))]


def _mean(one: Configuration) -> float:
    assert one.estimate is not None
    return one.estimate.mean


def _compared(alike: list[Configuration], worst: float | None, larger_is_better: bool) -> list[Configuration]:
    """The same, each with how the first compares with it."""
    if not alike:
        return []

    def limited(value: float) -> float:
        if worst is None:
            return value
        return max(value, worst) if larger_is_better else min(value, worst)

    shared = sorted(set.intersection(*(set(one.counted) for one in alike)))
    rows = [[limited(one.values[seed]) for seed in shared] for one in alike]
    told = compare_with_first(rows)
    return [*alike[:1], *(dataclasses.replace(one, beside=beside) for one, beside in zip(alike[1:], told, strict=True))]


def _grouped(trials: Sequence[TrialRecord], seed: int) -> list[Configuration]:
    """In the order in which they first appear."""
    groups: dict[str, dict[int, TrialRecord]] = {}
    for trial in trials:
        group = groups.setdefault(json.dumps(without_seed(trial.params), sort_keys=True, default=str), {})
        group[int(trial.params.get(SEED, seed))] = trial
    return [
        Configuration(without_seed(next(iter(group.values())).params), dict(sorted(group.items())), {})
        for group in groups.values()
    ]


def _measured(one: Configuration, values: Mapping[int, float]) -> Configuration:
    found = {seed: values[trial.number] for seed, trial in one.trials.items() if trial.number in values}
    return dataclasses.replace(one, values=found)


def _estimated(one: Configuration, shared: set[int]) -> Configuration:
    counted = tuple(seed for seed in one.values if not shared or seed in shared)
    if not counted:
        return one
    return dataclasses.replace(one, counted=counted, estimate=estimate([one.values[seed] for seed in counted]))


def _tier(one: Configuration) -> int:
    """0: nothing went wrong; 1: some seed has no value though it has ended; 2: some seed diverged."""
    if one.seeds("diverged"):
        return 2
    return int(any(trial.state in TERMINAL and seed not in one.values for seed, trial in one.trials.items()))
