"""TrialRecord: what the ledger knows of one trial, read from Optuna's.

Writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from optuna.trial import FrozenTrial

from sweeps.searching.beginnings import params_of
from sweeps.searching.outcomes import State, failures_note, state_of, violations_of
from sweeps.sweep import Sweep

TERMINAL = ("complete", "pruned", "diverged", "failed")


@dataclass(frozen=True)
class TrialRecord:
    """What the ledger knows of one trial. `metrics` are those of its last report."""

    number: int
    params: dict[str, Any]
    state: State
    attempts: int
    reports: int
    epochs: float
    metrics: dict[str, float]
    samples_per_s: float | None
    notes: dict[str, str]
    reason: str | None  # of its end
    mlflow_run_id: str | None
    weights_sha256: str | None
    failures: tuple[Mapping[str, Any], ...] = ()
    """Every attempt that failed: `attempt`, `kind`, `line`; `forgiven` where it was run again on request."""
    violations: Mapping[str, float] = field(default_factory=dict)
    """How far each constraint of the sweep is overstepped, by the last report; one above 0 is never the best."""

    began_ms: int | None = None  # since 1970, when it first began
    ended_ms: int | None = None

    @property
    def feasible(self) -> bool:
        return all(value <= 0 for value in self.violations.values())


def record_of(sweep: Sweep, trial: FrozenTrial, runs: Mapping[int, str]) -> TrialRecord:
    """runs: the MLflow run of each trial that has one."""
    noted = trial.user_attrs
    last = noted.get("last_report", {"number": 0, "epoch": 0.0, "metrics": {}, "samples_per_s": None, "notes": {}})
    return TrialRecord(
        number=trial.number,
        params=params_of(trial),
        state=state_of(trial),
        attempts=noted.get("attempts", 0),
        reports=last["number"],
        epochs=last["epoch"],
        metrics={**last.get("limited", {}), **last["metrics"]},
        samples_per_s=last["samples_per_s"],
        notes={**last["notes"], **failures_note(tuple(noted.get("failures", ())))},
        reason=noted.get("reason"),
        mlflow_run_id=runs.get(trial.number),
        weights_sha256=noted.get("weights_sha256"),
        failures=tuple(noted.get("failures", ())),
        violations=violations_of(trial, sweep),
        began_ms=_ms(trial.datetime_start),
        ended_ms=_ms(trial.datetime_complete),
    )


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(1000 * moment.timestamp())


def to_come(number: int, asked: Mapping[str, Any]) -> TrialRecord:
    """A trial of a space that has not begun: what is known of it is what a point asks for."""
    return TrialRecord(number, dict(asked), "waiting", 0, 0, 0.0, {}, None, {}, None, None, None)
