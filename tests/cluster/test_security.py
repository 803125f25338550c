"""MLflow as the files here start it: nobody gets in without a name and a password, nor under another host name; the
password stands nowhere but in the environment."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.helpers.drivers import ROOT, driver, environment, run_command
from tests.helpers.nodes import free_port

NAME, PASSWORD = "steady", "correct-horse-battery"
SEARCH = "/api/2.0/mlflow/experiments/search?max_results=1"
TRIAL = ("--lrs", "1e-3", "--cpus-per-trial", "1", "--progress", "none", "--name", "s")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server keeps what it is told."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[str]:
    """compose.yaml's own command and configuration; files in place of its database and its object store."""
    place = store
    composed: dict[str, Any] = YAML(typ="safe", pure=True).load((ROOT / "cluster/compose.yaml").read_text())
    port = free_port()
    command = []
    for word in composed["services"]["mlflow"]["command"][1:]:
        flag, _, _ = word.partition("=")
        ours = {
            "--host": "127.0.0.1",
            "--port": port,
            "--allowed-hosts": f"127.0.0.1:{port}",
            "--artifacts-destination": place / "artifacts",
            "--workers": 1,
        }
        command.append(f"{flag}={ours[flag]}" if flag in ours else word)
    configuration = place / "basic_auth.ini"
    lines = composed["configs"]["mlflow-auth"]["content"].splitlines()
    database = f"database_uri = sqlite:///{place / 'users.db'}"
    configuration.write_text("\n".join(database if line.startswith("database_uri") else line for line in lines))
    secrets = {
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{place / 'store.db'}",
        "MLFLOW_AUTH_CONFIG_PATH": str(configuration),
        "MLFLOW_AUTH_ADMIN_USERNAME": NAME,
        "MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORD,
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "for-this-test",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    with (place / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *command],
            cwd=place,
            env={**environment(), **secrets},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    uri = f"http://127.0.0.1:{port}"
    try:
        began = time.monotonic()
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{uri}/health", timeout=5).close()
                break
            assert process.poll() is None, (place / "log").read_text()
            assert time.monotonic() - began < 120, (place / "log").read_text()
            time.sleep(0.2)
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def status(uri: str, *, password: str | None = None, host: str | None = None) -> int:
    request = urllib.request.Request(uri + SEARCH)
    if password is not None:
        request.add_header("Authorization", f"Basic {base64.b64encode(f'{NAME}:{password}'.encode()).decode()}")
    if host is not None:
        request.add_header("Host", host)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.slow
def test_mlflow_asks_who_it_is(server: str, store: Path, tmp_path: Path) -> None:
    assert status(server) == 401
    assert status(server, password="a-guess") == 401
    assert status(server, password="") == 401
    assert status(server, password=PASSWORD) == 200
    assert status(server, password=PASSWORD, host="elsewhere.example:5000") == 403

    place = ("--tracking-uri", server)
    for secrets in ({}, {"MLFLOW_TRACKING_USERNAME": NAME, "MLFLOW_TRACKING_PASSWORD": "a-guess"}):
        done = run_command(*TRIAL, *place, cwd=tmp_path, **secrets)
        assert done.returncode == 2
        (line,) = done.stderr.strip().splitlines()
        assert line.startswith(f"error: MLflow's server at {server} refuses us: set MLFLOW_TRACKING_USERNAME and")
        assert not (tmp_path / "results").exists()

    right = {"MLFLOW_TRACKING_USERNAME": NAME, "MLFLOW_TRACKING_PASSWORD": PASSWORD}
    listed: set[bytes] = set()
    with driver(*TRIAL, *place, cwd=tmp_path, **right) as process:
        while process.poll() is None:
            listed |= command_lines()
            time.sleep(0.1)
        assert process.stdout is not None
        said = process.stdout.read() + (tmp_path / "driver.log").read_text()
    assert process.returncode == 0, said
    assert PASSWORD not in said
    assert any(b"sweeps.lr_scan" in line for line in listed)
    assert not any(PASSWORD.encode() in line for line in listed)  # what `ps` shows to everybody
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    written |= {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    assert {"ledger.db", "store.db", "driver.log"} <= {path.name for path in written}
    assert [path for path, content in written.items() if PASSWORD.encode() in content] == []
    with urllib.request.urlopen(_runs(server), timeout=20) as answer:
        told = answer.read().decode()
    assert told.count('"run_id"') >= 2  # the sweep and its trial
    assert PASSWORD not in told


def command_lines() -> set[bytes]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            found.add(path.read_bytes())
    return found


def _runs(uri: str) -> urllib.request.Request:
    request = urllib.request.Request(
        f"{uri}/api/2.0/mlflow/runs/search",
        data=b'{"experiment_ids": ["1"], "max_results": 10}',
        headers={"Content-Type": "application/json"},
    )
    request.add_header("Authorization", f"Basic {base64.b64encode(f'{NAME}:{PASSWORD}'.encode()).decode()}")
    return request


@pytest.mark.parametrize("name", ["compose.yaml", "slurm.sbatch", "ray_cluster.yaml", "kuberay/services.yaml"])
def test_no_file_holds_a_secret(name: str) -> None:
    """Whatever is called a password, a key or a token comes from the environment, from a secret or from a file."""
    given = []
    for line in (ROOT / "cluster" / name).read_text().splitlines():
        key, _, value = line.partition("#")[0].strip().removeprefix("- ").partition(": ")
        if any(word in key.upper() for word in ("PASSWORD", "SECRET_KEY", "AUTH_TOKEN", "ACCESS_KEY")):
            given.append((key, value.strip()))
    assert [(key, value) for key, value in given if value and not value.startswith(("${", "$"))] == []
