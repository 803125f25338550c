"""Several objectives and limits: which trials are the best ones, which of them is the knee, how far one is off limits.

Pure functions of numbers. Knows no ledger and no table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

BOUNDS = ("at_most", "at_least")
NOT_MEASURED = 1e12  # how far a trial is off a limit that it says nothing finite about


def pareto_set(values: Sequence[Sequence[float]], modes: Sequence[str]) -> list[int]:
    """Indices of the rows that no other row beats: none is at least as good in all columns and better in one.

    values: a row for each trial, a column for each objective; modes: "min" or "max" for each column.
    """
    costs = [_costs(row, modes) for row in values]
    return [
        index
        for index, own in enumerate(costs)
        if not any(all(a <= b for a, b in zip(other, own, strict=True)) and other != own for other in costs)
    ]


def knee(values: Sequence[Sequence[float]], modes: Sequence[str]) -> int | None:
    """The index of the row of the Pareto set that comes nearest to the best of every objective at once.

    Nearest by Euclid, after each objective is scaled to 0 (best) to 1 (worst) within the Pareto set; of equals the
    first. None where there are no rows.
    """
    front = pareto_set(values, modes)
    if not front:
        return None
    costs = [_costs(values[index], modes) for index in front]
    best = [min(column) for column in zip(*costs, strict=True)]
    worst = [max(column) for column in zip(*costs, strict=True)]

    def distance(own: Sequence[float]) -> float:
        scaled = (
            (a - low) / (high - low) if high > low else 0.0 for a, low, high in zip(own, best, worst, strict=True)
        )
        return math.hypot(*scaled)

    return front[min(range(len(front)), key=lambda index: distance(costs[index]))]


def violations(constraints: Mapping[str, Mapping[str, float]], measured: Mapping[str, float]) -> dict[str, float]:
    """How far each limit is overstepped: above 0 is off limits, 0 and below is within."""
    found = {}
    for name, bound in constraints.items():
        value = measured.get(name)
        for side in bound:
            off = NOT_MEASURED
            if value is not None and math.isfinite(value):
                off = value - bound[side] if side == "at_most" else bound[side] - value
            found[f"{name} {side.replace('_', ' ')} {bound[side]:g}"] = off
    return found


def check_constraints(constraints: Mapping[str, Mapping[str, float]]) -> None:
    """Raises ValueError in words for a limit that says nothing, or nothing that can hold."""
    for name, bound in constraints.items():
        if not isinstance(bound, Mapping) or not bound or not set(bound) <= set(BOUNDS):
            raise ValueError(f"constraint of {name}: {bound} must be {{at_most: number}} or {{at_least: number}}")
        for side, limit in bound.items():
            if isinstance(limit, bool) or not isinstance(limit, int | float) or not math.isfinite(limit):
                raise ValueError(f"constraint of {name}: {side}={limit!r} must be a finite number")
        if bound.get("at_least", -math.inf) > bound.get("at_most", math.inf):
            raise ValueError(
                f"constraint of {name}: nothing is at least {bound['at_least']} and at most {bound['at_most']}"
            )


def _costs(row: Sequence[float], modes: Sequence[str]) -> tuple[float, ...]:
    return tuple(-value if mode == "max" else value for value, mode in zip(row, modes, strict=True))
