"""`ray job submit` and ray://: whoever has no token submits nothing; with it the same command gives the same answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.connect import connected
from cluster.nodes import ask_nodes
from tests.helpers.drivers import TIMEOUT_S, environment, result_of, run_command
from tests.helpers.nodes import RAY, free_port, head

# Not in the extra `test`: with these packages every start of a Ray takes half as much processor time again.
pytest.importorskip("aiohttp_cors", reason="pip install -c constraints.txt 'steadysweep[cluster]': it brings jobs")
pytest.importorskip("grpc", reason="pip install -c constraints.txt 'steadysweep[cluster]': it brings ray://")
pytestmark = pytest.mark.soak

TOKEN = "of-the-cluster-for-jobs"
SCAN = ("--lrs", "3e-3", "1e-3", "--cpus-per-trial", "1", "--progress", "none")
MINE = ("--task", "my_task.py:Mine")
COMMAND = ("python", "-m", "sweeps.lr_scan", "--address", "auto")
TASK = """
from dataclasses import dataclass
from trainable.tasks.digits import Digits

@dataclass(frozen=True)
class Mine(Digits):
    width: int = 16
"""


@dataclass(frozen=True)
class Cluster:
    """jobs: where jobs are submitted; agent: where a node itself takes them; client: the address for ray://; unseen: a
    folder that its nodes do not see."""

    jobs: str
    agent: str
    client: str
    home: Path
    unseen: Path | None

    def environment(self, token: str | None) -> dict[str, str]:
        given = {} if token is None else {"RAY_AUTH_TOKEN": token}
        return {"HOME": str(self.home), **given}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("jobs")
    home, unseen = place / "home", place / "unseen"
    home.mkdir()
    unseen.mkdir()
    apart: tuple[str, ...] = ()
    if shutil.which("unshare") and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0:
        apart = ("unshare", "-m", "sh", "-c", f'mount -t tmpfs none "{unseen}" && exec "$@"', "sh")
    dashboard, agent, client = free_port(), free_port(), free_port()
    flags = {
        "--node-ip-address": "127.0.0.1",
        "--include-dashboard": "true",
        "--dashboard-host": "127.0.0.1",
        "--dashboard-port": dashboard,
        "--dashboard-agent-listen-port": agent,
        "--ray-client-server-port": client,
    }
    extra = {
        "HOME": str(home),
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),  # whose python a job runs
        "GRPC_ENABLE_FORK_SUPPORT": "0",  # else Ray's server for ray:// dies now and then as it starts another
    }
    given = [str(word) for flag in flags.items() for word in flag]
    with head(place, TOKEN, *given, before=apart, **extra):
        found = Cluster(
            f"http://127.0.0.1:{dashboard}/api/jobs/",
            f"http://127.0.0.1:{agent}/api/job_agent/jobs/",
            f"ray://127.0.0.1:{client}",
            home,
            unseen if apart else None,
        )
        began = time.monotonic()
        while status(found.jobs, TOKEN) != 200:  # it answers some seconds after the head
            assert time.monotonic() - began < TIMEOUT_S, (place / "head.log").read_text()
            time.sleep(0.2)
        yield found
    assert list(home.rglob("auth_token")) == []


def status(jobs: str, token: str | None, body: dict[str, Any] | None = None) -> int:
    """What is said to a request for all jobs or, with a body, to a new one; 0: nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(jobs, data, {"Content-Type": "application/json"})
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def submit(cluster: Cluster, token: str | None, *words: str) -> subprocess.CompletedProcess[str]:
    mode = {} if token is None else {"RAY_AUTH_MODE": "token"}
    return subprocess.run(
        [*RAY, "job", "submit", "--address", cluster.jobs.removesuffix("/api/jobs/"), *words],
        cwd=cluster.home,
        env={**environment(), **mode, **cluster.environment(token)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def trials_of(folder: Path) -> list[tuple[Any, ...]]:
    return [(trial["params"], trial["state"], trial["weights_sha256"]) for trial in result_of(folder)["trials"]]


def test_a_job_without_the_token_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    made = tmp_path / "made"
    for token, code, words in (
        (None, 401, "Missing authentication token"),
        ("a-guess", 403, "Invalid authentication token"),
    ):
        assert status(cluster.jobs, token) == code
        assert status(cluster.jobs, token, {"entrypoint": f"touch {made}"}) == code
        assert status(cluster.agent, token, {"entrypoint": f"touch {made}"}) == code
        done = submit(cluster, token, "--", "touch", str(made))
        assert done.returncode != 0
        assert words in done.stderr
        assert TOKEN not in done.stdout + done.stderr
    request = urllib.request.Request(cluster.jobs, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert f"touch {made}" not in answer.read().decode()
    assert not made.exists()


def test_the_ray_that_is_started_here_takes_no_jobs_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ray[default] has every node take them, also without a dashboard."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    import ray

    if ray.is_initialized():
        pytest.skip("another test's Ray is in this process")
    with connected(None):
        agent = ray._private.worker._global_node._ray_params.dashboard_agent_listen_port
        jobs = f"http://127.0.0.1:{agent}/api/job_agent/jobs/"
        began = time.monotonic()
        while (said := status(jobs, None, {"entrypoint": "true"})) == 0:
            assert time.monotonic() - began < TIMEOUT_S
            time.sleep(0.2)
        assert said == 401
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """The trials of the same command without --address."""
    place = tmp_path_factory.mktemp("here")
    (place / "my_task.py").write_text(TASK)
    done = run_command(*SCAN, *MINE, "--name", "s", cwd=place, HOME=str(place))
    assert done.returncode == 0, done.stderr
    return trials_of(place / "results/s")


def test_a_submitted_command_answers_as_it_does_here(
    here: list[tuple[Any, ...]], cluster: Cluster, tmp_path: Path
) -> None:
    """The task's file comes with the job and is on no node."""
    shipped, results = tmp_path / "shipped", tmp_path / "results"
    shipped.mkdir()
    results.mkdir()
    (shipped / "my_task.py").write_text(TASK)
    command = (*COMMAND, *SCAN, *MINE, "--results", str(results), "--name", "s")
    done = submit(cluster, TOKEN, "--working-dir", str(shipped), "--", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "s (finished)" in done.stdout
    assert TOKEN not in done.stdout + done.stderr
    assert trials_of(results / "s") == here
    assert result_of(results / "s")["tracking_uri"] == f"sqlite:///{results / 'mlflow.db'}"  # Ray's folder goes


def test_results_that_would_go_with_the_job_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text(TASK)
    command = (*COMMAND, *SCAN, *MINE)
    done = submit(cluster, TOKEN, "--working-dir", str(tmp_path), "--", *command)
    assert done.returncode != 0
    assert "error: the results folder" in done.stdout
    assert "goes with it" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("token", "words"),
    [("a-guess", "refuses the token that we have"), (None, "asks for a token that we do not have")],
)
def test_nobody_is_let_in_by_ray_client_without_the_token(
    token: str | None, words: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in cluster.environment(token).items():
        monkeypatch.setenv(name, value)
    began = time.monotonic()
    with pytest.raises(ValueError, match=words) as refused:
        ask_nodes(cluster.client)
    assert "\n" not in str(refused.value)
    assert time.monotonic() - began < 25  # Ray's client would try for 30 s


def test_a_driver_behind_ray_client_answers_as_any_other(
    here: list[tuple[Any, ...]], cluster: Cluster, tmp_path: Path
) -> None:
    """Its ledger and MLflow stay with it; the task's file is where both see it."""
    (tmp_path / "my_task.py").write_text(TASK)
    place = ("--address", cluster.client, "--name", "s")
    done = run_command(*SCAN, *MINE, *place, cwd=tmp_path, **cluster.environment(TOKEN))
    assert done.returncode == 0, done.stdout + done.stderr
    assert trials_of(tmp_path / "results/s") == here


def test_a_task_that_the_cluster_does_not_see_is_said_in_a_sentence(cluster: Cluster, tmp_path: Path) -> None:
    if cluster.unseen is None:
        pytest.skip("unshare is needed to hide a folder from the cluster, and is not allowed here")
    task = cluster.unseen / "my_task.py"
    task.write_text(TASK)
    command = (*SCAN, "--task", f"{task}:Mine", "--address", cluster.client)
    done = run_command(*command, cwd=tmp_path, **cluster.environment(TOKEN))
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert f"cannot load the task: there is no file {task}" in done.stderr.strip().splitlines()[-1]
    assert not (tmp_path / "results").exists()
