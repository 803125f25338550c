"""The MLflow runs of one sweep: each is found or made, asked what it has, and brought up to date by the rest.

Every call may fail and is made again by whoever holds this; nothing is doubled by it. Knows no threads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeps.record.drift import TAG as DRIFT_TAG
from sweeps.record.history import Follower, History
from sweeps.record.store import Folder
from sweeps.record.stored import stored_of
from sweeps.record.trial import TERMINAL, TrialRecord
from sweeps.sweep import Sweep, describe
from sweeps.tracking.client import client_of, experiment_id_of, is_gone
from sweeps.tracking.dataset import dataset_of
from sweeps.tracking.files import CONFIG, files_of, sha256_of, sha256_tag
from sweeps.tracking.spelling import params_of, points, shared_params, spelled, value_text
from sweeps.tracking.tags import definition_tags, diagnosis_tags, name_tags, trial_tags
from trainable.config import TrainConfig
from trainable.crashpoint import crash_point

NOTE, VERDICT = "mlflow.note.content", "steadysweep.verdict"  # the first is what its pages call the description
BATCH = 1000  # metrics that MLflow takes in one call
STATUS = {"complete": "FINISHED", "pruned": "KILLED", "diverged": "KILLED", "failed": "FAILED"}


@dataclass
class _Shown:
    """What MLflow has of one trial, as far as it is known."""

    run_id: str | None = None
    adopted: bool = False  # it exists, it has its params, and what follows is what it said
    steps: set[int] = field(default_factory=set)  # of the reports that are there
    tags: dict[str, str] = field(default_factory=dict)
    datasets: set[str] = field(default_factory=set)  # their digests
    status: str | None = None
    definition: tuple[TrainConfig, dict[str, Any]] | None = None  # the trial's, which it takes the task to read
    follower: Follower | None = None  # of its reports; None: they are read from the first one on
    diagnosed: int = -1  # by how many reports


class Runs:
    """One parent run for the sweep and one child run for each trial, for life."""

    def __init__(
        self,
        uri: str,
        sweep: Sweep,
        sweep_id: str,
        folder: Folder,
        *,
        tags: Mapping[str, str],
        parent_run_id: str | None,
        run_ids: Mapping[int, str],
    ) -> None:
        self.uri = uri
        self.parent_run_id = parent_run_id
        self.sent: dict[int, int] = {}
        self._sweep = sweep
        self._sweep_id = sweep_id
        self._folder = folder
        self._stored = stored_of(folder)
        self._history = History(folder.history)
        self._tags = dict(tags)
        self._shown = {number: _Shown(run_id) for number, run_id in run_ids.items()}
        self._parent_datasets: set[str] = set()
        self._opened = False
        self._client: Any = None

    def redefine(self, sweep: Sweep) -> None:
        """The sweep has grown; what the parent run says of it follows with the next `open`."""
        self._sweep, self._opened = sweep, False

    def known(self) -> dict[int, str]:
        """The run of each trial that has one."""
        return {number: shown.run_id for number, shown in list(self._shown.items()) if shown.run_id}

    def open(self) -> None:
        """Find or make the experiment and the parent run. Cheap once it has gone well."""
        if self._opened:
            return
        if self._client is None:
            self._client = client_of(self.uri, self._sweep_id)
        self._experiment_id = experiment_id_of(self._client, self.uri)
        fingerprint = {"steadysweep.fingerprint": self._sweep.fingerprint()}
        run = self._existing(self.parent_run_id) or self._find_or_create(
            self._sweep.name, {"steadysweep.role": "sweep", **self._tags}
        )
        run_id = str(run.info.run_id)
        self._log_params(run, shared_params(self._sweep), "sweep.json")
        if run.data.tags.get("steadysweep.fingerprint") != fingerprint["steadysweep.fingerprint"]:
            self._client.log_dict(run_id, self._sweep.to_dict(), "sweep.json")
            self._log_tags(run_id, fingerprint)
        if DRIFT_TAG in self._tags:
            self._log_tags(run_id, {DRIFT_TAG: self._tags[DRIFT_TAG]})
        self.parent_run_id = run_id  # known from here on: a crash before finds the run and completes it
        self._client.update_run(run_id, status="RUNNING")
        self._opened = True

    def end(self, status: str, artifacts: Sequence[Path], tags: Mapping[str, str], verdict: str) -> None:
        """End the parent run, with these files and tags; its description is the verdict, if there is one."""
        assert self.parent_run_id is not None
        words = {}
        if verdict:
            words[VERDICT] = value_text(verdict, "result.json")
            before = self._client.get_run(self.parent_run_id).data.tags
            if before.get(NOTE) in (None, before.get(VERDICT)):  # what a person has written there stays
                words[NOTE] = words[VERDICT]
        self._log_tags(self.parent_run_id, {**tags, **words})
        self._client.set_terminated(self.parent_run_id, status)
        for path in artifacts:
            self._client.log_artifact(self.parent_run_id, str(path))

    def discard(self) -> None:
        """Delete the runs, where none of them has a report."""
        if not self.sent:
            for run_id in [*self.known().values(), self.parent_run_id]:
                if run_id is not None:
                    self._client.delete_run(run_id)

    def show(self, record: TrialRecord, *, interrupted: bool) -> None:
        """Bring the trial's run up to date."""
        if record.state == "waiting":
            return
        shown = self._shown.setdefault(record.number, _Shown())
        try:
            self._show(shown, record, interrupted)
        except Exception as error:
            shown.follower = None  # what it gave out may not have been sent
            if is_gone(error):  # the store is another one, or somebody tidied up: all of it is sent again
                self._shown[record.number] = _Shown()
                self._opened = False
            raise

    def _show(self, shown: _Shown, record: TrialRecord, interrupted: bool) -> None:
        if shown.definition is None:
            shown.definition = self._sweep.trial_config(record.params)
        config, settings = shown.definition
        if not shown.adopted:
            self._adopt(shown, record, params_of(self._sweep.task, config, settings))
        assert shown.run_id is not None
        self._send_reports(shown, record.number)
        self._name_data(shown, dataset_of(self._sweep.task, settings, record.notes))
        tags = trial_tags(record, self._tags, compiled=config.compile)
        if record.state in TERMINAL and shown.diagnosed != record.reports:
            tags |= diagnosis_tags(record, self._history.reports(record.number))
        self._log_new_tags(shown, tags)
        shown.diagnosed = record.reports if record.state in TERMINAL else -1
        status = STATUS.get(record.state, "KILLED" if interrupted else "RUNNING")
        if status != shown.status:
            if status == "RUNNING":
                self._client.update_run(shown.run_id, status=status)
            else:
                self._client.set_terminated(shown.run_id, status, end_time=record.ended_ms)
            shown.status = status
        # The files last: where they go may be another place, which may be full or read-only.
        files = files_of(self._folder, self._stored, record, at_rest=status != "RUNNING")
        if sha256_tag(CONFIG) not in shown.tags:
            files[CONFIG] = json.dumps(params_of(self._sweep.task, config, settings), indent=2, default=str)
        self._send_files(shown, files)

    def _adopt(self, shown: _Shown, record: TrialRecord, params: Mapping[str, Any]) -> None:
        """Have a run for the trial, and know what is in it."""
        assert shown.definition is not None
        tags = {
            "steadysweep.role": "trial",
            "steadysweep.trial": str(record.number),
            "mlflow.parentRunId": str(self.parent_run_id),
            **definition_tags(shown.definition[0], self._sweep.fingerprint()),
        }
        name = value_text(f"{record.number:02d} {describe(record.params)}")
        run = self._existing(shown.run_id)
        if run is None:
            run = self._find_or_create(name, {**tags, **self._tags}, record.began_ms)
        shown.run_id = str(run.info.run_id)
        self._log_params(run, params, CONFIG)
        # The epoch is the last point of each report.
        history = self._client.get_metric_history(shown.run_id, "epoch") if "epoch" in run.data.metrics else []
        shown.steps = {point.step for point in history}
        shown.tags = dict(run.data.tags)
        shown.datasets = {entry.dataset.digest for entry in run.inputs.dataset_inputs} if run.inputs else set()
        # As it was defined when it began; a run of an older version says nothing of that.
        self._log_new_tags(shown, {key: value for key, value in tags.items() if key not in shown.tags})
        shown.adopted = True

    def _existing(self, run_id: str | None) -> Any:
        """The run, or None where the store has none under that name, or only a deleted one."""
        if run_id is None:
            return None
        try:
            run = self._client.get_run(run_id)
        except Exception as error:
            if is_gone(error):
                return None
            raise
        return None if run.info.lifecycle_stage == "deleted" else run

    def _find_or_create(self, run_name: str, tags: dict[str, str], began_ms: int | None = None) -> Any:
        """The run with this role in this sweep. It is looked for first: a crash may have hidden its id from us."""
        role: dict[str, str] = {key: tags[key] for key in ("steadysweep.role", "steadysweep.trial") if key in tags}
        wanted = {"steadysweep.sweep_id": self._sweep_id} | role
        query = " and ".join(f"tags.`{key}` = '{value}'" for key, value in wanted.items())
        found = self._client.search_runs([self._experiment_id], query, max_results=1)
        if found:
            return found[0]
        tags = {**tags, "steadysweep.sweep_id": self._sweep_id, "steadysweep.sweep": self._sweep.name}
        return self._client.create_run(self._experiment_id, start_time=began_ms, run_name=run_name, tags=tags)

    def _send_reports(self, shown: _Shown, number: int) -> None:
        """Send the reports that the run lacks."""
        from mlflow.entities import Metric

        if shown.follower is None:
            shown.follower = Follower(self._history.path(number))
        fresh = [report for report in shown.follower.fresh() if report["step"] not in shown.steps]
        # A point that is sent again, after half a report, has the same time, step and value: MLflow keeps one.
        metrics = [Metric(name, value, time, step) for report in fresh for name, value, time, step in points(report)]
        for start in range(0, len(metrics), BATCH):
            batch = metrics[start : start + BATCH]
            self._client.log_batch(shown.run_id, metrics=batch)
            crash_point("ship")
            self.sent[number] = self.sent.get(number, 0) + len(batch)
        self._log_new_tags(
            shown, name_tags({name for report in fresh for name in (*report["metrics"], *report["curves"])})
        )
        shown.steps |= {report["step"] for report in fresh}

    def _name_data(self, shown: _Shown, found: Any) -> None:
        """Have the trial's run, and the sweep's, say what was trained on."""
        if found is None:
            return
        digest = found.dataset.digest
        for run_id, known in ((shown.run_id, shown.datasets), (self.parent_run_id, self._parent_datasets)):
            if digest not in known:
                self._client.log_inputs(run_id, [found])
                known.add(digest)

    def _send_files(self, shown: _Shown, files: Mapping[str, str]) -> None:
        """Send those that the run has not, or has in another version. One that cannot be sent keeps no other back."""
        problem: Exception | None = None
        for name, text in files.items():
            version = {sha256_tag(name): sha256_of(text)}
            if not version.items() <= shown.tags.items():
                try:
                    self._client.log_text(shown.run_id, text, name)
                    self._log_new_tags(shown, version)
                except Exception as error:  # the edge to a foreign service
                    problem = problem or error
        if problem is not None:
            raise problem

    def _log_params(self, run: Any, params: Mapping[str, Any], whole_in: str) -> None:
        """Log what the run lacks. What it has stays: MLflow refuses another value, so that becomes a tag."""
        from mlflow.entities import Param

        names = spelled(params)
        texts = {names[name]: value_text(value, whole_in) for name, value in params.items()}
        present = run.data.params
        missing = [Param(name, text) for name, text in texts.items() if name not in present]
        for start in range(0, len(missing), 100):
            self._client.log_batch(run.info.run_id, params=missing[start : start + 100])
        changed = {f"steadysweep.now.{name}": text for name, text in texts.items() if present.get(name, text) != text}
        known = run.data.tags
        tags = {key: text for key, text in {**name_tags(params), **changed}.items() if known.get(key) != text}
        self._log_tags(run.info.run_id, tags)

    def _log_new_tags(self, shown: _Shown, tags: Mapping[str, str]) -> None:
        """Those that the trial's run has not."""
        changed = {key: value for key, value in tags.items() if shown.tags.get(key) != value}
        self._log_tags(shown.run_id, changed)
        shown.tags |= changed

    def _log_tags(self, run_id: str | None, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        entries = [RunTag(key, value) for key, value in tags.items()]
        for start in range(0, len(entries), 100):
            self._client.log_batch(run_id, tags=entries[start : start + 100])
