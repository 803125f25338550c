"""Training one configuration anew over seeds, by the ordinary loop; the best state of each is kept in memory.

Knows no sweeps and no files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainable import loop
from trainable.config import TrainConfig
from trainable.saving import HostCopy, score_of
from trainable.task import Splits, Task

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Trained:
    """The best state of a run: its weights as evaluation saw them, and what was measured there.

    score: less is better, see `saving.score_of`.
    """

    seed: int
    step: int
    score: float
    metrics: Mapping[str, float]
    weights: dict[str, Tensor]
    seconds: float


def train_seeds(
    task: Task,
    config: TrainConfig,
    splits: Splits,
    num_seeds: int,
    ranked_by: tuple[str, str] | None,
    say: Callable[[str], None],
) -> list[Trained]:
    """Runs with the seeds `config.seed`, + 1, ... on the same split, the best on validation first; those that diverge
    are left out, and said. Raises ValueError where all do."""
    found = []
    for seed in range(config.seed, config.seed + num_seeds):
        one = dataclasses.replace(config, seed=seed, split_seed=config.data_seed)
        trained, diverged = _train(task, one, splits, ranked_by)
        if diverged is not None:
            say(f"seed {seed}: diverged: {diverged}")
        if trained is not None:
            values = "  ".join(f"{name} {value:.4g}" for name, value in trained.metrics.items())
            say(f"seed {seed}: best at step {trained.step}  {values}  ({trained.seconds:.1f} s)")
            found.append(trained)
    if not found:
        raise ValueError("every seed diverged: nothing was trained that could be accepted; choose another --trial")
    return sorted(found, key=lambda trained: trained.score)


def _train(
    task: Task, config: TrainConfig, splits: Splits, ranked_by: tuple[str, str] | None
) -> tuple[Trained | None, str | None]:
    run = loop.start(task, config, splits)
    best: Trained | None = None
    copies = HostCopy()  # of this run alone: the weights that it holds are given away
    try:
        while True:
            report = loop.advance(run)
            score = score_of(report.metrics, ranked_by)
            if report.diverged is not None:
                return None, report.diverged
            if score is not None and (best is None or score < best.score):
                weights = copies.take(run.state.evaluated.state_dict())
                best = Trained(config.seed, report.step, score, report.metrics, weights, report.seconds)
            if report.done:
                return best and dataclasses.replace(best, seconds=report.seconds), None
    finally:
        run.close()
