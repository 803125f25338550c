"""Sweep: one question asked of many trials, as plain values; its fingerprint.

What a trial's number means follows from this alone. Knows nothing of how or where trials run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any

from trainable.config import TrainConfig
from trainable.settings import TASK_PREFIX
from trainable.task import load_task

SPECS = {
    "float": '{"float": [low, high]}',
    "log": '{"log": [low, high]}',
    "int": '{"int": [low, high]}',
    "choice": '{"choice": [values]}',
}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The definition of a sweep. Two sweeps with one fingerprint give the same answer.

    points: the parameters of each trial, in the order of their numbers; names are TrainConfig's, or
    `task.<field>`. `train` and `task_settings` are what all trials share.
    metric: what trials are ranked and pruned by, at each report; `mode` is "min" or "max".
    pruner: "none", "median" (after `pruner_startup` complete trials) or "asha" (successive halving).
    space: instead of points, what `num_trials` trials are drawn from by `sampler` ("tpe" or "random"): a name ->
    {"float": [low, high]}, {"log": [low, high]}, {"int": [low, high]} or {"choice": [values]}.
    """

    name: str
    question: str
    task: str
    task_settings: Mapping[str, Any] = field(default_factory=dict)
    train: TrainConfig
    points: tuple[Mapping[str, Any], ...] = ()
    space: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    num_trials: int | None = None
    sampler: str = "tpe"
    metric: str = "val_loss"
    mode: str = "min"
    pruner: str = "none"
    pruner_startup: int = 1
    checked: InitVar[bool] = True
    """False: as it was stored. Its task, which may be gone by now, is not looked up."""

    def __post_init__(self, checked: bool) -> None:
        if self.space:
            self._check_space(checked)
        elif not self.points:
            raise ValueError("the sweep has no trials: give at least one value to try")
        seen: list[Mapping[str, Any]] = []
        for point in self.points:
            if point in seen:
                raise ValueError(f"{describe(point)} is asked for twice; each point is trained once")
            seen.append(point)
            if checked:
                self.trial_config(point)
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode={self.mode!r} must be min or max")
        if self.pruner not in ("none", "median", "asha"):
            raise ValueError(f"pruner={self.pruner!r} must be none, median or asha")
        if self.sampler not in ("tpe", "random"):
            raise ValueError(f"sampler={self.sampler!r} must be tpe or random")

    def _check_space(self, checked: bool) -> None:
        """Raises ValueError for a space that says nothing, contradicts itself, or holds what no trial can have."""
        if self.points:
            raise ValueError("a sweep has points or a space, not both")
        if not isinstance(self.num_trials, int) or self.num_trials < 1:
            raise ValueError(f"num_trials={self.num_trials} must be at least 1: a space has no end of its own")
        for name, spec in self.space.items():
            kind, values = next(iter(spec.items()), ("", ())) if isinstance(spec, Mapping) else ("", ())
            if len(spec) != 1 or kind not in SPECS or not isinstance(values, list | tuple) or not values:
                raise ValueError(f"space of {name}: {spec} must be one of {', '.join(SPECS.values())}")
            if kind != "choice" and (len(values) != 2 or not all(_is_number(value) for value in values)):
                raise ValueError(f"space of {name}: {spec} must have two numbers, low and high")
            if kind != "choice" and (values[0] >= values[1] or (kind == "log" and values[0] <= 0)):
                raise ValueError(f"space of {name}: {spec} must go from low to high" + ", above 0" * (kind == "log"))
            if kind == "int" and not all(isinstance(value, int) for value in values):
                raise ValueError(f"space of {name}: {spec} must have whole numbers")
            if kind == "choice" and len({json.dumps(value) for value in values}) < len(values):
                raise ValueError(f"space of {name}: {spec} has a value twice")
            for value in values if checked else ():
                self.trial_config({name: float(value) if kind in ("float", "log") else value})

    @property
    def num_planned(self) -> int:
        """How many trials the sweep asks for."""
        return self.num_trials or len(self.points)

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
        spec = self.space.get("epochs", {})
        of_space = [int(value) for values in spec.values() for value in values]
        return max(
            [int(point.get("epochs", self.train.epochs)) for point in self.points] or of_space or [self.train.epochs]
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values (JSON); `from_dict` gives the same sweep back."""
        plain = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return {
            **plain,
            "train": self.train.to_dict(),
            "points": [dict(point) for point in self.points],
            "task_settings": dict(self.task_settings),
            "space": {name: dict(spec) for name, spec in self.space.items()},
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], *, checked: bool = True) -> Sweep:
        return cls(
            **{
                **plain,
                "train": TrainConfig.from_dict(plain["train"]),
                "points": tuple(plain["points"]),
                "checked": checked,
            }
        )

    def fingerprint(self) -> str:
        """sha256 over everything that decides the answer; the name is not part of it."""
        plain = {key: value for key, value in self.to_dict().items() if key != "name"}
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


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
