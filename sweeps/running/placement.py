"""What a trial gets of the machines, and how many run at a time: what was wished for, against what there is.

Knows nothing of Ray; a capacity is handed in.
"""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass
from typing import Any

from cluster.capacity import ACCELERATOR, Capacity
from trainable.config import TrainConfig

AUTO = "auto"
_ALLOWED = f"must be a whole number, a share between 0 and 1, or {AUTO}"
_WAIT = "; where an autoscaler brings such nodes, add --wait"


@dataclass(frozen=True)
class Wish:
    """What the user asked for; None: decide from what there is."""

    trials_at_once: int | None = None
    cpus_per_trial: float | None = None
    gpus_per_trial: float | str | None = None
    """A number, or AUTO: as many trials on a GPU as fit, see packing.py."""
    accelerator: str | None = None  # Ray's name of a type of GPU
    workers_per_trial: int = 1
    wait: bool = False  # for nodes that are not there yet, as an autoscaler brings them
    why_gpus: str = ""  # what became of AUTO

    def __post_init__(self) -> None:
        if self.trials_at_once is not None and self.trials_at_once < 1:
            raise ValueError(f"--trials-at-once {self.trials_at_once} must be at least 1")
        if self.cpus_per_trial is not None and not 0 < self.cpus_per_trial < math.inf:
            raise ValueError(f"--cpus-per-trial {self.cpus_per_trial:g} must be above 0")
        if self.workers_per_trial < 1:
            raise ValueError(f"--workers-per-trial {self.workers_per_trial} must be at least 1")
        object.__setattr__(self, "gpus_per_trial", _gpus_of(self.gpus_per_trial))
        gpus = self.num_gpus
        if self.workers_per_trial > 1 and gpus and gpus % self.workers_per_trial:
            raise ValueError(
                f"--gpus-per-trial {gpus:g} does not divide among --workers-per-trial {self.workers_per_trial}: "
                "each worker needs as many whole GPUs"
            )
        if self.accelerator is not None and gpus == 0:
            raise ValueError(f"--accelerator {self.accelerator} with --gpus-per-trial 0: leave one of the two out")
        if gpus is not None and not (gpus == 0 or 0 < gpus < 1 or (gpus >= 1 and float(gpus).is_integer())):
            raise ValueError(f"--gpus-per-trial {gpus:g} {_ALLOWED}")

    @property
    def is_auto(self) -> bool:
        return self.gpus_per_trial == AUTO

    @property
    def num_gpus(self) -> float | None:
        """The GPUs of a trial, where they were asked for as a number."""
        return None if isinstance(self.gpus_per_trial, str) else self.gpus_per_trial

    def needs_gpus(self, train: TrainConfig) -> bool:
        """Whether GPUs are asked for by name, so that it matters how many there are."""
        return bool(self.num_gpus) or self.accelerator is not None or train.device == "cuda"


@dataclass(frozen=True)
class Placement:
    """What a trial gets, how many run at a time, and why."""

    trials_at_once: int
    cpus: float  # of each worker, and so the GPUs
    gpus: float
    reason: str
    accelerator: str | None = None
    workers: int = 1
    first_alone: bool = False
    """The first trial runs alone until it is known whether more processes pay: where trials take all CPUs,
    every process that starts slows down those that train, and one costs some five seconds of imports."""

    @property
    def gpus_per_trial(self) -> float:
        return self.gpus * self.workers

    def resources(self) -> dict[str, float]:
        """What Ray is asked for, in its names, for each worker."""
        asked = {"CPU": self.cpus, "GPU": self.gpus}
        if self.accelerator is not None:
            asked[f"{ACCELERATOR}{self.accelerator}"] = 0.001  # as Ray itself asks for a type
        return asked


def place(wish: Wish, capacity: Capacity, num_trials: int, train: TrainConfig) -> Placement:
    """The placement for `num_trials` trials. Raises ValueError for what no node can ever hold.

    What is wished for a trial is divided among its workers, which may be on different nodes.
    """
    num_workers = wish.workers_per_trial
    if num_workers == 1:
        return _place(wish, capacity, num_trials, train)
    each = dataclasses.replace(
        wish,
        workers_per_trial=1,
        trials_at_once=None,
        cpus_per_trial=None if wish.cpus_per_trial is None else wish.cpus_per_trial / num_workers,
        gpus_per_trial=None if wish.num_gpus is None else wish.num_gpus / num_workers,
    )
    placed = _place(each, capacity, num_trials * num_workers, train)
    at_once = min(num_trials, wish.trials_at_once or num_trials)
    room = placed.trials_at_once // num_workers
    if room < 1:
        raise ValueError(
            f"--workers-per-trial {num_workers}: {capacity.where} has room for {placed.trials_at_once} worker(s), "
            f"{placed.reason}{_WAIT}"
        )
    reason = f"each with {num_workers} workers, {placed.reason}"
    if wish.is_auto:
        reason += "; auto means a whole GPU for each worker" if placed.gpus else f"; {_no_gpu(capacity)}"
    if wish.trials_at_once and room < at_once:
        reason += f"; {at_once} at once were asked for, {capacity.where} has room for {room}"
    return Placement(min(at_once, room), placed.cpus, placed.gpus, reason, wish.accelerator, num_workers)


