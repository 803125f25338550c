"""The ledger: one Optuna study in SQLite, the only record of which trials exist and what they said.

Written before anyone acts on what it says. Knows nothing of Ray, MLflow or files of curves.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from sweeps.drift import data_key
from sweeps.reopen import reopen
from sweeps.spaces import decoded, suggest_from, suggest_point
from sweeps.sweep import Sweep
from trainable.crashpoint import crash_point

State = Literal["complete", "pruned", "diverged", "failed", "running", "waiting"]
LAST_REPORT = ("number", "epoch", "metrics", "samples_per_s", "notes")  # what the ledger keeps of it
TERMINAL = ("complete", "pruned", "diverged", "failed")
_OPTUNA_STATES = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    # A diverged trial has no value: Optuna refuses NaN, and takes inf for a real one.
    "diverged": TrialState.FAIL,
    "failed": TrialState.FAIL,
}
# Optuna's own default would draw values, unseeded, whenever a trial object is made; spaces.py draws where it is needed.
_NO_SAMPLER = optuna.samplers.RandomSampler(seed=0)
_LIVE_STATES: dict[TrialState, State] = {TrialState.RUNNING: "running", TrialState.WAITING: "waiting"}


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


class Ledger:
    """The study of one sweep."""

    def __init__(self, path: Path) -> None:
        # Optuna announces every trial on stderr, where the live table is.
        optuna.logging.set_verbosity(logging.WARNING)
        self._storage = _storage_at(path)
        (summary,) = optuna.get_all_study_summaries(self._storage, include_best_trial=False)
        self._study = optuna.load_study(
            study_name=summary.study_name,
            storage=self._storage,
            sampler=_NO_SAMPLER,
            pruner=_pruner(self._read_sweep(summary.user_attrs)),
        )
        self.sweep = self._read_sweep(summary.user_attrs)
        self._data_seen: set[int] = set()

    @staticmethod
    def _read_sweep(attributes: Mapping[str, Any]) -> Sweep:
        return Sweep.from_dict(json.loads(attributes["sweep"]), checked=False)

    @classmethod
    def create(cls, path: Path, sweep: Sweep, attributes: Mapping[str, Any]) -> Ledger:
        """A new ledger with all trials of the sweep waiting in it. It appears under its name when it is whole."""
        optuna.logging.set_verbosity(logging.WARNING)
        beside = path.with_name(path.name + ".part")
        beside.unlink(missing_ok=True)
        storage = _storage_at(beside)
        study = optuna.create_study(
            study_name=sweep.name,
            storage=storage,
            direction="minimize" if sweep.mode == "min" else "maximize",
        )
        study.set_user_attr("sweep", json.dumps(sweep.to_dict()))
        study.set_user_attr("fingerprint", sweep.fingerprint())
        for name, value in attributes.items():
            study.set_user_attr(name, value)
        for point in sweep.points or [{}] * sweep.num_planned:  # those of a space get their parameters when they begin
            study.enqueue_trial(dict(point))
        storage.remove_session()
        storage.engine.dispose()
        os.replace(beside, path)
        return cls(path)

    def extend(self, sweep: Sweep) -> None:
        """Make the ledger that of `sweep`: its points that are lacking wait, and complete trials that have
        fewer epochs than it asks for run on. Doing it again changes nothing."""
        self._study.set_user_attr("sweep", json.dumps(sweep.to_dict()))
        self._study.set_user_attr("fingerprint", sweep.fingerprint())
        self.sweep = sweep
        records = self.trials()
        present = [record.params for record in records]
        for point in sweep.points:
            if dict(point) not in present:
                self._study.enqueue_trial(dict(point))
        for _ in range(len(records), sweep.num_planned if sweep.space else 0):
            self._study.enqueue_trial({})
        self._reopen([record.number for record in records if self._is_short(record)])
        self._prune_what_a_kill_left()

    def _is_short(self, record: TrialRecord) -> bool:
        """Whether a complete trial has epochs left. One that lost patience has none: it would lose it again."""
        if record.state != "complete" or "stopped_early" in record.notes:
            return False
        return record.epochs < self.sweep.trial_config(record.params)[0].epochs

    def retry_failed(self) -> None:
        """Make failed trials running ones, which go on from their last checkpoint; what they did is forgiven."""
        failed = [record for record in self.trials() if record.state == "failed"]
        self._reopen([record.number for record in failed])
        for record in failed:
            forgiven = [{**failure, "forgiven": True} for failure in record.failures]
            self._live(record.number).set_user_attr("failures", forgiven)

    def note_failure(self, number: int, kind: str, line: str) -> list[dict[str, Any]]:
        """Write down that an attempt of a trial failed; all its failures."""
        record = self.trial(number)
        failures = [*map(dict, record.failures), {"attempt": record.attempts, "kind": kind, "line": line}]
        trial_id = self._study.get_trials(deepcopy=False)[number]._trial_id
        self._storage.set_trial_user_attr(trial_id, "failures", failures)
        return failures

    def _reopen(self, numbers: list[int]) -> None:
        """Make ended trials running ones, under their numbers; they go on as after an interruption."""
        if not numbers:
            return
        trials = self._study.get_trials(deepcopy=False)
        reopen(self._storage, [trials[number]._trial_id for number in numbers])
        # Optuna keeps ended trials in memory, for good.
        self._study = optuna.load_study(
            study_name=self._study.study_name, storage=self._storage, sampler=_NO_SAMPLER, pruner=self._study.pruner
        )

    def attribute(self, name: str) -> Any:
        """Something noted of the whole sweep, or None."""
        return self._study.user_attrs.get(name)

    def note(self, name: str, value: Any) -> None:
        """Note something (plain values) of the whole sweep."""
        self._study.set_user_attr(name, value)

    def trials(self) -> list[TrialRecord]:
        """All trials in the order of their numbers."""
        runs = self.mlflow_runs()
        return [self._record(trial, runs) for trial in self._study.get_trials(deepcopy=False)]

    def trial(self, number: int) -> TrialRecord:
        return self._record(self._study.get_trials(deepcopy=False)[number], self.mlflow_runs())

    def mlflow_runs(self) -> dict[int, str]:
        """The MLflow run of each trial that has one."""
        return {int(number): run for number, run in (self.attribute("mlflow_runs") or {}).items()}

    def begin(self, number: int) -> TrialRecord:
        """Start another attempt of a waiting or interrupted trial; it is running from now on."""
        if self.trial(number).state == "waiting":
            asked = self._study.ask()
            assert asked.number == number, "waiting trials are asked for in the order of their numbers"
            crash_point("ask")
        trial = self._live(number)
        sweep = self.sweep
        if sweep.space:
            suggest_from(self._study, trial, sweep.space, sweep.sampler, sweep.train.seed)
        else:
            suggest_point(trial, self.trial(number).params, sweep.points)
        trial.set_user_attr("attempts", self.trial(number).attempts + 1)
        return self.trial(number)

    def report(self, number: int, report: Mapping[str, Any]) -> bool:
        """Record a report (number, epoch, metrics, notes); False if it was known already."""
        if report["number"] <= self.trial(number).reports:
            return False
        trial = self._live(number)
        value = report["metrics"].get(self.sweep.metric)
        if value is not None:
            trial.report(value, report["number"])
        if number not in self._data_seen and "data" in report["notes"]:
            self._note_data(number, report["notes"]["data"])
        # Last: it makes the report count as known.
        crash_point("ledger-before-commit")
        trial.set_user_attr("last_report", {key: report[key] for key in LAST_REPORT})
        crash_point("ledger-after-commit")
        return True

    def _note_data(self, number: int, fingerprint: str) -> None:
        """Remember what the trial was trained on; other data than an earlier attempt's are a drift."""
        config, settings = self.sweep.trial_config(self.trial(number).params)
        known, key = self.attribute("data") or {}, data_key(settings, config.data_seed)
        if known.setdefault(key, fingerprint) != fingerprint:
            self.note_drift([f"data of trial {number}: {known[key][:8]} -> {fingerprint[:8]}"])
            known[key] = fingerprint
        self.note("data", known)
        self._data_seen.add(number)

    def note_drift(self, changes: Sequence[str]) -> None:
        """Record that later trials are not quite comparable to earlier ones, and why."""
        if changes:
            self.note("drift", [*(self.attribute("drift") or []), *changes])
            self.note("data", None)  # the next reports say what they are now

    def should_prune(self, number: int) -> bool:
        """Whether the pruner, from the reports in the ledger, would stop this trial now.

        It is asked once for each report, and its answer kept: some pruners count the asking.
        """
        if self.sweep.pruner == "none":
            return False
        trial, reports = self._live(number), self.trial(number).reports
        decided = trial.user_attrs.get("decided")
        if decided is None or decided["report"] != reports:
            decided = {"report": reports, "prune": bool(trial.should_prune())}
            trial.set_user_attr("decided", decided)
        return bool(decided["prune"])

    def _prune_what_a_kill_left(self) -> None:
        """A driver may die between a trial's report and the end that this report was the reason for."""
        for record in self.trials():
            left = record.state == "running" and record.epochs < self.sweep.trial_config(record.params)[0].epochs
            if left and record.reports and "stopped_early" not in record.notes and self.should_prune(record.number):
                self.finish(record.number, "pruned", reason=f"pruned after epoch {record.epochs:g}")

    def finish(
        self, number: int, state: State, *, reason: str | None = None, weights_sha256: str | None = None
    ) -> None:
        """Tell a running trial's end; a trial that has ended stays as it is."""
        record = self.trial(number)
        if record.state in TERMINAL:
            return
        metric = self.sweep.metric
        value = record.metrics.get(metric) if state == "complete" else None
        if state == "complete" and value is None:
            state, reason = "failed", f"it never reported {metric!r}; it reported: {sorted(record.metrics)}"
            self.note_failure(number, "exception", f"trial {number}: {reason}")
        elif value is not None and not math.isfinite(value):  # Optuna refuses NaN, and takes inf for a real value
            state, reason, value = "diverged", f"its {metric} became {value}", None
        trial = self._live(number)
        trial.set_user_attr("weights_sha256", weights_sha256)
        trial.set_user_attr("reason", reason)
        trial.set_user_attr("state", state)
        crash_point("tell")
        self._study.tell(number, value, state=_OPTUNA_STATES[state])

    def close(self) -> None:
        self._storage.remove_session()
        self._storage.engine.dispose()

    def _live(self, number: int) -> optuna.trial.Trial:
        return optuna.trial.Trial(self._study, self._study.get_trials(deepcopy=False)[number]._trial_id)

    def _params(self, trial: FrozenTrial) -> dict[str, Any]:
        # A crash may have come between one parameter and the next.
        asked: dict[str, Any] = trial.system_attrs.get("fixed_params", {})
        return {**asked, **decoded(self.sweep.space, trial.params)}

    def _record(self, trial: FrozenTrial, runs: Mapping[int, str]) -> TrialRecord:
        noted = trial.user_attrs
        last = noted.get("last_report", {"number": 0, "epoch": 0.0, "metrics": {}, "samples_per_s": None, "notes": {}})
        state: State = _LIVE_STATES.get(trial.state) or noted.get("state", "failed")
        return TrialRecord(
            number=trial.number,
            params=self._params(trial),
            state=state,
            attempts=noted.get("attempts", 0),
            reports=last["number"],
            epochs=last["epoch"],
            metrics=last["metrics"],
            samples_per_s=last["samples_per_s"],
            notes={**last["notes"], **_failures_note(tuple(noted.get("failures", ())))},
            reason=noted.get("reason"),
            mlflow_run_id=runs.get(trial.number),
            weights_sha256=noted.get("weights_sha256"),
            failures=tuple(noted.get("failures", ())),
        )


def _failures_note(failures: tuple[Mapping[str, Any], ...]) -> dict[str, str]:
    """All failures of a trial as one note, which is a tag in MLflow."""
    said = [f"attempt {failure['attempt']}: {failure['kind']}: {failure['line']}" for failure in failures]
    return {"failures": "; ".join(said)} if said else {}


def _storage_at(path: Path) -> RDBStorage:
    """The path goes to SQLite as it is: in an address ?, % and { would mean something else."""
    connect = functools.partial(sqlite3.connect, path, check_same_thread=False)
    return RDBStorage("sqlite:///ledger.db", engine_kwargs={"creator": connect})


def _pruner(sweep: Sweep) -> optuna.pruners.BasePruner:
    if sweep.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=sweep.pruner_startup, n_warmup_steps=0)
    if sweep.pruner == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=1)
    return optuna.pruners.NopPruner()
