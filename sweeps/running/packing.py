"""`--gpus-per-trial auto`: how many trials share a GPU, from how much of its memory one of them takes at its peak.

Decides and measures nothing itself (see measuring.py); knows nothing of Ray or torch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.capacity import Capacity
from sweeps.running.placement import Placement, Wish, place
from sweeps.spaces.function import is_function
from sweeps.spaces.grammar import largest, names_in, parse_space
from sweeps.sweep import SEED, Sweep, same_text
from trainable.settings import TASK_PREFIX

MOST_ON_A_GPU = 16
MARGIN_PERCENT = 120  # of the peak, for each trial: another batch, or another trial, may take more than what was seen
USED_PERCENT = 95  # of the GPU: the driver keeps some for itself
MOST_MEASURED = 3  # points of a sweep
FINEST = 10_000  # Ray counts GPUs in so many parts, and rounds: seven times 0.1429 would be more than one
GIB = 2**30


@dataclass(frozen=True)
class Peak:
    """What one trial's process takes of a GPU at most, and all that the smallest GPU has. In bytes."""

    taken: int
    total: int


Measure = Callable[[Mapping[str, float]], Peak]


def num_that_fit(peak: Peak, most: int) -> int:
    """How many trials share a GPU: as many as fit with a margin, at least one, at most `most`."""
    fit = USED_PERCENT * peak.total // (MARGIN_PERCENT * max(1, peak.taken))
    return max(1, min(fit, most, MOST_ON_A_GPU))


def share_of(num: int) -> float:
    """The part of a GPU that each of `num` trials is given, so that Ray puts so many there."""
    return FINEST // num / FINEST


def most_useful(placed: Placement, capacity: Capacity, wish: Wish, num_trials: int) -> int:
    """How many trials on each GPU are worth having: no more than there are trials, and CPUs for them.

    placed: with a GPU for each trial.
    """
    gpus = max(1, int(capacity.gpus))
    at_once = min(num_trials, wish.trials_at_once or num_trials)
    if not wish.wait:  # else there will be other nodes
        at_once = min(at_once, int(capacity.cpus // placed.cpus))
    return max(1, math.ceil(at_once / gpus))


def packed(wish: Wish, capacity: Capacity, sweep: Sweep, measure: Measure) -> Wish:
    """The wish with a number in place of `auto`; as it is where `auto` needs no measuring to mean something.

    measure: of a trial that gets these resources; raises RuntimeError in words where that fails: then each trial gets
    a GPU, and what is wrong with the task is for others to say. Raises ValueError for GPUs that nobody can know yet.
    """
    placed = place(wish, capacity, sweep.num_planned, sweep.train)
    if wish.accelerator is not None and capacity.accelerators is not None:
        capacity = capacity.accelerators.get(wish.accelerator, Capacity(0, 0, 0, 0, capacity.where))
    if wish.wait and not capacity.gpus and sweep.train.device in ("auto", "cuda"):
        raise ValueError(
            "--gpus-per-trial auto measures on a GPU that is there, and with --wait there is none yet: say how many"
        )
    if not placed.gpus or placed.workers > 1:  # several workers of a trial cannot be on one GPU
        return wish
    most = most_useful(placed, capacity, wish, sweep.num_planned)
    if most == 1:
        return _decided(wish, 1, "there are no more trials at once than GPUs")
    try:
        peak = measure(placed.resources())
    except RuntimeError as error:
        return _decided(wish, 1, f"the memory of one could not be measured, {error}")
    found = num_that_fit(peak, most)
    return _decided(wish, found, f"one peaks at {peak.taken / GIB:.1f} GiB of {peak.total / GIB:.1f} GiB")


def _decided(wish: Wish, num: int, why: str) -> Wish:
    share = share_of(num)
    return dataclasses.replace(wish, gpus_per_trial=share, why_gpus=f"{share:g} GPU(s) each: {why}")


def demanding(sweep: Sweep) -> list[dict[str, Any]]:
    """Parameters of trials that take much memory, as far as their batch sizes and the task's whole numbers (widths,
    depths) tell; the first may be made up. At least one."""
    found: dict[str, tuple[int, dict[str, Any]]] = {}
    for point in [*_corner(sweep), *(dict(point) for point in sweep.points)] or [{}]:
        # What is no size leaves the memory alone, or says nothing of how much it takes.
        alike = {
            name: value for name, value in point.items() if not isinstance(value, float) and not name.endswith(SEED)
        }
        size = math.prod(max(1, value) for name, value in alike.items() if _is_size(name, value))
        found.setdefault(same_text(alike), (size, point))
    largest_first = sorted(found.values(), key=lambda sized: -sized[0])
    return [point for _, point in largest_first[:MOST_MEASURED]]


def _corner(sweep: Sweep) -> list[dict[str, Any]]:
    """The point of a space where all sizes are largest, if there may be such a trial, and what all trials share."""
    if not sweep.space:
        return []
    if is_function(sweep.space):
        return [{}]
    entries = parse_space(sweep.space)
    corner: dict[str, Any] = {}
    for name in names_in(entries):
        sizes = [int(value) for value in largest(entries, name) if _is_size(name, int(value)) and value == int(value)]
        if sizes:
            corner[name] = max(sizes)
    try:
        sweep.trial_config(corner)
    except ValueError:
        return [{}]
    return [corner, {}] if corner else [{}]


def _is_size(name: str, value: Any) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole and (name in ("batch_size", "eval_batch_size") or name.startswith(TASK_PREFIX))
