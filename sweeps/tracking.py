"""MLflow, written from one thread of the driver: it is shown what the ledger and the history know.

Every trial is brought up to date by what is missing there, so a server that is slow, absent or killed in
between costs training nothing, and a resume doubles nothing. Knows no Ray and no torch.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sweeps.history import History
from sweeps.ledger import TERMINAL, TrialRecord
from sweeps.store import why_not_writable
from sweeps.sweep import Sweep, describe
from trainable.config import TrainConfig
from trainable.crashpoint import crash_point
from trainable.settings import TASK_PREFIX
from trainable.task import load_task

EXPERIMENT = "steadysweep"
BATCH = 1000  # metrics that MLflow takes in one call
RETRY_S = 2.0
STATUS = {"complete": "FINISHED", "pruned": "KILLED", "diverged": "KILLED", "failed": "FAILED"}
REPORT_VALUES = ("epoch", "samples_per_s", "data_wait_share", "peak_mem_gib")


def resolve_uri(given: str | None, launch_folder: Path) -> str:
    """The one absolute address of the tracking store: the flag, else MLFLOW_TRACKING_URI, else a database
    in the launch folder.

    Raises ValueError for a store that MLflow no longer has, or a place that cannot be written.
    """
    uri = given or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    if uri.startswith("sqlite:"):
        path = Path(uri.removeprefix("sqlite:").removeprefix("//").removeprefix("/")).expanduser()
        if uri.startswith("sqlite:////"):
            path = Path("/") / path
        path = (launch_folder / path).resolve()
        if "?" in str(path) or unquote(str(path)) != str(path) or path.is_dir():
            raise ValueError(
                f"tracking uri {uri!r}: {path} is a folder, or has a ? or % that an address cannot hold; "
                "choose another place with --tracking-uri sqlite:////absolute/path/mlflow.db"
            )
        if not path.parent.is_dir():
            raise ValueError(f"tracking uri {uri!r}: there is no folder {path.parent}")
        problem = why_not_writable(path.parent)
        if problem:
            raise ValueError(
                f"tracking uri {uri!r}: {path.parent} cannot be written ({problem}); "
                "choose another place with --tracking-uri sqlite:////absolute/path/mlflow.db"
            )
        return f"sqlite:///{path}"
    if "://" not in uri or uri.startswith("file:"):
        raise ValueError(
            f"tracking uri {uri!r} is a folder of files, a store that MLflow has retired; "
            "use a database (sqlite:///mlflow.db) or a server (http://host:5000)"
        )
    return uri


def import_client() -> Any:
    """MLflow's client class, told how to behave: it reads these settings when it is imported."""
    # It would otherwise retry for minutes inside one call; the retrying is done here.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    from mlflow.tracking import MlflowClient

    return MlflowClient


@dataclass
class _Shown:
    """What MLflow has of one trial, as far as this process knows."""

    run_id: str | None = None
    reports: int = 0
    tags: dict[str, str] = field(default_factory=dict)
    status: str | None = None


