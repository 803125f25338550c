"""Two more of the tutorial's symptoms, seen in what trials said: validation that is slow, runs that differ much.

Each is a sentence with its advice, or None. Knows reports and numbers, no sweep.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

SLOW = 0.5  # of a trial's time: then half as much validation saves a quarter of it
SPREAD = 0.1  # of the mean: a difference of that size between two configurations would look like a finding


def slow_validation(reports: Sequence[Mapping[str, Any]], train_samples: int | None) -> str | None:
    """reports: as the history keeps them: `epoch`, `seconds` since the trial's beginning, `samples_per_s` of the
    training alone; train_samples: of an epoch. What is not training is validation, but for a moment."""
    if not reports or not train_samples:
        return None
    trained_s, before = 0.0, 0.0
    for report in reports:
        if not report.get("samples_per_s"):
            return None
        trained_s += (report["epoch"] - before) * train_samples / report["samples_per_s"]
        before = report["epoch"]
    total_s = float(reports[-1]["seconds"])
    share = 1 - trained_s / total_s if total_s > 0 else 0.0
    if share <= SLOW:
        return None
    return (
        f"Validation takes {share:.0%} of its time (model.eval() and no gradients are seen to): evaluate less often "
        "(eval_every), in larger batches (eval_batch_size), or on fewer samples."
    )


def spread_between_seeds(values: Sequence[float], metric: str) -> str | None:
    """values: one for each seed of a configuration."""
    found = [value for value in values if math.isfinite(value)]
    if len(found) < 2 or statistics.fmean(found) == 0:
        return None
    share = statistics.stdev(found) / abs(statistics.fmean(found))
    if share <= SPREAD:
        return None
    least, most = min(found), max(found)
    return (
        f"From seed to seed its {metric} differs by {share:.0%} ({least:.4g} to {most:.4g} over {len(found)} seeds): "
        "compare means over seeds, never single runs; a lower lr, a warm-up or larger batches calm it."
    )
