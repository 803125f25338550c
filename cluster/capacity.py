"""What machines offer: CPUs and GPUs in all, on one node, and by type of GPU. Knows nothing of sweeps or trials."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ACCELERATOR = "accelerator_type:"  # how Ray names the type of a node's GPUs among its resources


@dataclass(frozen=True)
class Capacity:
    """What the machines offer: `cpus` and `gpus` in all, and the most that one node has.

    accelerators: the same of the nodes that have this type of GPU; None: not known.
    """

    cpus: float
    gpus: float
    node_cpus: float
    node_gpus: float
    where: str
    accelerators: Mapping[str, Capacity] | None = field(default=None)


def this_machine(*, count_gpus: bool) -> Capacity:
    """What this machine offers, without starting Ray. GPUs are counted by torch, which costs its import."""
    cpus, gpus = float(num_cpus()), 0.0
    if count_gpus:
        import torch

        gpus = float(torch.cuda.device_count())
    return Capacity(cpus, gpus, cpus, gpus, "this machine")


def num_cpus() -> int:
    """CPUs this process may use: fewer than the machine has in a container or a batch job."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1


def gpu_bytes() -> list[int]:
    """The memory of each GPU of this machine, whatever this process may see of them; nothing where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles]
    except Exception:  # no driver, no package: each version of it raises its own
        return []


def of_nodes(nodes: Sequence[Mapping[str, float]]) -> Capacity:
    """What nodes with these resources, in Ray's names, offer."""
    types = {name.removeprefix(ACCELERATOR) for node in nodes for name in node if name.startswith(ACCELERATOR)}
    by_type = {
        kind: _sum([node for node in nodes if f"{ACCELERATOR}{kind}" in node], f"node(s) with {kind}")
        for kind in sorted(types)
    }
    found = _sum(nodes, "Ray node(s)")
    return Capacity(found.cpus, found.gpus, found.node_cpus, found.node_gpus, found.where, by_type)


def _sum(nodes: Sequence[Mapping[str, float]], where: str) -> Capacity:
    cpus = [float(node.get("CPU", 0)) for node in nodes]
    gpus = [float(node.get("GPU", 0)) for node in nodes]
    return Capacity(sum(cpus), sum(gpus), max(cpus, default=0), max(gpus, default=0), f"{len(nodes)} {where}")
