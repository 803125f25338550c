"""A search over the learning rate, in this process: the product's ledger, sampler and pruner around the product's loop.

What Ray and MLflow add is left out; which trial tries what, and which is pruned when, is decided as in a real sweep.
"""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sweeps.record.ledger import Ledger
from sweeps.searching.front import best_first
from sweeps.sweep import Sweep
from trainable import loop
from trainable.config import TrainConfig
from trainable.task import Splits, Task


@dataclass(frozen=True)
class Found:
    """The learning rate with the lowest val_loss, and the optimizer steps it took to find it."""

    lr: float
    steps: int


def search(
    spec: str,
    task: Task,
    splits: Splits,
    config: TrainConfig,
    num_trials: int,
    lrs: tuple[float, float],
    pruner: str,
    warmup: int,
) -> Found:
    """TPE over the range `lrs`, one trial at a time. spec: what names the task; config: all but lr."""
    sweep = Sweep(
        name="answers",
        question="search",
        task=spec,
        train=config,
        space={"lr": {"log": list(lrs)}},
        num_trials=num_trials,
        sampler="tpe",
        pruner=pruner,
        pruner_warmup=warmup if pruner != "none" else 0,
    )
    steps = 0
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder, "ledger.db"), sweep, {})
        try:
            for number in range(num_trials):
                trial_config, _ = sweep.trial_config(ledger.begin(number).params)
                steps += _train(ledger, number, loop.start(task, trial_config, splits))
            best = best_first(ledger.trials(), sweep)
        finally:
            ledger.close()
    return Found(float(best[0].params["lr"]), steps)


def _train(ledger: Ledger, number: int, run: loop.Training) -> int:
    """One trial, to its end as the ledger has it; how many steps it made."""
    try:
        while True:
            report = loop.advance(run)
            ledger.report(number, dataclasses.asdict(report))
            if report.diverged:
                ledger.finish(number, "diverged", reason=report.diverged)
            elif report.done:
                ledger.finish(number, "complete", weights_sha256=report.weights_sha256)
            elif ledger.should_prune(number):
                ledger.finish(number, "pruned")
            else:
                continue
            return report.step
    finally:
        run.close()