class Tracker:
    """One MLflow parent run for the sweep and one child run for each trial, kept up to date by a thread.

    `update` never waits and never raises; `close` waits, and says what could not be shown.
    """

    def __init__(
        self,
        uri: str,
        sweep: Sweep,
        sweep_id: str,
        history: History,
        *,
        tags: Mapping[str, str],
        parent_run_id: str | None,
        run_ids: Mapping[int, str],
    ) -> None:
        self.uri = uri
        self.parent_run_id = parent_run_id
        self._sweep = sweep
        self._sweep_id = sweep_id
        self._history = history
        self._tags = dict(tags)
        self._shown: dict[int, _Shown] = {number: _Shown(run_id) for number, run_id in run_ids.items()}
        self._wanted: dict[int, TrialRecord] = {}  # not shown yet
        self._last: dict[int, TrialRecord] = {}
        self._interrupted = False
        self._parent_opened = False
        self._ending: tuple[str, list[Path]] | None = None
        self._problem: str | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._client: Any = None
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def update(self, record: TrialRecord) -> None:
        """Have this state of a trial, and all its reports in the history, shown soon."""
        with self._changed:
            self._wanted[record.number] = self._last[record.number] = record
            self._changed.notify_all()

    def run_ids(self) -> dict[int, str]:
        """The MLflow run of each trial that has one so far."""
        return {number: shown.run_id for number, shown in list(self._shown.items()) if shown.run_id}

    def flush(self, wait_s: float, *, interrupted: bool) -> None:
        """Wait until every trial is shown, for at most `wait_s`. After an interruption the runs of trials
        under way are KILLED until a resume takes them up again."""
        with self._changed:
            if interrupted and not self._interrupted:
                self._interrupted = True
                # As copies: the thread may be about to cross off the very record it has shown as running.
                self._wanted = {number: dataclasses.replace(record) for number, record in self._last.items()}
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._wanted, wait_s)

    def close(self, status: str, artifacts: list[Path], wait_s: float) -> str | None:
        """End the parent run, with these files; a sentence about what is missing after `wait_s`, or None."""
        with self._changed:
            self._ending = (status, artifacts)
            self._closing = True
            self._changed.notify_all()
        self._thread.join(wait_s)
        missing = len(self._wanted) + (self._ending is not None)
        if not self._thread.is_alive() and not missing:
            return None
        return (
            f"tracking is incomplete: {len(self._wanted)} trial(s) are not fully in MLflow at {self.uri} "
            f"({self._problem or 'it is slow to answer'}); nothing is lost, and a resume sends the rest"
        )

    def _work(self) -> None:
        """The thread: show what is wanted, again and again after a failure, until all is shown."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._closing or not self._parent_opened)
                batch = dict(self._wanted)
            try:
                self._open_parent()
                problems: list[Exception] = []
                for number, record in batch.items():
                    try:
                        self._show(record)
                    except Exception as error:  # it will be tried again; the other trials do not wait for it
                        problems.append(error)
                        continue
                    with self._changed:
                        if self._wanted.get(number) is record:
                            del self._wanted[number]
                        self._changed.notify_all()
                if problems:
                    raise problems[0]
                if self._closing and not self._wanted:
                    self._end_parent()
                    return
            except Exception as error:  # the edge to a foreign service: whatever it raises, training goes on
                self._problem = f"{type(error).__name__}: {str(error)[:200]}"
                time.sleep(RETRY_S)

    def _open_parent(self) -> None:
        if self._parent_opened:
            return
        self._client = self._client or import_client()(tracking_uri=self.uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._client.get_experiment_by_name(name)
        if experiment is not None:
            self._experiment_id = experiment.experiment_id
        else:
            location = None
            if self.uri.startswith("sqlite:///"):  # beside the database; MLflow's default is the folder of the moment
                location = (Path(self.uri.removeprefix("sqlite:///")).parent / "mlartifacts").as_uri()
            self._experiment_id = self._client.create_experiment(name, artifact_location=location)
        if self.parent_run_id is None:
            tags = {"steadysweep.role": "sweep", "steadysweep.fingerprint": self._sweep.fingerprint()}
            run_id = self._find_or_create(self._sweep.name, {**tags, **self._tags})
            self._log_params(run_id, _shared_params(self._sweep))
            self._client.log_dict(run_id, self._sweep.to_dict(), "sweep.json")
            self.parent_run_id = run_id  # known from here on: a crash before finds the run and completes it
        self._client.update_run(self.parent_run_id, status="RUNNING")
        self._parent_opened = True

    def _end_parent(self) -> None:
        assert self._ending is not None
        status, artifacts = self._ending
        assert self.parent_run_id is not None
        for path in artifacts:
            self._client.log_artifact(self.parent_run_id, str(path))
        self._client.set_terminated(self.parent_run_id, status)
        self._ending = None

    def _find_or_create(self, run_name: str, tags: dict[str, str]) -> str:
        """The run with this role in this sweep. It is looked for first: a crash may have hidden its id from us."""
        role: dict[str, str] = {key: tags[key] for key in ("steadysweep.role", "steadysweep.trial") if key in tags}
        wanted = {"steadysweep.sweep_id": self._sweep_id} | role
        query = " and ".join(f"tags.`{key}` = '{value}'" for key, value in wanted.items())
        found = self._client.search_runs([self._experiment_id], query, max_results=1)
        if found:
            return str(found[0].info.run_id)
        tags = {**tags, "steadysweep.sweep_id": self._sweep_id, "steadysweep.sweep": self._sweep.name}
        return str(self._client.create_run(self._experiment_id, run_name=run_name, tags=tags).info.run_id)

    def _show(self, record: TrialRecord) -> None:
        """Bring the trial's run up to date."""
        if record.state == "waiting":
            return
        shown = self._shown.setdefault(record.number, _Shown())
        if shown.run_id is None:
            tags = {
                "steadysweep.role": "trial",
                "steadysweep.trial": str(record.number),
                "mlflow.parentRunId": str(self.parent_run_id),
            }
            run_id = self._find_or_create(f"{record.number:02d} {describe(record.params)}", {**tags, **self._tags})
            params = _params(self._sweep.task, *self._sweep.trial_config(record.params))
            self._log_params(run_id, params)
            self._client.log_dict(run_id, params, "config.json")
            shown.run_id = run_id
        reports = self._history.reports(record.number)
        fresh = reports[shown.reports :]
        points = [point for report in fresh for point in _points(report)]
        for start in range(0, len(points), BATCH):
            self._log(shown.run_id, points[start : start + BATCH])
        shown.reports = len(reports)
        self._set_tags(shown, record)
        status = STATUS.get(record.state, "RUNNING")
        if record.state == "running" and self._interrupted:
            status = "KILLED"
        if status != shown.status:
            if status == "RUNNING":
                self._client.update_run(shown.run_id, status=status)
            else:
                if record.state == "failed" and record.reason:
                    self._client.log_text(shown.run_id, record.reason, "failure.txt")
                self._client.set_terminated(shown.run_id, status)
            shown.status = status

    def _log_params(self, run_id: str, params: Mapping[str, Any]) -> None:
        """Log what the run lacks. Parameters are never logged again: MLflow refuses another spelling."""
        from mlflow.entities import Param

        present = self._client.get_run(run_id).data.params
        missing = [Param(key, str(value)) for key, value in params.items() if key not in present]
        for start in range(0, len(missing), 100):
            self._client.log_batch(run_id, params=missing[start : start + 100])

    def _log(self, run_id: str, points: list[tuple[str, float, int, int]]) -> None:
        from mlflow.entities import Metric

        # A point that is sent again has the same time, step and value: MLflow keeps one of it.
        metrics = [Metric(name, value, time_ms, step) for name, value, time_ms, step in points]
        self._client.log_batch(run_id, metrics=metrics)
        crash_point("ship")

    def _set_tags(self, shown: _Shown, record: TrialRecord) -> None:
        from mlflow.entities import RunTag

        wanted = {
            "steadysweep.state": record.state,
            "steadysweep.attempts": str(record.attempts),
            **{f"steadysweep.{name}": value for name, value in record.notes.items()},
        }
        if record.state == "diverged":
            wanted["diverged"] = "true"
        if record.state == "pruned":
            wanted["pruned"] = "true"
        if record.reason and record.state in TERMINAL:
            wanted["steadysweep.reason"] = record.reason.strip().splitlines()[-1][:500]
        if record.weights_sha256:
            wanted["steadysweep.weights_sha256"] = record.weights_sha256
        changed = {key: value for key, value in wanted.items() if shown.tags.get(key) != value}
        if changed:
            self._client.log_batch(shown.run_id, tags=[RunTag(key, value) for key, value in changed.items()])
            shown.tags |= changed


