"""python -m cluster.check: every node, the results folder and the services, in a table and in words."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from cluster.check import doubts
from cluster.nodes import Node
from tests.helpers.drivers import run_command
from tests.helpers.nodes import TOKEN, free_port

GIB = 2**30
GOOD = Node(
    "id",
    "10.0.0.7",
    "worker",
    resources={"CPU": 8.0, "GPU": 1.0},
    gpus=["H200 141 GiB"],
    memory=64 * GIB,
    memory_available=32 * GIB,
    shared_memory=8 * GIB,
    open_files=65536,
    free_disk=100 * GIB,
    clock_s=0.9,
    clock_within_s=0.01,
)


def test_a_cluster_is_asked(address: str, tmp_path: Path) -> None:
    secrets = {"RAY_AUTH_TOKEN": TOKEN, "HOME": str(tmp_path)}
    command = ("--address", address, "--results", str(tmp_path), "--json")
    done = run_command(*command, module="cluster.check", cwd=tmp_path, **secrets)
    said = json.loads(done.stdout)
    (node,) = said["nodes"]
    assert done.returncode == (1 if said["found"] else 0), done.stderr
    assert node["host"] == os.uname().nodename
    assert node["sees"] == node["writes"] == {str(tmp_path): ""}
    assert node["shared_mb_per_s"] > 0
    assert said["services"]["MLflow"]["problem"] == ""
    assert list(tmp_path.iterdir()) == []


def test_this_machine_alone_and_services_that_are_away(tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    services = ("--tracking-uri", f"http://{nowhere}", "--ledger", f"postgresql://nobody@{nowhere}/sweeps")
    done = run_command(*services, module="cluster.check", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert f"- MLflow: http://{nowhere} does not answer" in done.stdout
    assert f"- ledger: the ledger at postgresql://nobody@{nowhere}/sweeps cannot be opened" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    for asked, words in (
        (("--address", f"127.0.0.1:{free_port()}"), "no Ray cluster answers at address"),
        (("--tracking-uri", "http://me:secret@here:5000"), "password"),
        (("--node", "1"), "see `python -m cluster.check --help`"),
    ):
        done = run_command(*asked, module="cluster.check", cwd=tmp_path)
        assert done.returncode == 2
        (line,) = done.stderr.strip().splitlines()
        assert line.startswith("error: ")
        assert words in line
        assert "secret" not in line


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"open_files": 1024}, "allows 1024 open files"),
        ({"shared_memory": 64 * 2**20}, "has 64 MiB of shared memory"),
        ({"free_disk": GIB}, "has 1.0 GiB left"),
        ({"memory_available": GIB}, "has 1.0 GiB of memory left"),
        ({"clock_s": -1.5}, "a clock 1.5 s behind this machine's"),
        ({"clock_s": 2.0}, "a clock 2.0 s ahead of this machine's"),
        ({"gpus": []}, "told Ray of 1 GPU(s) and its driver shows 0"),
    ],
)
def test_what_will_trouble_trials(change: dict[str, object], words: str) -> None:
    assert doubts(GOOD) == []
    (told,) = doubts(dataclasses.replace(GOOD, **change))  # type: ignore[arg-type]
    assert told.startswith("node 10.0.0.7 (worker) ")
    assert words in told
    assert doubts(dataclasses.replace(GOOD, problem="gave no answer", **change)) == []  # type: ignore[arg-type]
