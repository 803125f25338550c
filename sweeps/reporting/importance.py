"""How much each hyperparameter decided, by Optuna's evaluators, and when that says nothing.

Knows parameters and one number a trial, and no ledger: a space that was widened on the way is one space here.
Importing Optuna's evaluators takes a second (scikit-learn), so it happens where there is something to evaluate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeps.answers.seeds import without_seed
from sweeps.reporting.drawing import COLOURS, Axis, Figure, Panel, Series, is_number, spread_over_decades
from sweeps.reporting.facts import Facts

FEWEST = 4  # trials with a value; of fewer even a wrong number cannot be made
TRUSTED_EACH = 10  # for each hyperparameter: the rule of thumb of regressions, one effect needs ten observations


@dataclass(frozen=True)
class Importances:
    """shares: hyperparameter -> its share of what could be explained, the largest first; they add up to 1.
    words: how far to trust them, or why there are none."""

    shares: Mapping[str, float]
    words: str


def wants_importances(facts: Facts) -> bool:
    return len(facts.searched()) > 1


def importances_of(facts: Facts) -> Importances:
    names = facts.searched()
    if len(names) < 2:
        return Importances({}, "One hyperparameter was varied: there is nothing to compare it with.")
    complete = [trial for trial in facts.begun if trial.state == "complete"]
    some = [(without_seed(trial.params), value) for trial in complete if (value := facts.value(trial)) is not None]
    everywhere = [name for name in names if all(name in params for params, _ in some)]
    num = len(some)
    if num < FEWEST or len(everywhere) < 2:
        return Importances({}, f"{num} complete trial(s): too few to say which hyperparameter decided.")
    shares = importances([params for params, _ in some], [value for _, value in some], everywhere)
    if not shares:
        return Importances({}, "No hyperparameter explains the differences between these trials.")
    trusted = TRUSTED_EACH * len(everywhere)
    words = (
        f"By fANOVA (Hutter et al. 2014), over {num} complete trials: the share of the differences in {facts.measure}"
    )
    words += " that each explains."
    if num < trusted:
        words += f" Do not rely on it: {len(everywhere)} hyperparameters need about {trusted} trials."
    if left := [name for name in names if name not in everywhere]:
        words += f" Not compared, as not every trial has it: {', '.join(left)}."
    return Importances(shares, words)


def importances(points: Sequence[Mapping[str, Any]], values: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    """The share of the values' variance that each of these names explains, by a forest of trees; {} for none."""
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    if len(set(values)) < 2:
        return {}
    ranges, encoded = {}, [dict[str, Any]() for _ in points]
    for name in names:
        column = [point[name] for point in points]
        if len({repr(value) for value in column}) < 2:
            continue
        if all(is_number(value) for value in column):
            column = [float(value) for value in column]
            ranges[name] = optuna.distributions.FloatDistribution(
                min(column), max(column), log=spread_over_decades(column)
            )
        else:
            column = [json.dumps(value, sort_keys=True, default=str) for value in column]
            ranges[name] = optuna.distributions.CategoricalDistribution(sorted(set(column)))
        for row, value in zip(encoded, column, strict=True):
            row[name] = value
    if not ranges:
        return {}
    study = optuna.create_study()
    study.add_trials(
        [
            optuna.create_trial(params=row, distributions=ranges, value=float(value))
            for row, value in zip(encoded, values, strict=True)
        ]
    )
    found = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    return {name: float(share) for name, share in found.items()} if sum(found.values()) > 0 else {}


def importance_figure(found: Importances) -> Figure | None:
    if not found.shares:
        return None
    names = list(found.shares)[::-1]
    bars = Series(
        "bars", [found.shares[name] for name in names], [float(index) for index in range(len(names))], "", COLOURS[0],
        [f"{name}: {found.shares[name]:.0%}" for name in names],
    )  # fmt: skip
    ticks = [(float(index), name) for index, name in enumerate(names)]
    first = next(iter(found.shares))
    words = f"Importance of {len(names)} hyperparameters; {first} explains most, {found.shares[first]:.0%}."
    panel = Panel(Axis("share of the differences that it explains", limits=(0.0, 1.0)), Axis("", ticks=ticks), [bars])
    return Figure("importances", "Which hyperparameter decides", [panel], words)