def _points(report: Mapping[str, Any]) -> Iterator[tuple[str, float, int, int]]:
    """(name, value, time_ms, step) of a report. Non-finite values are left out: MLflow would store inf as
    1.8e308 and NaN as 0; the run carries the tag `diverged` instead."""
    time_ms = int(report["time_ms"])
    for name, values in report["curves"].items():
        for offset, value in enumerate(values):
            if math.isfinite(value):
                yield name, value, time_ms, report["first_step"] + offset + 1
    for name, value in {**report["metrics"], **{key: report[key] for key in REPORT_VALUES}}.items():
        if value is not None and math.isfinite(value):
            # The task names its metrics, and MLflow refuses a whole batch for a name like top@5.
            yield re.sub(r"[^\w/.\- :]", "_", name), value, time_ms, report["step"]


def _params(task: str, config: TrainConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    settings = load_task(task, settings).settings()  # with the defaults that nobody set
    return {"task": task, **config.to_dict(), **{f"{TASK_PREFIX}{name}": value for name, value in settings.items()}}


def _shared_params(sweep: Sweep) -> dict[str, Any]:
    varied = {name for point in sweep.points for name in point}
    shared = _params(sweep.task, sweep.train, sweep.task_settings)
    tried = {f"tried.{name}": json.dumps([point.get(name) for point in sweep.points]) for name in sorted(varied)}
    return {**{name: value for name, value in shared.items() if name not in varied}, **tried}
