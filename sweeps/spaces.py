"""Search spaces: what they may say, and how an Optuna trial gets its parameters from one, or from a point.

Knows nothing of what is done with them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import BaseTrial, Trial


def suggest_point(trial: BaseTrial, point: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The parameters of a trial that was enqueued as `point`, one of `points`, made known to Optuna as its own.

    Numbers get a float or int distribution over the points' range, which later points may widen (a
    list of choices could never change again); anything else is a choice.
    """
    known = trial.params  # of an earlier attempt, from the range of that time
    return {
        name: known[name] if name in known else _suggest(trial, name, [p[name] for p in points if name in p])
        for name in point
    }


def _suggest(trial: BaseTrial, name: str, values: list[Any]) -> Any:
    if all(isinstance(value, float) for value in values):
        return trial.suggest_float(name, min(values), max(values))
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return trial.suggest_int(name, min(values), max(values))
    return trial.suggest_categorical(name, list(dict.fromkeys(values)))


def suggest_from(
    study: optuna.Study, trial: Trial, space: Mapping[str, Mapping[str, Any]], sampler: str, seed: int
) -> dict[str, Any]:
    """The parameters of a trial from a space; those it has already, of an attempt that was killed, stay.

    Each name has a sampler of its own, seeded by (seed, trial number, name): a proposal depends on these and on
    the finished trials alone, and not on how often the process was begun anew.
    """
    found = {}
    for name, spec in space.items():
        study.sampler = _sampler(sampler, f"{seed}/{trial.number}/{name}")
        ((kind, values),) = spec.items()
        match kind:
            case "float" | "log":
                value: Any = trial.suggest_float(name, *map(float, values), log=kind == "log")
            case "int":
                value = trial.suggest_int(name, *values)
            case _:
                value = json.loads(trial.suggest_categorical(name, [json.dumps(choice) for choice in values]))
        found[name] = value
    return found


def decoded(space: Mapping[str, Mapping[str, Any]], params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters from a space as they were meant. Choices are kept as JSON texts: the database's own would give
    1 for True, and has none for lists."""
    return {name: json.loads(value) if "choice" in space.get(name, {}) else value for name, value in params.items()}


def _sampler(name: str, seed: str) -> BaseSampler:
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big")
    if name == "random":
        return RandomSampler(seed=number)
    # Without the liar: trials that run would be taken for bad ones, so a proposal would depend on who runs.
    # Not multivariate: all names at once are drawn when a trial object is made, and lost with its process.
    return TPESampler(seed=number, constant_liar=False, multivariate=False)
