"""Start Ray on this machine, or join a running cluster.

Knows nothing of sweeps or trials.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cluster.capacity import ACCELERATOR, Capacity, gpu_bytes, num_cpus, of_nodes
from cluster.fit import our_versions, problems
from cluster.nodes import START, ask_nodes
from cluster.reaper import reaping, unmarked
from cluster.token import offered_token, own_token, read_again

ANSWER_S = 60.0  # for a node that is asked something small
OBJECT_STORE_BYTES = 256 * 2**20  # trials exchange reports of a few KB; data travels by path


@contextlib.contextmanager
def connected(address: str | None, *, shared: str | None = None, task: str | None = None) -> Iterator[Capacity]:
    """Ray, started here (address None) or joined, for as long as the context lasts.

    shared: a folder, or the address of an object store, that all nodes must share; task: one that all must be able to
    load. Raises ValueError, in words, when nothing answers at the address, or what does cannot be worked with.
    """
    # Set before Ray is imported: it reads some of these once. No usage reports leave the machine.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # a trial without a GPU request sees none
    import ray

    if ray.is_initialized():
        yield alive()
        return
    with contextlib.ExitStack() as stack:
        if address is None:
            stack.enter_context(reaping())
            with _deaf_to_early_notice(), own_token():
                ray.init(
                    address="local",
                    num_cpus=num_cpus(),
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            unmarked()
            _end_at_once()
        else:
            found = ask_nodes(address, shared=shared, task=task)
            wrong = problems(found.nodes, our_versions())
            if wrong:
                raise ValueError(f"--address {address}: {'; '.join(wrong)}")
            read_again()
            try:
                with offered_token() if found.token else contextlib.nullcontext():
                    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError) as error:  # it has gone since
                raise ValueError(f"no Ray cluster answers at address {address!r} ({error}); {START}") from error
        stack.callback(read_again)  # after the shutdown: whoever comes next may have another token
        stack.callback(ray.shutdown)
        yield alive()


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


def alive() -> Capacity:
    """What the nodes of the Ray that this process is connected to offer at this moment."""
    import ray

    return of_nodes([node["Resources"] for node in ray.nodes() if node["Alive"]])


def on_a_node(function: Callable[[Any], Any], argument: Any, resources: Mapping[str, float], *, within_s: float) -> Any:
    """What a function of a module says on a node that has these resources free, in a process that ends with it.

    Raises RuntimeError, in words, where no node has them for so long, or the process does not answer.
    """
    import ray

    kept = dict(resources)
    options = {"num_cpus": kept.pop("CPU", 0), "num_gpus": kept.pop("GPU", 0), "resources": kept}
    reference = ray.remote(max_calls=1, max_retries=0, **options)(function).remote(argument)
    ready, _ = ray.wait([reference], timeout=within_s)
    if not ready:
        ray.cancel(reference, force=True)
        raise RuntimeError(f"as there was no answer within {within_s:g} s")
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        raise RuntimeError(str(error).strip().splitlines()[-1][:300]) from error


def smallest_gpu(accelerator: str | None) -> int | None:
    """Bytes of the smallest GPU of all nodes, or of those with this type; None where none of them can say.

    A node that promises Ray fewer than it has hides some, and which is not known: it does not count.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask, asked = ray.remote(num_cpus=0)(gpu_bytes), {}
    for node in ray.nodes():
        gpus = node["Resources"].get("GPU", 0) if node["Alive"] else 0
        if gpus and (accelerator is None or f"{ACCELERATOR}{accelerator}" in node["Resources"]):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[ask.options(scheduling_strategy=there).remote()] = gpus
    ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S) if asked else ([], [])
    found: list[int] = []
    for reference in ready:
        with contextlib.suppress(ray.exceptions.RayError):
            sizes = ray.get(reference)
            found += sizes if len(sizes) == asked[reference] else []
    return min(found, default=None)
