"""MLflow away, dying, frozen, broken or locked: training does not wait for it, and in the end all is there once."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from sweeps import ship
from sweeps.record.history import History
from sweeps.running import conduct
from tests.helpers.broken import Broken
from tests.helpers.drivers import environment
from tests.sweeps.test_tracking import record, report, runs_of, sweep_of, tracker_of

Scan = Callable[..., tuple[int, dict[str, Any]]]
WAIT_S = 120.0
LRS = ({"lr": 3e-3}, {"lr": 1e-3})


class Server:
    """A real `mlflow server` on a port that was free, as a process group."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port),
                    "--workers", "1", "--backend-store-uri", f"sqlite:///{self._folder / 'server.db'}",
                    "--artifacts-destination", str(self._folder / "artifacts"),
                ],
                cwd=self._folder, env=environment(), stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        began = time.monotonic()
        while True:
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=5).close()
                return
            except OSError:
                assert time.monotonic() - began < WAIT_S, (self._folder / "server.log").read_text()
                time.sleep(0.2)

    def send(self, number: int) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)
        if number == signal.SIGKILL:
            self._process.wait()
            self._process = None

    def close(self) -> None:
        if self._process is not None:
            self.send(signal.SIGKILL)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(tmp_path)
    yield found
    found.close()


class Training:
    """Two trials that report as fast as it is asked for; the longest that tracking ever kept one waiting."""

    def __init__(self, uri: str, history: History) -> None:
        self.history = history
        self.sweep_id = uuid.uuid4().hex
        self.tracker = tracker_of(uri, sweep_of(*LRS), self.sweep_id, history)
        self.longest_s = 0.0
        self.reports = 0

    def go_on(self, reports: int, pause_s: float = 0.05) -> None:
        for _ in range(reports):
            self.reports += 1
            for number, point in enumerate(LRS):
                self.history.append(number, report(self.reports, 2.0, 1.0 / self.reports, val_loss=0.5))
                began = time.perf_counter()
                self.tracker.update(record(number, point, "running", self.reports))
                self.longest_s = max(self.longest_s, time.perf_counter() - began)
            time.sleep(pause_s)

    def end(self) -> str | None:
        for number, point in enumerate(LRS):
            self.tracker.update(record(number, point, "complete", self.reports))
        return self.tracker.close("FINISHED", [], WAIT_S)

    def all_is_there_once(self, uri: str) -> None:
        client = MlflowClient(uri)
        runs = runs_of(uri, self.sweep_id)
        assert len(runs) == 1 + len(LRS)
        assert {run.info.status for run in runs} == {"FINISHED"}
        for run_id in self.tracker.run_ids().values():
            epochs = client.get_metric_history(run_id, "epoch")
            assert sorted(point.value for point in epochs) == list(range(1, self.reports + 1))
            losses = client.get_metric_history(run_id, "loss")
            assert sorted(point.step for point in losses) == list(range(1, 2 * self.reports + 1))


def until(holds: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < WAIT_S
        time.sleep(0.05)


@pytest.mark.slow
def test_a_bad_day_of_a_server(server: Server, tmp_path: Path) -> None:
    """B18: broken at the start, then absent, there, killed, there again, frozen, there; one driver all along."""
    broken = ThreadingHTTPServer(("127.0.0.1", server.port), Broken)
    threading.Thread(target=broken.serve_forever, daemon=True).start()
    training = Training(server.uri, History(tmp_path / "history"))
    training.go_on(20)
    broken.shutdown()
    broken.server_close()
    training.go_on(20)
    assert training.tracker.run_ids() == {}
    server.start()
    training.go_on(20)
    until(lambda: len(training.tracker.run_ids()) == 2)
    server.send(signal.SIGKILL)
    training.go_on(20)
    server.start()
    training.go_on(20)
    until(lambda: training.tracker.pending() == 0)
    server.send(signal.SIGSTOP)
    training.go_on(20)
    server.send(signal.SIGCONT)
    assert training.end() is None
    training.all_is_there_once(server.uri)
    print(f"longest wait of a report for tracking: {training.longest_s * 1e3:.2f} ms")
    assert training.longest_s < 0.1


def test_a_database_that_another_process_has_locked(tmp_path: Path) -> None:
    """Longer than SQLite itself is ready to wait."""
    path = tmp_path / "mlflow.db"
    training = Training(f"sqlite:///{path}", History(tmp_path / "history"))
    training.go_on(5)
    until(lambda: len(training.tracker.run_ids()) == 2)
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN EXCLUSIVE")
        training.go_on(20, pause_s=0.35)
        assert training.tracker.pending() == 2
        other.execute("ROLLBACK")
    assert training.end() is None
    training.all_is_there_once(f"sqlite:///{path}")
    assert training.longest_s < 0.1


def test_artifacts_that_cannot_be_written(tmp_path: Path) -> None:
    """B18: the points do not wait for the files; what cannot be stored is told, and sent once it can be."""
    (tmp_path / "mlartifacts").write_text("a file where the folder should be")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    training = Training(uri, History(tmp_path / "history"))
    training.go_on(5)
    for number, point in enumerate(LRS):
        training.tracker.update(record(number, point, "complete", 5))
    said = training.tracker.close("FINISHED", [], 5.0)
    assert said is not None
    assert "tracking is incomplete" in said
    (tmp_path / "mlartifacts").unlink()
    assert training.tracker.close("FINISHED", [], WAIT_S) is None
    training.all_is_there_once(uri)


@pytest.mark.soak
def test_a_server_that_is_never_there(
    scan: Scan, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """B18: the sweep is answered, says what is missing, and `sweeps.ship` sends it once the server is there."""
    monkeypatch.setattr(conduct, "TRACKING_WAIT_S", 1.0)
    code, result = scan("--name", "alone", "--lrs", "3e-3", "1e-3", "--tracking-uri", server.uri)
    assert (code, result["status"]) == (0, "finished")
    assert result["mlflow_run_id"] is None
    monkeypatch.setattr(ship, "WAIT_S", 1.0)
    assert ship.main(["alone"]) == 1
    assert "does not answer" in capsys.readouterr().out
    server.start()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert ship.main(["alone"]) == 0
    capsys.readouterr()
    assert ship.main(["alone"]) == 0
    assert "nothing was sent" in capsys.readouterr().out
    client = MlflowClient(server.uri)
    (experiment,) = (e for e in client.search_experiments() if e.name == "steadysweep")
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(run.info.run_name for run in runs) == ["00 lr=0.003", "01 lr=0.001", "alone"]
    assert {run.info.status for run in runs} == {"FINISHED"}
    code, again = scan("--resume", "alone")
    assert code == 0
    assert {trial["mlflow_run_id"] for trial in again["trials"]} | {again["mlflow_run_id"]} == {
        run.info.run_id for run in runs
    }
