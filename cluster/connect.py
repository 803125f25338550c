"""Start Ray on this machine, or join a running cluster; what there is room for.

Knows nothing of sweeps or trials.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

OBJECT_STORE_BYTES = 256 * 2**20  # trials exchange reports of a few KB; data travels by path


@dataclass(frozen=True)
class Capacity:
    """What the machines offer: `cpus` and `gpus` in all, and the most that one node has."""

    cpus: float
    gpus: float
    node_cpus: float
    node_gpus: float
    where: str


def this_machine() -> Capacity:
    """What this machine offers, without starting Ray."""
    cpus = float(_num_cpus())
    return Capacity(cpus, 0.0, cpus, 0.0, "this machine")


def _num_cpus() -> int:
    """CPUs this process may use: fewer than the machine has in a container or a batch job."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Capacity]:
    """Ray, started here (address None) or joined, for as long as the context lasts.

    Raises ValueError, in words, when nothing answers at the address.
    """
    # Set before Ray is imported: it reads some of these once. No usage reports leave the machine.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # a trial without a GPU request sees none
    import ray

    if ray.is_initialized():
        yield _capacity()
        return
    if address is None:
        ray.init(
            address="local",
            num_cpus=_num_cpus(),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    else:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"no Ray cluster answers at address {address!r} ({error}); "
                "start one with `ray start --head`, or leave --address out to use this machine"
            ) from error
    try:
        yield _capacity()
    finally:
        ray.shutdown()


def _capacity() -> Capacity:
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus = [float(resources.get("CPU", 0)) for resources in nodes]
    gpus = [float(resources.get("GPU", 0)) for resources in nodes]
    return Capacity(sum(cpus), sum(gpus), max(cpus, default=0), max(gpus, default=0), f"{len(nodes)} Ray node(s)")
