"""Joining a cluster: what cannot be joined or worked with is one sentence before the first trial."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cluster.connect import connected
from cluster.fit import our_versions, problems
from cluster.nodes import Node, _words, ask_nodes
from tests.helpers.drivers import environment, run_command
from tests.helpers.nodes import TOKEN, free_port, joined

TRIAL = ("--lrs", "1e-3", "--cpus-per-trial", "1", "--progress", "none")


def with_token(monkeypatch: pytest.MonkeyPatch, token: str | None, home: Path) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))  # where Ray would look for one too
    if token is not None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)


@pytest.mark.parametrize(
    ("token", "words"),
    [("of-another", "refuses the token that we have"), (None, "asks for a token that we do not have")],
)
def test_whoever_has_no_token_is_not_let_in(
    token: str | None, words: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_token(monkeypatch, token, tmp_path)
    with pytest.raises(ValueError, match=words) as refused:
        ask_nodes(address)
    assert "RAY_AUTH_TOKEN_PATH" in str(refused.value)
    assert TOKEN not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.soak  # test_gpus.py joins with it alone
def test_the_token_alone_is_enough(address: str, tmp_path: Path) -> None:
    """Ray's own mode need not be set."""
    done = run_command(*TRIAL, "--address", address, cwd=tmp_path, RAY_AUTH_TOKEN=TOKEN, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(TOKEN.encode() in content for content in (*written, done.stdout.encode(), done.stderr.encode()))


def test_the_command_says_it_and_leaves_nothing(address: str, tmp_path: Path) -> None:
    done = run_command(*TRIAL, "--address", address, cwd=tmp_path, RAY_AUTH_TOKEN="no", HOME=str(tmp_path))
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: the Ray cluster at ")
    assert not (tmp_path / "results").exists()


def test_nobody_answers(tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    for given in (nowhere, f"ray://{nowhere}", "no-such-host.invalid:6379"):
        done = run_command(*TRIAL, "--address", given, cwd=tmp_path, HOME=str(tmp_path))
        assert done.returncode == 2, done.stderr
        assert f"error: no Ray cluster answers at address '{given}'" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_server_for_ray_client_that_died_is_named() -> None:
    died = "RuntimeError: Starting Ray client server failed. See ray_client_server_23000.err for detailed logs."
    for said in ("", f"Traceback (most recent call last):\n{died}"):
        assert "GRPC_ENABLE_FORK_SUPPORT=0" in _words("ray://head:10001", said)
        assert "GRPC_ENABLE_FORK_SUPPORT=0" not in _words("head:6379", said)


def test_auto_is_the_cluster_that_this_machine_belongs_to(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_token(monkeypatch, TOKEN, tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", address)
    (node,) = ask_nodes("auto").nodes
    assert node.resources["here"] == 1


def test_a_node_says_what_it_is(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_token(monkeypatch, TOKEN, tmp_path)
    task = tmp_path / "mine.py"
    (node,) = ask_nodes(address, shared=str(tmp_path), task=f"{task}:Mine").nodes
    assert node.problem == ""
    assert node.versions == our_versions()
    assert node.resources["CPU"] == 1
    assert node.host == os.uname().nodename
    assert 2**30 < node.memory_available <= node.memory
    assert abs(node.clock_s) <= node.clock_within_s + 0.05  # it is this machine's clock
    assert (node.sees, node.writes) == ({str(tmp_path): ""}, {str(tmp_path): ""})
    assert node.task == f"there is no file {task}"
    assert list(tmp_path.iterdir()) == []
    (told,) = problems([node], our_versions())
    assert "cannot load the task: there is no file" in told


def test_the_ray_that_is_started_here_asks_for_its_token(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice in one process, as a notebook does, and then a cluster's; the home folder stays as it was."""
    with_token(monkeypatch, None, tmp_path)
    import ray

    if ray.is_initialized():
        pytest.skip("another test's Ray is in this process")
    for mode in (None, "token"):
        if mode is not None:
            monkeypatch.setenv("RAY_AUTH_MODE", mode)
        before = {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH")}
        with connected(None):
            assert ray.get(ray.remote(num_cpus=0)(lambda: "heard").remote()) == "heard"
            assert {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH")} == before
            if mode is None:  # nobody else gets in
                with pytest.raises(ValueError, match="asks for a token that we do not have"):
                    ask_nodes(ray.get_runtime_context().gcs_address)
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    with connected(address):
        assert ray.cluster_resources()["here"] == 1
    assert not (tmp_path / ".ray").exists()


def test_versions_that_differ() -> None:
    ours: dict[str, str | None] = {"python": "3.11.9", "ray": "2.60.0", "torch": "2.14.1", "steadysweep": "0.1.0"}

    def told(**versions: str | None) -> list[str]:
        return problems([Node("id", "10.0.0.7", "worker", versions={**ours, **versions})], ours)

    assert told() == told(python="3.11.2") == told(steadysweep="0.0.9") == []
    assert told(torch="2.13.0") == [
        "node 10.0.0.7 (worker) has torch 2.13.0, this machine has 2.14.1: use the same on all"
    ]
    (old,) = told(python="3.12.1")
    assert "has python 3.12.1" in old
    (none,) = told(torch=None)
    assert "has no torch; install torch==2.14.1 there" in none
    (bare,) = told(steadysweep=None)
    assert "has no steadysweep" in bare


@pytest.mark.slow
def test_another_torch_and_a_disk_of_its_own(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second node whose packages say so, and whose results folder is another disk under the same path."""
    with_token(monkeypatch, TOKEN, tmp_path)
    older = tmp_path / "older/torch-2.13.0.dist-info"
    older.mkdir(parents=True)
    (older / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n")
    results = tmp_path / "results"
    results.mkdir()
    apart: tuple[str, ...] = ()
    if shutil.which("unshare") and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0:
        apart = ("unshare", "-m", "sh", "-c", f'mount -t tmpfs none "{results}" && exec "$@"', "sh")
    path = os.pathsep.join((str(older.parent), environment()["PYTHONPATH"]))
    with joined(tmp_path, address, TOKEN, *apart, PYTHONPATH=path):
        found = "; ".join(problems(ask_nodes(address, shared=str(results)).nodes, our_versions()))
        done = run_command(*TRIAL, "--address", address, "--results", "results", cwd=tmp_path, RAY_AUTH_TOKEN=TOKEN)
    assert "has torch 2.13.0, this machine has" in found
    if apart:
        assert f"does not share the results folder {results}: No such file or directory" in found
    assert done.returncode == 2
    assert "has torch 2.13.0" in done.stderr
    assert list(results.iterdir()) == []
