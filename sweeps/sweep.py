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

from trainable.config import TrainConfig
from trainable.settings import TASK_PREFIX
from trainable.task import load_task


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The definition of a sweep. Two sweeps with one fingerprint give the same answer.

    points: the parameters of each trial, in the order of their numbers; names are TrainConfig's, or
    `task.<field>`. `train` and `task_settings` are what all trials share.
    metric: what trials are ranked and pruned by, at each report; `mode` is "min" or "max".
    pruner: "none" or "median" (after `pruner_startup` complete trials).
    """

    name: str
    question: str
    task: str
    task_settings: Mapping[str, Any] = field(default_factory=dict)
    train: TrainConfig
    points: tuple[Mapping[str, Any], ...]
    metric: str = "val_loss"
    mode: str = "min"
    pruner: str = "none"
    pruner_startup: int = 1
    checked: InitVar[bool] = True
    """False: as it was stored. Its task, which may be gone by now, is not looked up."""

    def __post_init__(self, checked: bool) -> None:
        if not self.points:
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
        if self.pruner not in ("none", "median"):
            raise ValueError(f"pruner={self.pruner!r} must be none or median")

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
        return max(int(point.get("epochs", self.train.epochs)) for point in self.points)

    def to_dict(self) -> dict[str, Any]:
        """Plain values (JSON); `from_dict` gives the same sweep back."""
        plain = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return {
            **plain,
            "train": self.train.to_dict(),
            "points": [dict(point) for point in self.points],
            "task_settings": dict(self.task_settings),
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
