"""Sweep: one question asked of many trials, as plain values; its fingerprint.

What a trial's number means follows from this alone. Knows nothing of how or where trials run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any

from sweeps.searching.pareto import check_constraints
from sweeps.searching.pruners import PRUNERS
from sweeps.searching.samplers import SAMPLERS, check_sampler
from sweeps.spaces.draw import encode, inside
from sweeps.spaces.finite import num_configurations
from sweeps.spaces.function import find_function, is_function
from sweeps.spaces.grammar import Fixed, largest, names_in, parse_space, text_of
from sweeps.spaces.grammar import describe as describe_space
from sweeps.spaces.valid import check_conflicts, check_values
from trainable.config import TrainConfig
from trainable.settings import TASK_PREFIX
from trainable.task import load_task

SEED = "seed"
MOST_BYTES = 100_000  # of one setting; MLflow keeps 6,000 characters, the rest goes into a file
LARGEST_SEED = 2**53  # Optuna's database keeps numbers as floats, which are exact up to here


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The definition of a sweep. Two sweeps with one fingerprint give the same answer.

    points: the parameters of each trial, in the order of their numbers; names are TrainConfig's, or
    `task.<field>`. `train` and `task_settings` are what all trials share.
    space: what `num_trials` trials are drawn from by `sampler` (samplers.py), see spaces/grammar.py; or
    {"function": "path/file.py:name"}. Points, which may leave names of the space out and fix others, are its first.
    metric: what trials are ranked and pruned by, at each report; `mode` is "min" or "max".
    metrics: several of these instead, each (metric, mode). constraints: a metric -> {"at_most": x} or {"at_least": x};
    trials beyond them are never the best.
    pruner: "none", "median" (after `pruner_startup` complete trials), "asha" (successive halving) or "hyperband";
    none prunes before report `pruner_warmup`, nor a trial with a new best among its last `pruner_patience` + 1 reports.
    num_seeds: of a space, how many trials in a row are one configuration with the seeds `train.seed`, + 1, ...;
    `num_trials` then counts configurations.
    """

    name: str
    question: str
    task: str
    task_settings: Mapping[str, Any] = field(default_factory=dict)
    train: TrainConfig
    points: tuple[Mapping[str, Any], ...] = ()
    space: Mapping[str, Any] = field(default_factory=dict)
    num_trials: int | None = None
    sampler: str = "tpe"
    metric: str = "val_loss"
    mode: str = "min"
    pruner: str = "none"
    pruner_startup: int = 1
    metrics: tuple[tuple[str, str], ...] = ()
    constraints: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    pruner_warmup: int = 0
    pruner_patience: int | None = None
    num_seeds: int = 1
    checked: InitVar[bool] = True
    """False: as it was stored. Its task, which may be gone by now, is not looked up."""

    def __post_init__(self, checked: bool) -> None:
        if not self.points and not self.space:
            raise ValueError("the sweep has no trials: give at least one value to try")
        self._check_objectives()
        self._check_pruner()
        seen: list[str] = []
        for point in self.points:
            if checked:
                self.trial_config(point)
            if same_text(point) in seen:
                raise ValueError(f"{describe(point)} is asked for twice; each point is trained once")
            seen.append(same_text(point))
        if self.space and checked:
            self._check_space()
        elif self.sampler not in SAMPLERS:
            raise ValueError(f"sampler={self.sampler!r} must be one of {', '.join(SAMPLERS)}")

    def _check_space(self) -> None:
        """Raises ValueError for a space that says nothing, contradicts itself, or holds what no trial can have."""
        if is_function(self.space):
            object.__setattr__(self, "space", find_function(self.space).describe())
            check_sampler(self.sampler, None, len(self.objectives))
        else:
            entries = parse_space(self.space)
            object.__setattr__(self, "space", describe_space(entries))
            task_fields = [f"{TASK_PREFIX}{name}" for name in load_task(self.task, self.task_settings).settings()]
            check_values(entries, [*TrainConfig.names(), *task_fields], self.trial_config)
            check_conflicts([*names_in(entries)], {f"{TASK_PREFIX}{k}": v for k, v in self.task_settings.items()})
            check_sampler(self.sampler, entries, len(self.objectives))
            if all(isinstance(entry, Fixed) for entry in entries.values()):
                raise ValueError(
                    "the space fixes every name, so there is nothing to search; give one a range or a choice"
                )
            for point in self.points:
                try:
                    encode(entries, inside(entries, point), partial=True)
                except ValueError as error:
                    raise ValueError(
                        f"point {describe(point)}: {error}; widen the space, or leave the point out"
                    ) from None
            if self.sampler == "grid" and self.num_trials is None:
                object.__setattr__(self, "num_trials", num_configurations(entries))
        if not isinstance(self.num_trials, int) or self.num_trials < 1:
            raise ValueError(f"num_trials={self.num_trials} must be at least 1: a space has no end of its own")
        if self.num_seeds > 1:
            self._check_seeds()
        if self.num_trials < len(self.points):
            raise ValueError(f"num_trials={self.num_trials} is less than the {len(self.points)} points to begin with")

    def _check_seeds(self) -> None:
        names = [] if is_function(self.space) else [*names_in(parse_space(self.space))]
        if SEED in (*names, *(name for point in self.points for name in point)):
            raise ValueError(
                f"num_seeds={self.num_seeds} repeats each configuration over seeds, and the space or a point names the "
                "seed too; leave one of them out"
            )
        if self.train.seed + self.num_seeds > LARGEST_SEED:
            raise ValueError(
                f"num_seeds={self.num_seeds} from seed {self.train.seed} on: seeds must stay below 2**53; "
                "choose a smaller seed"
            )

    def _check_objectives(self) -> None:
        for item in self.metrics:
            if not isinstance(item, list | tuple) or len(item) != 2:
                raise ValueError(f"metrics: {item!r} must be (metric, mode), e.g. (val_loss, min)")
        metrics = tuple((str(name), str(mode)) for name, mode in self.metrics)
        object.__setattr__(self, "metrics", metrics)
        if metrics:
            names = [name for name, _ in metrics]
            if len(set(names)) < 2 or len(set(names)) < len(names):
                raise ValueError(f"metrics={names} must be at least two, each once; a single one is `metric`")
            object.__setattr__(self, "metric", metrics[0][0])
            object.__setattr__(self, "mode", metrics[0][1])
        for _, mode in self.objectives:
            if mode not in ("min", "max"):
                raise ValueError(f"mode={mode!r} must be min or max")
        check_constraints(self.constraints)

    def _check_pruner(self) -> None:
        if self.pruner not in PRUNERS:
            raise ValueError(f"pruner={self.pruner!r} must be one of {', '.join(PRUNERS)}")
        if self.pruner != "none" and self.metrics:
            raise ValueError(
                f"pruner={self.pruner} compares trials by one number, and there are {len(self.metrics)} metrics; "
                "use pruner=none, or one metric and constraints"
            )
        for name, least in (("pruner_startup", 0), ("pruner_warmup", 0), ("pruner_patience", 1), ("num_seeds", 1)):
            value = getattr(self, name)
            if value is None and name == "pruner_patience":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}={value!r} must be a whole number, at least {least}")

    @property
    def objectives(self) -> tuple[tuple[str, str], ...]:
        """What the sweep optimizes: (metric, mode), one or several."""
        return self.metrics or ((self.metric, self.mode),)

    @property
    def ranked_by(self) -> tuple[str, str] | None:
        """What one state of a trial is better by than another: the metric and its mode; None of several objectives."""
        return None if self.metrics else (self.metric, self.mode)

    @property
    def named_metrics(self) -> tuple[str, ...]:
        """Every metric that the sweep optimizes or limits, each once."""
        return tuple(dict.fromkeys([*(name for name, _ in self.objectives), *self.constraints]))

    @property
    def num_planned(self) -> int:
        """How many trials the sweep asks for: of a space that can be counted, each configuration once a seed."""
        if not self.space:
            return len(self.points)
        count = None if is_function(self.space) else num_configurations(parse_space(self.space))
        planned = self.num_trials or 0
        return self.num_seeds * (planned if count is None else min(planned, count))

    def trial_config(self, params: Mapping[str, Any]) -> tuple[TrainConfig, dict[str, Any]]:
        """The TrainConfig and the task's settings of a trial with these parameters.

        Raises ValueError for unknown names and values outside their limits.
        """
        train, settings = split_params(params)
        config = TrainConfig.from_dict({**self.train.to_dict(), **train})
        settings = {**self.task_settings, **settings}
        load_task(self.task, settings)
        return config, settings

    @property
    def epochs(self) -> int:
        """The most epochs of any trial."""
        of_space = [] if is_function(self.space) else largest(parse_space(self.space), "epochs")
        of_points = [int(point.get("epochs", self.train.epochs)) for point in self.points]
        return max([*map(int, of_space), *of_points] or [self.train.epochs])

    def to_dict(self) -> dict[str, Any]:
        """Plain values (JSON); `from_dict` gives the same sweep back."""
        plain = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return {
            **plain,
            "train": self.train.to_dict(),
            "points": [dict(point) for point in self.points],
            "task_settings": dict(self.task_settings),
            "space": dict(self.space),
            "metrics": [list(item) for item in self.metrics],
            "constraints": {name: dict(bound) for name, bound in self.constraints.items()},
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], *, checked: bool = True) -> Sweep:
        return cls(
            **{
                **plain,
                "train": TrainConfig.from_dict(plain["train"]),
                "points": tuple(plain["points"]),
                "metrics": tuple(tuple(item) for item in plain.get("metrics", ())),
                "checked": checked,
            }
        )

    def fingerprint(self) -> str:
        """sha256 over everything that decides the answer; the name is not part of it."""
        plain = {key: value for key, value in self.to_dict().items() if key != "name"}
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def check_size(sweep: Sweep) -> None:
    """Settings travel with every trial and stand in the ledger, in MLflow and in result.json: data do not belong
    there. Raises ValueError, naming the largest."""
    settings = {**sweep.train.to_dict(), **{f"{TASK_PREFIX}{key}": value for key, value in sweep.task_settings.items()}}
    points = [settings, *sweep.points]
    size, name = max((len(json.dumps(value, default=str)), name) for point in points for name, value in point.items())
    if size > MOST_BYTES:
        raise ValueError(
            f"{name} is {size / 1e6:.1f} MB long, and travels with every trial (at most {MOST_BYTES / 1e6:g} MB do); "
            "give the path of a file and read that in the task's splits()"
        )


def same_text(params: Mapping[str, Any]) -> str:
    """The same text for parameters that mean the same: 1 is 1.0 here, but not True."""
    return text_of({name: float(value) if type(value) is int else value for name, value in params.items()})


def split_params(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters of the training and settings of the task, by the prefix of their names."""
    train = {key: value for key, value in params.items() if not key.startswith(TASK_PREFIX)}
    settings = {key.removeprefix(TASK_PREFIX): value for key, value in params.items() if key.startswith(TASK_PREFIX)}
    return train, settings


def describe(params: Mapping[str, Any]) -> str:
    """Parameters for people: `lr=0.003, batch_size=64`."""
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in params.items()
    )
