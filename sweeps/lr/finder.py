"""`--lrs auto`: from how the loss answers to a rising learning rate to the range that is worth scanning.

The test itself runs in a process of its own (trainable/lr_range_test.py), as only that may import torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sweeps.lr.ranges import round_grid
from sweeps.running.doors import ask
from trainable.config import TrainConfig
from trainable.lr_range_test import HIGHEST

HALF_WINDOW = 4  # steps on each side that a smoothed loss is a mean over
LEVEL_STEPS = 40  # the first ones: two decades of rates at which no loss moves yet
FALL_SHARE = 0.05  # of the whole fall: so much of it is noticeable
RISE_SHARE = 0.10  # of the whole fall: so much above the lowest loss is instability
NOISE = 3.0  # standard deviations of a smoothed loss that are no noise
LEAST_RATIO = 30.0  # of the two ends: a test gives each rate a few steps, a trial many, in which lower ones fall too


@dataclass(frozen=True)
class Range:
    """The learning rates that were found, why these, and the curve they were read from (one value a step)."""

    lrs: tuple[float, ...]
    reason: str
    tested_lrs: tuple[float, ...]
    tested_losses: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_range(task: str, settings: Mapping[str, Any], train: TrainConfig) -> Range:
    """The range for a task. Raises ValueError in words where it does not train, or no rate makes its loss fall."""
    asked = {"task": task, "settings": dict(settings), "train": train.to_dict()}
    said = ask("trainable.lr_range_test", asked, task, "--lrs auto tests the task on this machine first")
    return choose_range(said["lrs"], said["losses"])


def choose_range(lrs: Sequence[float], losses: Sequence[float]) -> Range:
    """From where the loss first falls noticeably to just below where it rises again, in round values.

    lrs, losses: those of a rising-rate test. Raises ValueError where the loss did not fall.
    """
    smooth = _smoothed(losses)
    level = smooth[: max(1, min(LEVEL_STEPS, len(smooth) // 2))]
    if len(losses) < LEVEL_STEPS or min(smooth) == level[0]:
        raise ValueError(_nothing_found(lrs))
    start = math.fsum(level) / len(level)
    noise = NOISE * math.sqrt(math.fsum((value - start) ** 2 for value in level) / (len(level) - 1))
    lowest = min(range(len(smooth)), key=smooth.__getitem__)
    fall = start - smooth[lowest]
    if fall <= 2 * noise:
        raise ValueError(_nothing_found(lrs))
    noticeable = start - max(FALL_SHARE * fall, noise)
    first = next(index for index, value in enumerate(smooth) if value < noticeable)
    unstable = smooth[lowest] + max(RISE_SHARE * fall, noise)
    beyond_lowest = range(lowest, len(smooth))
    last = next((index - 1 for index in beyond_lowest if smooth[index] > unstable), len(smooth) - 1)
    found = round_grid(min(lrs[first], lrs[last] / LEAST_RATIO), lrs[last])
    if last < len(smooth) - 1:
        above = f"above {lrs[last]:.1g} it rises again"
    elif lrs[-1] < HIGHEST:
        above = f"above {lrs[last]:.1g} it is no longer finite"
    else:
        above = f"up to {lrs[last]:.1g}, the largest rate tested, it stays low"
    reason = (
        f"as the rate rose from {lrs[0]:g}, the loss ({start:.3g}) began to fall at {lrs[first]:.1g}, was lowest "
        f"({smooth[lowest]:.3g}) at {lrs[lowest]:.1g}, and {above}"
    )
    return Range(tuple(found), reason, tuple(lrs), tuple(losses))


def _nothing_found(lrs: Sequence[float]) -> str:
    tested = f"from {lrs[0]:g} to {lrs[-1]:g}" if lrs else "at all"
    return (
        f"--lrs auto: at no learning rate {tested} did the loss fall beyond its noise; "
        "give learning rates yourself, e.g. --lrs 1e-5..1e-1:9, or look at the task with python -m trainable.checks"
    )


def _smoothed(losses: Sequence[float]) -> list[float]:
    """Means over the steps around each: unlike a running average they do not lag behind."""
    found = []
    for index in range(len(losses)):
        around = losses[max(0, index - HALF_WINDOW) : index + HALF_WINDOW + 1]
        found.append(math.fsum(around) / len(around))
    return found
