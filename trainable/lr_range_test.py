"""python -m trainable.lr_range_test: how the loss answers to a rising learning rate, for `sweeps.lr_scan --lrs auto`.

A run of its own, from the same seed and with the real loop's step; no other run's weights are touched.
Says what it saw, and chooses nothing. Knows no sweeps.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainable.config import TrainConfig
from trainable.task import Task, load_task

if TYPE_CHECKING:
    from trainable.task import Batch
    from trainable.training import Training

LOWEST, HIGHEST = 1e-7, 10.0  # fastai's ends
NUM_STEPS = 160  # 20 a decade
UNSTABLE = 4.0  # the smoothed loss has risen to so many times what is left of it at its best: fastai's end too
SMOOTH_STEPS = 8.0  # the smoothed loss is a mean over about so many steps


def rising_rate_test(task: Task, config: TrainConfig) -> tuple[list[float], list[float]]:
    """The learning rates of up to `NUM_STEPS` steps, rising evenly in their logarithm, and the loss at each: (steps,).

    Every step is the loop's: the config's optimizer, clipping and precision, the samples in the run's own order. It
    ends early where the loss is no longer finite, or has become much larger than it was.
    Smith 2017, "Cyclical Learning Rates for Training Neural Networks", section 3.3; rising by a factor as in
    fastai's `lr_find`. Raises ValueError for what the loop's `start` refuses.
    """
    from trainable import loop
    from trainable.step import take_step

    plain = dataclasses.replace(config, schedule="constant", warmup_steps=0)
    run = loop.start(task, plain, task.splits(config.data_seed))
    lrs: list[float] = []
    losses: list[float] = []
    try:
        run.state.train_mode()
        smooth = Smooth()
        for step, batch in zip(range(NUM_STEPS), _batches(run), strict=False):
            lr = LOWEST * (HIGHEST / LOWEST) ** (step / (NUM_STEPS - 1))
            run.config = dataclasses.replace(plain, lr=lr)
            take_step(run, batch)
            run.state.progress.step += 1
            loss = float(run.state.interval.losses[-1].reshape(-1)[-1])
            if not math.isfinite(loss):
                break
            lrs.append(lr)
            losses.append(loss)
            if smooth.add(loss) > max(losses[0], UNSTABLE * smooth.best):
                break
    finally:
        run.close()
    return lrs, losses


class Smooth:
    """An exponential average without the bias of its start (as Adam's), and the lowest it has been."""

    def __init__(self) -> None:
        self.best = math.inf
        self._sum = self._weight = 0.0

    def add(self, value: float) -> float:
        new = 1 / SMOOTH_STEPS
        self._sum += new * (value - self._sum)
        self._weight += new * (1 - self._weight)
        found = self._sum / self._weight
        self.best = min(self.best, found)
        return found


def _batches(run: Training) -> Iterator[Batch]:
    for epoch in itertools.count():
        yield from run.train.epoch(epoch, 0)


def main(arguments: list[str]) -> int:
    """One argument, a JSON object with `task`, `settings` and `train`; the last line printed is one too: `lrs` and
    `losses`, or an `error` in words (exit code 2 for what was asked, 1 for what the task's own code raised)."""
    asked = json.loads(arguments[0])
    try:
        task = load_task(asked["task"], asked["settings"])
        lrs, losses = rising_rate_test(task, TrainConfig.from_dict(asked["train"]))
    except ValueError as error:
        print(json.dumps({"error": str(error)}))
        return 2
    except Exception as error:  # the task's own code may raise anything; this is the edge of its process
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        return 1
    print(json.dumps({"lrs": lrs, "losses": losses}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
