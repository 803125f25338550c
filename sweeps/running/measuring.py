"""How much of a GPU one trial of a sweep takes: measured by a few steps of it on a node that has one, as Ray's task.

Decides nothing (see packing.py); the steps themselves are trainable/peak.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cluster.capacity import Capacity
from cluster.connect import on_a_node, smallest_gpu
from sweeps.running.packing import Peak, demanding, packed
from sweeps.running.placement import Wish
from sweeps.sweep import Sweep
from trainable.peak import peak_of

WITHIN_S = 600.0  # for a GPU to be free, for the data to be loaded and the steps to be made


def measured(wish: Wish, capacity: Capacity, sweep: Sweep, say: Callable[[str], None]) -> Wish:
    """The wish for GPUs as a number, where it was `auto`. This process is connected to Ray."""

    def measure(resources: Mapping[str, float]) -> Peak:
        say("--gpus-per-trial auto: measuring how much memory of a GPU one trial takes")
        asked: dict[str, Any] = {"task": sweep.task, "trials": []}
        for point in demanding(sweep):
            config, settings = sweep.trial_config(point)
            asked["trials"].append({"settings": settings, "train": config.to_dict()})
        said = on_a_node(peak_of, asked, resources, within_s=WITHIN_S)
        if "error" in said:
            raise RuntimeError(said["error"])
        smallest = smallest_gpu(wish.accelerator)
        return Peak(said["taken"], min(said["total"], smallest or said["total"]))

    return packed(wish, capacity, sweep, measure)
