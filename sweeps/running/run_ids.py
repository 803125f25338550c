"""Which MLflow run is whose: written into the ledger as their names become known."""

from __future__ import annotations

import time

from sweeps.record.ledger import Ledger
from sweeps.record.trial import TrialRecord
from sweeps.tracking.tracker import Tracker

EVERY_S = 2.0


class RunIds:
    """Writes the MLflow runs' names into the ledger as they become known."""

    def __init__(self, ledger: Ledger, tracker: Tracker) -> None:
        self._ledger = ledger
        self._tracker = tracker
        self._next = 0.0

    def update(self, record: TrialRecord) -> None:
        """Now and then: all of them are written each time, and a run whose name a kill hid is found by its tags."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY_S
            self.note()

    def note(self) -> None:
        known = self._ledger.mlflow_runs()
        found = {**known, **self._tracker.run_ids()}
        if found != known:
            self._ledger.note("mlflow_runs", {str(number): run for number, run in found.items()})
        if self._tracker.parent_run_id and not self._ledger.attribute("mlflow_run_id"):
            self._ledger.note("mlflow_run_id", self._tracker.parent_run_id)
