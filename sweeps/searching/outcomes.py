"""What a sampler is told of a trial that has ended, and of those of another sweep; how far one is off limits.

Reads what the ledger keeps of a trial, and writes nothing. Knows no sampler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from optuna.trial import FrozenTrial, TrialState

from sweeps.searching.pareto import violations
from sweeps.searching.proposals import Outcome
from sweeps.sweep import Sweep

State = Literal["complete", "pruned", "diverged", "failed", "running", "waiting"]
OPTUNA_STATES = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    # A diverged trial has no value: Optuna refuses NaN, and takes inf for a real one.
    "diverged": TrialState.FAIL,
    "failed": TrialState.FAIL,
}
_LIVE_STATES: dict[TrialState, State] = {TrialState.RUNNING: "running", TrialState.WAITING: "waiting"}
# What a report says beside its metrics and a sweep may ask for by name; the ledger keeps it where one does.
MEASURED = ("num_params", "peak_mem_gib", "latency_ms")
OUT_OF_MEMORY = "out of memory"  # a kind of failure, see failures.py


def state_of(trial: FrozenTrial) -> State:
    return _LIVE_STATES.get(trial.state) or trial.user_attrs.get("state", "failed")


def outcome_of(trial: FrozenTrial, sweep: Sweep) -> Outcome | None:
    """None for a trial that has not ended."""
    if not trial.state.is_finished():
        return None
    if trial.state == TrialState.COMPLETE:
        return Outcome("complete", tuple(trial.values), violations=violations_of(trial, sweep))
    if trial.state == TrialState.PRUNED:
        return _pruned(trial.intermediate_values, violations_of(trial, sweep))
    failures = trial.user_attrs.get("failures", ())
    out_of_memory = bool(failures) and failures[-1]["kind"] == OUT_OF_MEMORY
    if trial.user_attrs.get("state") == "diverged" or out_of_memory:
        return Outcome("bad", violations=violations(sweep.constraints, {}))
    return Outcome("absent")


def end_of(
    sweep: Sweep, metrics: Mapping[str, float], reason: str | None
) -> tuple[State, str | None, tuple[float, ...]]:
    """How a trial that came to its end has ended, by the metrics of its last report: state, reason, values.

    Without one of the sweep's metrics it has no answer; one that is not finite, Optuna refuses or takes for real.
    """
    values = []
    for name, _ in sweep.objectives:
        if metrics.get(name) is None:
            return "failed", f"it never reported {name!r}; it reported: {sorted(metrics)}", ()
        if not math.isfinite(metrics[name]):
            return "diverged", f"its {name} became {metrics[name]}", ()
        values.append(metrics[name])
    return "complete", reason, tuple(values)


def violations_of(trial: FrozenTrial, sweep: Sweep) -> dict[str, float]:
    """By the last report of the trial; of one that has reported nothing, none."""
    last = trial.user_attrs.get("last_report")
    return violations(sweep.constraints, {**last.get("limited", {}), **last["metrics"]}) if last else {}


def observations(trials: Sequence[FrozenTrial]) -> list[dict[str, Any]]:
    """What another sweep can learn from these trials, as plain values."""
    found = []
    for trial in trials:
        noted = trial.user_attrs
        kind = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned"}.get(trial.state, "absent")
        if noted.get("state") == "diverged":
            kind = "bad"
        params = noted.get("params", trial.system_attrs.get("fixed_params"))
        last = noted.get("last_report")
        if trial.state.is_finished() and kind != "absent" and params and (last or kind == "bad"):
            metrics = {**last.get("limited", {}), **last["metrics"]} if last else {}
            reports = {str(report): value for report, value in trial.intermediate_values.items()}
            found.append({"params": params, "kind": kind, "metrics": metrics, "reports": reports})
    return found


def warm_start_of(plain: Sequence[Mapping[str, Any]] | None, sweep: Sweep) -> list[tuple[Mapping[str, Any], Outcome]]:
    """The observations of another sweep in terms of this one: its metrics, its constraints."""
    found = []
    for seen in plain or ():
        metrics, kind = seen["metrics"], seen["kind"]
        off = violations(sweep.constraints, metrics)
        values = [metrics.get(name) for name, _ in sweep.objectives]
        if kind == "bad":
            found.append((seen["params"], Outcome("bad", violations=off)))
        elif kind == "complete" and all(value is not None and math.isfinite(value) for value in values):
            found.append((seen["params"], Outcome("complete", tuple(values), violations=off)))
        elif kind == "pruned" and not sweep.metrics:
            found.append((seen["params"], _pruned({int(n): v for n, v in seen["reports"].items()}, off)))
    return found


def _pruned(reports: Mapping[int, float], off: Mapping[str, float]) -> Outcome:
    finite = {number: value for number, value in reports.items() if math.isfinite(value)}
    return Outcome("pruned", reports=finite, violations=off) if finite else Outcome("absent")


def failures_note(failures: tuple[Mapping[str, Any], ...]) -> dict[str, str]:
    """All failures of a trial as one note, which is a tag in MLflow."""
    said = [f"attempt {failure['attempt']}: {failure['kind']}: {failure['line']}" for failure in failures]
    return {"failures": "; ".join(said)} if said else {}
