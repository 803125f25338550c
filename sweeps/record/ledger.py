"""The ledger: one Optuna study, the only record of which trials exist and what they said.

Written before anyone acts on what it says. Knows nothing of Ray, MLflow or files of curves.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from sweeps.record.drift import data_key
from sweeps.record.home import born, home_at
from sweeps.record.reopen import reopen
from sweeps.record.trial import TERMINAL, TrialRecord, record_of, to_come
from sweeps.record.writes import Facts, write, write_new
from sweeps.searching.beginnings import Beginnings, points_left
from sweeps.searching.outcomes import (
    MEASURED,
    OPTUNA_STATES,
    State,
    end_of,
    observations,
)
from sweeps.searching.proposals import SpaceExhausted
from sweeps.searching.pruners import Rules, decide
from sweeps.spaces.draw import point_distributions
from sweeps.sweep import Sweep
from trainable.crashpoint import crash_point

LAST_REPORT = ("number", "epoch", "metrics", "samples_per_s", "notes")  # what the ledger keeps of it
_NO_SAMPLER = optuna.samplers.RandomSampler(seed=0)  # never asked: proposals.py proposes
_NO_PRUNER = optuna.pruners.NopPruner()  # nor is it: pruners.py decides


class Ledger:
    """The study of one sweep."""

    def __init__(self, path: Path) -> None:
        # Optuna announces every trial on stderr, where the live table is.
        optuna.logging.set_verbosity(logging.WARNING)
        self._home = home_at(path)
        self._storage = self._home.storage
        self._study = optuna.load_study(
            study_name=self._home.study_name, storage=self._storage, sampler=_NO_SAMPLER, pruner=_NO_PRUNER
        )
        self.sweep = Sweep.from_dict(json.loads(self._study.user_attrs["sweep"]), checked=False)
        self._data_seen: set[int] = set()
        # What it has read or written; nobody else writes, see Folder.owned.
        self._there: list[FrozenTrial] | None = None
        self._noted: dict[str, Any] | None = None
        self._begins: Beginnings | None = None

    @classmethod
    def create(cls, path: Path, sweep: Sweep, attributes: Mapping[str, Any], address: str | None = None) -> Ledger:
        """A new ledger with all trials of the sweep waiting in it. It appears under its name when it is whole.

        address: of the PostgreSQL database that holds it; then `path` is that of the file that says so.
        """
        optuna.logging.set_verbosity(logging.WARNING)
        with born(path, sweep.name, address) as (storage, study_name):
            study = optuna.create_study(
                study_name=study_name,
                storage=storage,
                directions=["minimize" if mode == "min" else "maximize" for _, mode in sweep.objectives],
            )
            study.set_user_attr("sweep", json.dumps(sweep.to_dict()))
            study.set_user_attr("fingerprint", sweep.fingerprint())
            for name, value in attributes.items():
                study.set_user_attr(name, value)
            for point in () if sweep.space else sweep.points:  # those of a space are there when they begin
                study.enqueue_trial(dict(point))
        return cls(path)

    def extend(self, sweep: Sweep) -> None:
        """Make the ledger that of `sweep`: its points that are lacking wait, and complete trials that have
        fewer epochs than it asks for run on. Doing it again changes nothing."""
        self.note("sweep", json.dumps(sweep.to_dict()))
        self.note("fingerprint", sweep.fingerprint())
        self.sweep = sweep
        self._begins = None  # what it remembers is not so any more
        if self.exhausted:
            self.note("exhausted", None)  # the space may be larger now; if not, the next proposal says so again
        short = [record.number for record in self.trials() if self._is_short(record)]
        if not sweep.space:
            self._home.writing(self._enqueue_lacking)
        self._reopen(short)
        self._prune_what_a_kill_left()

    def _enqueue_lacking(self) -> None:
        present = [record.params for record in self.trials()]
        self._there = None
        for point in self.sweep.points:
            if dict(point) not in present:
                self._study.enqueue_trial(dict(point))

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
            self._write(record.number, Facts(user={"failures": forgiven}))

    def note_failure(self, number: int, kind: str, line: str) -> list[dict[str, Any]]:
        """Write down that an attempt of a trial failed; all its failures."""
        record = self.trial(number)
        failures = [*map(dict, record.failures), {"attempt": record.attempts, "kind": kind, "line": line}]
        self._write(number, Facts(user={"failures": failures}))
        return failures

    def _reopen(self, numbers: list[int]) -> None:
        """Make ended trials running ones, under their numbers; they go on as after an interruption."""
        trials = self._trials()
        if numbers:
            self._home.writing(lambda: reopen(self._storage, [trials[number]._trial_id for number in numbers]))
        self._there = None
        self._begins = None  # what it remembers is not so any more

    def attribute(self, name: str) -> Any:
        """Something noted of the whole sweep, or None."""
        if self._noted is None:
            self._noted = self._home.reading(lambda: self._study.user_attrs)
        return self._noted.get(name)

    def note(self, name: str, value: Any) -> None:
        """Note something (plain values) of the whole sweep."""
        self._home.writing(lambda: self._study.set_user_attr(name, value))
        self._noted = None

    @property
    def exhausted(self) -> bool:
        """Whether the space has no configuration left that was not a trial: then there are no more trials to come."""
        return bool(self.attribute("exhausted"))

    def trials(self) -> list[TrialRecord]:
        """All trials in the order of their numbers; those of a space that have not begun are waiting too."""
        runs, there = self.mlflow_runs(), self._trials()
        found = [record_of(self.sweep, trial, runs) for trial in there]
        if self.sweep.space and len(there) < self.sweep.num_planned and not self.exhausted:
            points = points_left(self.sweep, there)
            for number in range(len(there), self.sweep.num_planned):
                index = number - len(there)
                found.append(to_come(number, points[index] if index < len(points) else {}))
        return found

    def observations(self) -> list[dict[str, Any]]:
        """What another sweep can learn from this one: for its attribute `warm_start`."""
        return observations(self._trials())

    def trial(self, number: int) -> TrialRecord:
        there = self._trials()
        if number < len(there):
            return record_of(self.sweep, there[number], self.mlflow_runs())
        return to_come(number, next(iter(points_left(self.sweep, there)[number - len(there) :]), {}))

    def mlflow_runs(self) -> dict[int, str]:
        """The MLflow run of each trial that has one."""
        return {int(number): run for number, run in (self.attribute("mlflow_runs") or {}).items()}

    def begin(self, number: int) -> TrialRecord:
        """Start another attempt of a waiting or interrupted trial; it is running from now on."""
        record = self.trial(number)
        if record.state != "waiting":
            self._write(number, Facts(user={"attempts": record.attempts + 1}))
            return self.trial(number)
        crash_point("ask")
        if self.sweep.space:
            self._propose(number)
        else:
            params = point_distributions(record.params, self.sweep.points)
            self._write(number, Facts(begins=True, params=params, user={"attempts": 1}))
        return self.trial(number)

    def _propose(self, number: int) -> None:
        """A new trial with all its parameters, in one commit. Raises SpaceExhausted, which is noted, for none left."""
        there = self._trials()
        self._begins = self._begins or Beginnings(self.sweep, self.attribute("warm_start"))
        try:
            facts = self._begins.of_trial(number, there)
        except SpaceExhausted:
            self.note("exhausted", True)
            raise
        trial_id = self._home.writing(lambda: write_new(self._storage, self._study._study_id, number, facts))
        there.append(self._home.reading(lambda: self._storage.get_trial(trial_id)))

    def report(self, number: int, report: Mapping[str, Any]) -> bool:
        """Record a report (number, epoch, metrics, notes); False if it was known already."""
        if report["number"] <= self.trial(number).reports:
            return False
        measured = {name: report[name] for name in MEASURED if report.get(name) is not None}
        value = None if self.sweep.metrics else {**measured, **report["metrics"]}.get(self.sweep.metric)
        if number not in self._data_seen and "data" in report["notes"]:
            self._note_data(number, report["notes"]["data"])
        kept = {key: report[key] for key in LAST_REPORT}
        kept["limited"] = {name: value for name, value in measured.items() if name in self.sweep.named_metrics}
        step = None if value is None else (report["number"], value)
        crash_point("ledger-before-commit")
        self._write(number, Facts(report=step, user={"last_report": kept}))
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
        trial, reports = self._trials()[number], self.trial(number).reports
        decided = trial.user_attrs.get("decided")
        if decided is None or decided["report"] != reports:
            sweep, steps = self.sweep, self.sweep.train.report_steps
            length = sweep.epochs if steps is None else self.attribute("full_length")
            rules = Rules(sweep.pruner, sweep.pruner_startup, sweep.pruner_warmup, sweep.pruner_patience, length)
            rivals = self._trials()[number % sweep.num_seeds :: sweep.num_seeds]  # compared is within one seed
            prune, noted = self._home.reading(lambda: decide(self._study, rivals, trial, rules))
            decided = {"report": reports, "prune": prune}
            self._write(number, Facts(user={"decided": decided}, system=noted))
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
        values: Sequence[float] = ()
        if state == "complete":
            state, reason, values = end_of(self.sweep, record.metrics, reason)
            if state == "failed":
                self.note_failure(number, "exception", f"trial {number}: {reason}")
        if values and self.sweep.pruner == "hyperband" and self.attribute("full_length") is None:
            self.note("full_length", record.reports)
        crash_point("tell")
        facts = {"weights_sha256": weights_sha256, "reason": reason, "state": state}
        self._write(number, Facts(user=facts, end=OPTUNA_STATES[state].name, values=values))

    def close(self) -> None:
        self._home.close()

    def _trials(self) -> list[FrozenTrial]:
        if self._there is None:
            self._there = self._home.reading(
                lambda: self._storage.get_all_trials(self._study._study_id, deepcopy=False)
            )
        return self._there

    def _write(self, number: int, facts: Facts) -> None:
        there = self._trials()
        trial_id = there[number]._trial_id
        self._home.writing(lambda: write(self._storage, trial_id, facts))
        there[number] = self._home.reading(lambda: self._storage.get_trial(trial_id))
