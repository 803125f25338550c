"""Start Ray on this machine, or join a running cluster; what there is room for.

Knows nothing of sweeps or trials.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.fit import our_versions, problems
from cluster.nodes import START, ask_nodes
from cluster.reaper import reaping, unmarked
from cluster.token import offered_token, own_token, read_again

OBJECT_STORE_BYTES = 256 * 2**20  # trials exchange reports of a few KB; data travels by path


@dataclass(frozen=True)
class Capacity:
    """What the machines offer: `cpus` and `gpus` in all, and the most that one node has."""

    cpus: float
    gpus: float
    node_cpus: float
    node_gpus: float
    where: str


def this_machine(*, count_gpus: bool) -> Capacity:
    """What this machine offers, without starting Ray. GPUs are counted by torch, which costs its import."""
    cpus, gpus = float(_num_cpus()), 0.0
    if count_gpus:
        import torch

        gpus = float(torch.cuda.device_count())
    return Capacity(cpus, gpus, cpus, gpus, "this machine")


def _num_cpus() -> int:
    """CPUs this process may use: fewer than the machine has in a container or a batch job."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1


@contextlib.contextmanager
def connected(address: str | None, *, folder: Path | None = None, task: str | None = None) -> Iterator[Capacity]:
    """Ray, started here (address None) or joined, for as long as the context lasts.

    folder: one that all nodes must share; task: one that all must be able to load. Raises ValueError, in words, when
    nothing answers at the address, or what does cannot be worked with.
    """
    # Set before Ray is imported: it reads some of these once. No usage reports leave the machine.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # a trial without a GPU request sees none
    import ray

    if ray.is_initialized():
        yield _capacity()
        return
    with contextlib.ExitStack() as stack:
        stack.callback(read_again)  # last: whoever comes next may have another token
        if address is None:
            stack.enter_context(reaping())
            with _deaf_to_early_notice(), own_token():
                ray.init(
                    address="local",
                    num_cpus=_num_cpus(),
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            unmarked()
            _end_at_once()
        else:
            found = ask_nodes(address, folder=folder, task=task)
            wrong = problems(found.nodes, our_versions())
            if wrong:
                raise ValueError(f"--address {address}: {'; '.join(wrong)}")
            read_again()
            try:
                with offered_token() if found.token else contextlib.nullcontext():
                    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError) as error:  # it has gone since
                raise ValueError(f"no Ray cluster answers at address {address!r} ({error}); {START}") from error
        stack.callback(ray.shutdown)
        yield _capacity()


@contextlib.contextmanager
def _deaf_to_early_notice() -> Iterator[None]:
    """What is started inside does not hear the signals that Slurm sends to every process of a job step, SIGTERM and
    SIGUSR1: they are the driver's to answer; the others would die of them, and their trials could not save."""
    if not hasattr(signal, "SIGUSR1"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_at_once() -> None:
    """Have the Ray that was started here end without ceremony: asked to leave, some of its processes do not listen,
    and each is waited for. Nothing of it is needed: what counts is on the disk, and stragglers are reaped."""
    import ray

    node = getattr(ray._private.worker, "_global_node", None)
    if node is not None:
        end = node.kill_all_processes
        node.kill_all_processes = lambda **asked: end(check_alive=False, allow_graceful=False)


def _capacity() -> Capacity:
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus = [float(resources.get("CPU", 0)) for resources in nodes]
    gpus = [float(resources.get("GPU", 0)) for resources in nodes]
    return Capacity(sum(cpus), sum(gpus), max(cpus, default=0), max(gpus, default=0), f"{len(nodes)} Ray node(s)")
