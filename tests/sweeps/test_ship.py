"""`python -m sweeps.ship NAME`: what MLflow lacks is sent, once, and it is said how much that was."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from sweeps import ship
from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from tests.sweeps.test_extend import run_to_end, sweep_of
from tests.sweeps.test_tracking import report


@pytest.fixture
def folder(launch_folder: Path) -> Folder:
    """A sweep whose tracking store never was there: one trial is complete, one was interrupted."""
    folder = Folder(launch_folder / "results/s")
    folder.path.mkdir(parents=True)
    noted = {"sweep_id": "x", "tracking_uri": f"sqlite:///{launch_folder / 'mlflow.db'}", "folder": str(folder.path)}
    ledger = Ledger.create(folder.ledger, sweep_of(2), noted)
    run_to_end(ledger, 0, 2)
    ledger.begin(1)
    ledger.close()
    for number, reports in ((0, 2), (1, 1)):
        for epoch in range(1, reports + 1):
            History(folder.history).append(number, report(epoch, 2.0, 1.0, val_loss=1 / epoch))
    return folder


def test_what_is_missing_is_sent_once(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert ship.main(["s"]) == 0
    uri = f"sqlite:///{folder.path.parents[1] / 'mlflow.db'}"
    points = 2 * 2 + 5  # of each report: two curves of two steps; a metric, three values and the epoch
    said = [f"sent {3 * points} points of 2 trial(s) to {uri}", f"trial 0: {2 * points} points"]
    assert capsys.readouterr().out.splitlines() == [*said, f"trial 1: {points} points"]
    assert ship.main(["s"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"nothing was sent: MLflow at {uri} has all of it"]
    runs = Ledger(folder.ledger).mlflow_runs()
    client = MlflowClient(uri)
    assert [client.get_run(runs[number]).info.status for number in (0, 1)] == ["FINISHED", "KILLED"]

    History(folder.history).append(1, report(2, 0.5, 0.25, val_loss=0.1))
    assert ship.main(["s"]) == 0
    assert f"sent {points} points of 1 trial(s)" in capsys.readouterr().out
    assert [point.value for point in client.get_metric_history(runs[1], "loss")] == [2.0, 1.0, 0.5, 0.25]
    assert Ledger(folder.ledger).mlflow_runs() == runs


def test_a_sweep_that_is_being_run(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own driver sends what there is."""
    with folder.owned(), pytest.raises(SystemExit) as left:
        ship.main(["s"])
    assert left.value.code == 2
    assert "is being run by process" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["none"], ["../x"], ["x", "--results", "nowhere"]])
def test_nothing_to_ship(arguments: list[str], launch_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        ship.main(arguments)
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert list(launch_folder.iterdir()) == []
