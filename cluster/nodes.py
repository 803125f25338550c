"""What each node of a Ray cluster says of itself: versions, resources, limits, clock, which folders it sees.

Asked in a process of its own, whose long messages are turned into sentences here, so that a driver joins only what it
can work on. Refuses nothing: see `fit.py`. Knows nothing of sweeps or trials.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.token import MODE, has_token

CONNECT_S = 5.0  # how long an address has to answer at all
JOIN_S = 30.0  # how long a cluster has to let us in; Ray itself would try for minutes
ANSWER_S = 60.0  # and its nodes to answer: the first worker of a node takes some seconds to start
REFUSED = ("InvalidAuthToken", "Unauthenticated", "AuthenticationError")
START = "start one with `ray start --head`, or leave --address out to use this machine"
TOKEN = (
    "set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file with it, to the token that the cluster was started with "
    "(there, `ray get-auth-token` prints it)"
)


@dataclass(frozen=True)
class Node:
    """One node's answer. Sizes in bytes, clock_s: how far its clock is ahead, give or take clock_within_s.

    problem: why it did not answer; then the rest is unknown. sees, writes: folder, or address of a store -> "" or
    what is wrong.
    task: "" where the task that was asked about can be imported, else why not.
    """

    node_id: str
    address: str
    host: str = "?"
    problem: str = ""
    versions: dict[str, str | None] = field(default_factory=dict)
    resources: dict[str, float] = field(default_factory=dict)
    gpus: list[str] = field(default_factory=list)
    memory: int = 0
    memory_available: int = 0
    shared_memory: int = 0
    open_files: int = 0
    free_disk: int = 0
    clock_s: float = 0.0
    clock_within_s: float = 0.0
    sees: dict[str, str] = field(default_factory=dict)
    writes: dict[str, str] = field(default_factory=dict)
    shared_mb_per_s: float | None = None
    task: str = ""


@dataclass(frozen=True)
class Cluster:
    """All living nodes, in the order of their addresses; token: whether the cluster asked for the user's token."""

    nodes: Sequence[Node]
    token: bool


def ask_nodes(address: str, *, shared: str | None = None, task: str | None = None, megabytes: int = 0) -> Cluster:
    """Every living node's answer.

    shared: a folder, or the address of an object store: it is tried whether what is written here is read there, and the
    reverse, with so many megabytes.
    task: whether it is there to be loaded. Raises ValueError, in words, where the cluster cannot be joined.
    """
    question = {"address": address, "shared": shared, "task": task, "answer_s": ANSWER_S, "megabytes": megabytes}
    said = ""
    _check_answers(address)
    # Ray's mode must be that of the cluster; where the user has set it, it stays as it is.
    for token in (False, True) if MODE not in os.environ and has_token() else (False,):
        with tempfile.TemporaryDirectory(prefix="steadysweep-nodes-") as place:
            found = Path(place, "nodes.json")
            asked = json.dumps({**question, "token": token, "found": str(found)})
            said = _run([sys.executable, "-m", "cluster.ask", asked])
            if found.is_file():
                return Cluster([Node(**node) for node in json.loads(found.read_text())], token)
        if not _is_refused(said):
            break
    raise ValueError(_words(address, said))


def _check_answers(address: str) -> None:
    """Ray itself would try a dead address for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # auto, or a name that Ray resolves
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise ValueError(f"no Ray cluster answers at address {address!r} ({error}); {START}") from error


def _is_refused(said: str) -> bool:
    return any(word in said for word in REFUSED)


def _run(command: list[str]) -> str:
    """What the process says, which ends as soon as it says that it is not let in."""
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            deadline = time.monotonic() + JOIN_S + 2 * ANSWER_S
            joined_by = time.monotonic() + JOIN_S
            while process.poll() is None and time.monotonic() < deadline:
                said = _read(log)
                if _is_refused(said):
                    return said
                if "joined" not in said.splitlines() and time.monotonic() > joined_by:
                    return said
                time.sleep(0.05)
            return _read(log)
        finally:
            process.kill()
            process.wait()


def _read(log: Any) -> str:
    log.seek(0)
    return str(log.read())


def _words(address: str, said: str) -> str:
    """One sentence for what may be pages."""
    if _is_refused(said):
        what = "refuses the token that we have" if has_token() else "asks for a token that we do not have"
        return f"the Ray cluster at {address!r} {what}; {TOKEN}"
    if "No module named 'grpc'" in said:
        return f"--address {address}: ray:// needs Ray's client: pip install -c constraints.txt 'steadysweep[cluster]'"
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("[")]  # not Ray's own logs
    last = lines[-1].strip() if lines else "no answer"
    if address.startswith("ray://") and (not lines or "Starting Ray client server failed" in said):
        return (
            f"Ray's server for {address!r} did not answer within {JOIN_S:g} s; where it dies as it starts another for "
            "us, as happens now and then, GRPC_ENABLE_FORK_SUPPORT=0 for `ray start --head` prevents it"
        )
    if "Version mismatch" in said:
        told = said[said.index("Version mismatch") :].split()
        return (
            f"the Ray cluster at {address!r} is of another version: {' '.join(told)[:400]}; use the same on both sides"
        )
    return f"no Ray cluster answers at address {address!r} ({last[:300]}); {START}"
