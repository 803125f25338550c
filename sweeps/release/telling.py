"""What an acceptance says of itself: the parts of acceptance.json, as plain values.

Measures nothing; what was found out is handed in.
"""

from __future__ import annotations

import platform
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Any

from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.release.candidate import Candidate, Weights
from sweeps.release.openings import Opening, opened_by_others, openings_of

if TYPE_CHECKING:
    from trainable.release.outcomes import Outcomes


def definition_told(folder: Folder, ledger: Ledger, candidate: Candidate, opening: Opening) -> dict[str, Any]:
    """Which trial of which sweep, what it is, and how often the test samples were looked at."""
    config, record = candidate.config, candidate.record
    return {
        "id": opening.acceptance,
        "time": opening.time,
        "time_ms": time.time_ns() // 1_000_000,
        "task": candidate.task_spec,
        "task_settings": dict(candidate.task_settings),
        "data_seed": config.data_seed,
        "config": config.to_dict(),
        "sweep": folder.name,
        "sweep_id": ledger.attribute("sweep_id"),
        "sweep_fingerprint": ledger.sweep.fingerprint(),
        "trial": record.number,
        "chosen": candidate.chosen,
        "params": dict(record.params),
        "partial": candidate.partial,
        "openings": [asdict(seen) for seen in openings_of(ledger)],
        "opened_by_others": [{"sweep": name, **asdict(seen)} for name, seen in opened_by_others(folder, opening)],
        "environment": _environment(config.device),
    }


def weights_told(weights: Sequence[Weights], measured: Sequence[Outcomes]) -> dict[str, Any]:
    """Where the weights come from: a checkpoint, or training anew, and then what the other seeds came to."""
    first = weights[0].source
    if "seed" not in first:
        return {"checkpoint": dict(first), "retrained": None}
    seeds = [one.source["seed"] for one in weights]
    retrained = {"seeds": seeds, "chosen": seeds[0], "step": first["step"], "test": _over_seeds(measured)}
    return {"checkpoint": None, "retrained": retrained}


def metrics_told(candidate: Candidate, opening: Opening, test: Outcomes, val: Outcomes) -> dict[str, Any]:
    return {
        "metric": {"name": candidate.metric, "mode": candidate.mode},
        "test": {"fingerprint": opening.samples, "num_samples": test.num_samples, "metrics": test.metrics()},
        "val": {"num_samples": val.num_samples, "metrics": val.metrics()},
    }


def _over_seeds(measured: Sequence[Outcomes]) -> dict[str, dict[str, Any]]:
    """Each test metric over the seeds: mean, standard deviation (None for one) and the values."""
    found: dict[str, dict[str, Any]] = {}
    for name in measured[0].sums:
        values = [float(outcomes.sums[name].sum() / outcomes.weight.sum()) for outcomes in measured]
        deviation = statistics.stdev(values) if len(values) > 1 else None
        found[name] = {"mean": statistics.fmean(values), "deviation": deviation, "values": values}
    return found


def _environment(wanted: Any) -> dict[str, str]:
    """Where and with what it was evaluated."""
    from trainable.device import Probe, choose_device

    found = {name: metadata.version(name) for name in ("steadysweep", "torch", "mlflow", "numpy")}
    device = choose_device(wanted, Probe.here())[0].type
    return {**found, "python": platform.python_version(), "host": socket.gethostname(), "device": device}
