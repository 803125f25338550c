"""Ray nodes as their owner starts them: `ray start --block`, each in a process group of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.helpers.drivers import environment, wait_until

TOKEN = "of-this-cluster"
RAY = (sys.executable, "-m", "ray.scripts.scripts")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextlib.contextmanager
def head(place: Path, token: str | None, *flags: str, before: Sequence[str] = (), **extra: str) -> Iterator[str]:
    """A cluster of one node with a CPU; its address. token: what it asks for; None: it asks for nothing.

    before: a command that it is started by; extra: for its environment.
    """
    port = free_port()
    start = ["start", "--head", "--port", str(port), "--num-cpus", "1", "--include-dashboard", "false", *_agents_port()]
    if importlib.util.find_spec("grpc"):  # then Ray starts a server for ray://, which ends a second head at its port
        start += ["--ray-client-server-port", str(free_port())]
    # Not in pytest's folders, whose paths may be too long for sockets.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as temporary:
        command = [*before, *RAY, *start, "--temp-dir", temporary, *flags]
        with _node(place / "head.log", command, token, extra):
            yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def joined(place: Path, address: str, token: str | None, *before: str, **extra: str) -> Iterator[None]:
    """One more node with a CPU. before: a command that it is started by; extra: for its environment."""
    start = [*before, *RAY, "start", "--address", address, "--num-cpus", "1", *_agents_port()]
    with _node(place / "node.log", start, token, extra):
        yield


def _agents_port() -> tuple[str, str]:
    """Of the agent that ray[default] brings to every node: it would be the same for all nodes of this machine."""
    return "--dashboard-agent-listen-port", str(free_port())


@contextlib.contextmanager
def _node(log: Path, command: Sequence[str], token: str | None, extra: Mapping[str, str]) -> Iterator[None]:
    mode = {"RAY_AUTH_MODE": "disabled"} if token is None else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    with log.open("w") as said:
        process = subprocess.Popen(
            [*command, "--block", "--disable-usage-stats"],
            env={**environment(), **mode, **extra},
            stdout=said,
            stderr=said,
            start_new_session=True,
            text=True,
        )
    try:
        wait_until(lambda: "Ray runtime started" in log.read_text(), f"the node of {log} is up", process)
        yield
    finally:
        # Ray's own processes are in other groups: they are asked to go by the command, which waits for them.
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
