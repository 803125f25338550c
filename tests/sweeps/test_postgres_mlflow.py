"""MLflow's runs in a real PostgreSQL that dies meanwhile: all is there once, and no password anywhere."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from sweeps.record.history import History
from sweeps.tracking.tracker import resolve_uri
from tests.helpers.postgres import PASSWORD, Postgres
from tests.sweeps.test_tracking import WAIT_S, points_of, record, report, runs_of, sweep_of, tracker_of

pytestmark = pytest.mark.slow


def test_the_runs_of_two_sweeps_in_one_database(launch_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both begin in an empty database at once; the server dies when half is told."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    server = Postgres()
    try:
        server.start()
        uri = resolve_uri(server.address(), launch_folder)
        ids = [uuid.uuid4().hex, uuid.uuid4().hex]
        histories = [History(launch_folder / name / "history") for name in "ab"]
        trackers = [
            tracker_of(uri, sweep_of(), sweep_id, history) for sweep_id, history in zip(ids, histories, strict=True)
        ]
        for number, dies in ((1, True), (2, False)):
            for tracker, history in zip(trackers, histories, strict=True):
                history.append(0, report(number, 3.0 / number, val_loss=1.0 / number))
                tracker.update(record(0, {"lr": 3e-3}, "running" if dies else "complete", number))
            if dies:
                for tracker in trackers:
                    tracker.flush(WAIT_S, interrupted=False)
                server.kill()
        server.start()
        for tracker in trackers:
            assert tracker.close("FINISHED", [], WAIT_S) is None
        for sweep_id, tracker in zip(ids, trackers, strict=True):
            assert len(runs_of(uri, sweep_id)) == 2
            run_id = tracker.run_ids()[0]
            assert points_of(uri, run_id, "loss") == [(1, 3.0), (2, 1.5)]
            run = MlflowClient(uri).get_run(run_id)
            assert run.info.status == "FINISHED"
            assert "config.json" in [file.path for file in MlflowClient(uri).list_artifacts(run_id)]
            assert PASSWORD not in str(run.to_dictionary())
        assert [path.name for path in launch_folder.iterdir() if path.name not in "ab"] == ["mlartifacts"]
    finally:
        server.close()