def _place(wish: Wish, capacity: Capacity, num_trials: int, train: TrainConfig) -> Placement:
    """The same for trials of one worker."""
    if wish.accelerator is not None and not wish.wait:
        capacity = _with_accelerator(capacity, wish.accelerator)
    gpus = wish.num_gpus
    if gpus is None and wish.accelerator is not None:
        gpus = 1.0
    elif gpus is None:
        gpus = 1.0 if capacity.gpus and train.device in ("auto", "cuda") else 0.0
    if train.device == "cuda" and gpus == 0:
        raise ValueError(
            "device=cuda needs a GPU for each trial, but "
            + ("--gpus-per-trial is 0" if wish.num_gpus == 0 else f"{capacity.where} has none")
            + "; use --gpus-per-trial 1 on a machine with a GPU, or --set device=cpu"
        )
    if train.device in ("cpu", "mps") and wish.num_gpus:
        raise ValueError(
            f"--gpus-per-trial {wish.num_gpus:g} with device={train.device}: "
            "the trials would hold GPUs they never use; leave one of the two out"
        )
    if gpus > capacity.node_gpus and not wish.wait:
        raise ValueError(
            f"--gpus-per-trial {gpus:g}: no node has that many, the most is {capacity.node_gpus:g} on {capacity.where}"
            f"{_WAIT}"
        )
    at_once = min(num_trials, wish.trials_at_once or num_trials)
    cpus = wish.cpus_per_trial
    if cpus is None:
        # A fair share among all trials, not among those at once: threads follow from it, the last bits of a result
        # from threads, and how many trials run at a time must not change any result.
        cpus = float(max(1, int(capacity.node_cpus // max(1, min(num_trials, capacity.node_cpus)))))
    if cpus > capacity.node_cpus and not wish.wait:
        raise ValueError(
            f"--cpus-per-trial {cpus:g}: no node has that many, the most is {capacity.node_cpus:g} on {capacity.where}"
            f"{_WAIT}"
        )
    room = max(1, int(capacity.cpus // cpus))
    if wish.wait:
        room = at_once  # as many as there will be nodes for; the others wait
    elif gpus:
        room = min(room, int(capacity.gpus // gpus) if gpus >= 1 else int(capacity.gpus) * int(1 / gpus))
    reason = f"each with {cpus:g} CPU(s)" + (f" and {gpus:g} GPU(s)" if gpus else "")
    if wish.accelerator is not None:
        reason += f" of type {wish.accelerator}"
    if wish.is_auto:
        reason += "; auto: how many trials share a GPU is measured first" if gpus else f"; {_no_gpu(capacity)}"
    elif wish.why_gpus:
        reason += f"; {wish.why_gpus}"
    if wish.trials_at_once and room < at_once:
        reason += f"; {at_once} at once were asked for, {capacity.where} has room for {room}"
    if train.num_workers and train.num_workers + 1 > cpus:
        reason += f"; its {train.num_workers} loader process(es) and its own threads share what it has"
    at_once = min(at_once, room)
    first_alone = not wish.wait and wish.trials_at_once is None and at_once > 1 and capacity.cpus - at_once * cpus < 1
    return Placement(at_once, cpus, gpus, reason, wish.accelerator, first_alone=first_alone)


def _gpus_of(given: Any) -> float | str | None:
    """What stands for the GPUs of a trial in a flag, a file or a keyword. ValueError for a word that is not AUTO."""
    if given is None:
        return None
    if given == AUTO:
        return AUTO
    try:
        return float(str(given))
    except ValueError:
        raise ValueError(f"--gpus-per-trial {given!r} {_ALLOWED}") from None


def _no_gpu(capacity: Capacity) -> str:
    return "auto means none, as trials use no GPU" if capacity.gpus else "no GPU: auto means none"


def _with_accelerator(capacity: Capacity, kind: str) -> Capacity:
    """What the nodes with this type of GPU offer. On this machine alone, Ray will say."""
    if capacity.accelerators is None:
        return capacity
    if kind not in capacity.accelerators:
        there = ", ".join(capacity.accelerators) or "none"
        raise ValueError(f"--accelerator {kind}: no node has it; there are: {there}{_WAIT}")
    return capacity.accelerators[kind]


def choose_threads(train: TrainConfig, cpus_per_trial: float) -> int:
    """torch's CPU threads in each trial: the config's, else OMP_NUM_THREADS, else the CPUs that loader
    processes leave. Part of a sweep's definition, because the last bits of a result depend on it."""
    if train.threads is not None:
        return train.threads
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return max(1, int(cpus_per_trial) - train.num_workers)
