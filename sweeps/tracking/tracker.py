"""MLflow, written from one thread of the driver: it is shown what the ledger and the history know.

Every trial is brought up to date by what is missing there, so a server that is slow, absent or killed in
between costs training nothing, and a resume doubles nothing. Knows no Ray and no torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

from sweeps.record.address import has_password, masked
from sweeps.record.store import Folder, why_not_writable
from sweeps.record.trial import TrialRecord
from sweeps.sweep import Sweep
from sweeps.tracking.runs import Runs

RETRY_S = 2.0


def resolve_uri(given: str | None, launch_folder: Path) -> str:
    """The one absolute address of the tracking store: the flag, else MLFLOW_TRACKING_URI, else a database
    in the launch folder.

    Raises ValueError for a store that MLflow no longer has, a place that cannot be written, or a password in it.
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
    if has_password(uri):
        raise ValueError(
            f"tracking uri {masked(uri)!r}: a password in it would be seen in every list of processes, and stored "
            "with the sweep; leave it out: a server's comes from MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, PostgreSQL's from PGPASSWORD or ~/.pgpass"
        )
    if uri.startswith("postgresql://") and find_spec("psycopg2") is None:
        return uri.replace(":", "+psycopg:", 1)  # SQLAlchemy means psycopg2 by it, the older driver
    return uri


class Tracker:
    """One MLflow parent run for the sweep and one child run for each trial, kept up to date by a thread.

    `update` never waits and never raises; `close` waits, and says what could not be shown.
    """

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
        self._name = sweep.name
        self._runs = Runs(uri, sweep, sweep_id, folder, tags=tags, parent_run_id=parent_run_id, run_ids=run_ids)
        self._wanted: dict[int, TrialRecord] = {}  # not shown yet
        self._last: dict[int, TrialRecord] = {}
        self._interrupted = False
        self._opened = False
        self._grown: Sweep | None = None  # a new definition that the runs do not know yet
        self._ending: tuple[str, list[Path], Mapping[str, str], str] | None = None
        self._problem: str | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def redefine(self, sweep: Sweep) -> None:
        """Have the parent run say that the sweep has grown."""
        with self._changed:
            self._grown, self._opened = sweep, False
            self._changed.notify_all()

    def update(self, record: TrialRecord) -> None:
        """Have this state of a trial, and all its reports in the history, shown soon."""
        with self._changed:
            self._wanted[record.number] = self._last[record.number] = record
            self._changed.notify_all()

    @property
    def parent_run_id(self) -> str | None:
        """The sweep's run, once it is there."""
        return self._runs.parent_run_id

    def run_ids(self) -> dict[int, str]:
        """The MLflow run of each trial that has one so far."""
        return self._runs.known()

    def sent(self) -> dict[int, int]:
        """How many points this process has sent of each trial."""
        return dict(self._runs.sent)

    def pending(self) -> int:
        """How many trials are not fully shown yet."""
        return len(self._wanted)

    def flush(self, wait_s: float, *, interrupted: bool, patiently: bool = False) -> None:
        """Wait until every trial is shown, for at most `wait_s`. After an interruption the runs of trials
        under way are KILLED until a resume takes them up again.

        patiently: as long as another trial is shown within that time; a thousand short ones take theirs.
        """
        with self._changed:
            if interrupted and not self._interrupted:
                self._interrupted = True
                # As copies: the thread may be about to cross off the very record it has shown as running.
                self._wanted = {number: dataclasses.replace(record) for number, record in self._last.items()}
            self._changed.notify_all()
            while self._wanted:
                enough = len(self._wanted) if patiently else 1
                if not self._changed.wait_for(functools.partial(self._lacks_fewer_than, enough), wait_s):
                    break

    def _lacks_fewer_than(self, count: int) -> bool:
        return len(self._wanted) < count

    def close(
        self,
        status: str,
        artifacts: list[Path],
        wait_s: float,
        tags: Mapping[str, str] | None = None,
        verdict: str = "",
    ) -> str | None:
        """End the parent run, with these files and tags; a sentence about what is missing after `wait_s`, or None."""
        with self._changed:
            self._ending = (status, artifacts, tags or {}, verdict)
            self._closing = True
            self._changed.notify_all()
        self._thread.join(wait_s)
        missing = len(self._wanted) + (self._ending is not None)
        if not self._thread.is_alive() and not missing:
            return None
        return (
            f"tracking is incomplete: {len(self._wanted)} trial(s) are not fully in MLflow at {self.uri} "
            f"({self._problem or 'it is slow to answer'}); nothing is lost: "
            f"a resume sends the rest, and so does python -m sweeps.ship {self._name}"
        )

    def stop(self) -> None:
        """Try no more. Two trackers of one sweep at a time would make each run twice."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()

    def discard(self, wait_s: float) -> None:
        """Stop, and take the runs of a sweep that never trained out of MLflow, as far as it answers in time."""
        self.stop()
        self._thread.join(wait_s)
        if not self._thread.is_alive():
            with contextlib.suppress(Exception):  # the edge to a foreign service; an empty run there harms nobody
                self._runs.discard()

    def _work(self) -> None:
        """The thread: show what is wanted, again and again after a failure, until all is shown."""
        while not self._stopped.is_set():
            with self._changed:
                self._changed.wait_for(
                    lambda: self._wanted or self._closing or not self._opened or self._stopped.is_set()
                )
                batch = dict(self._wanted)
                if self._grown is not None:
                    self._runs.redefine(self._grown)
                    self._grown = None
            try:
                self._runs.open()
                self._opened = True
                problems: list[Exception] = []
                for number, record in batch.items():
                    if self._stopped.is_set():
                        return
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
                    if self._ending is not None:
                        self._runs.end(*self._ending)
                        self._ending = None
                    return
            except Exception as error:  # the edge to a foreign service: whatever it raises, training goes on
                self._problem = f"{type(error).__name__}: {str(error)[:200]}"
                self._stopped.wait(RETRY_S)

    def _show(self, record: TrialRecord) -> None:
        self._runs.show(record, interrupted=self._interrupted)
