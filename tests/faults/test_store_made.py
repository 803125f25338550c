"""A driver that is killed while MLflow makes its database leaves none that can never be opened again."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from mlflow.tracking import MlflowClient

from sweeps.tracking.client import make_database
from tests.helpers.drivers import environment

MAKE = "import sys; from sweeps.tracking.client import make_database; make_database(sys.argv[1], 'one.part')"


def opens(path: Path) -> bool:
    return bool(MlflowClient(f"sqlite:///{path}").search_experiments())


def test_killed_half_way(tmp_path: Path) -> None:
    store, beside = tmp_path / "mlflow.db", tmp_path / "mlflow.db.one.part"
    command = [sys.executable, "-c", MAKE, f"sqlite:///{store}"]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
    while num_tables(beside) < 10 and process.poll() is None:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not store.exists()

    make_database(f"sqlite:///{store}", "one.part")
    assert opens(store)
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []


def num_tables(path: Path) -> int:
    if not path.exists():
        return 0
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            return int(database.execute("select count(*) from sqlite_master where type = 'table'").fetchone()[0])
    except sqlite3.OperationalError:  # locked at this moment
        return 0


def test_one_that_is_there_stays(tmp_path: Path) -> None:
    store = tmp_path / "mlflow.db"
    make_database(f"sqlite:///{store}", "one.part")
    client = MlflowClient(f"sqlite:///{store}")
    client.create_experiment("mine")
    make_database(f"sqlite:///{store}", "two.part")
    assert client.get_experiment_by_name("mine") is not None
