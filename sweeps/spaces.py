"""Search spaces: how an Optuna trial gets its parameters.

Knows nothing of what is done with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.trial import BaseTrial


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
