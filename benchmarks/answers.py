"""How often is the right learning rate named? Five small real problems whose answer an exhaustive grid knows.

Right is the winner of the whole grid over 10 seeds, or a learning rate within its noise, by the product's own judge:
for scans by the speed of descent, for searches by the val_loss at the end, where what is drawn counts as its nearest on
the grid. Every way of answering sees other seeds than the grid. The last line printed is one JSON object
{name: {value, bar, met}}; exit code 1 if a bar is missed. `--quick` takes less than a minute.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import answer_tasks as tasks
import torch
from answer_search import Found, search

from sweeps.answers.judgement import Judgement
from sweeps.answers.seeds import Configuration, ranked
from sweeps.lr.answer import LrJudge
from sweeps.lr.ranges import grid
from sweeps.record.history import History
from sweeps.record.trial import TrialRecord
from trainable import loop
from trainable.config import TrainConfig
from trainable.task import Splits, Task
from trainable.tasks.digits import Digits

BAR = 0.95  # of the sweeps of three seeds name a right one
SAME_BAR, STEPS_BAR = 0.95, 0.4  # a search with ASHA finds what it finds without, at this share of its steps
NUM_DRAWN = 20  # trials of a search
REPORT_STEPS = 2  # what a pruner sees of a trial: some 23 reports
WARMUP = 2  # the first of them, which say which rate is largest and not which is best, prune nothing
NUM_TRUTH_SEEDS = 10
SWEEPS_EACH = 8  # of each of five problems: 40
FIRST_SWEEP_SEED = 1000  # the grid's seeds begin at 0
LRS = grid(1e-4, 1.0, 9)


@dataclass(frozen=True)
class Problem:
    """A task, and how long its trials are."""

    name: str
    task: Task
    epochs: int
    batch_size: int = 32
    optimizer: str = "adamw"

    @property
    def spec(self) -> str:
        """The task as a sweep names it."""
        kind = type(self.task)
        return "digits" if kind is Digits else f"{Path(tasks.__file__).resolve()}:{kind.__name__}"

    def config(self, seed: int, **more: Any) -> TrainConfig:
        settings: dict[str, Any] = {
            "seed": seed,
            "split_seed": 0,
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "optimizer": self.optimizer,
            "threads": 1,
            "device": "cpu",
        }
        return TrainConfig(**{**settings, **more})


PROBLEMS = (
    Problem("breast cancer, table", tasks.BreastCancer(), epochs=3),
    Problem("diabetes, table", tasks.Diabetes(), epochs=4),
    Problem("digits, MLP, SGD", Digits(), epochs=1, optimizer="sgd"),
    Problem("digits, CNN", tasks.DigitsCnn(), epochs=1),
    Problem("characters", tasks.Characters(), epochs=1, batch_size=64),
)


class Curves(History):
    """The losses of trials that ran in this process."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.losses: dict[int, list[float]] = {}

    def curve(self, number: int, name: str) -> list[float]:
        return self.losses[number]


class Trials:
    """Trains trials of one problem in this process, each point once, and counts the steps of whoever asks."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._splits: Splits = problem.task.splits(0)
        self._known: dict[tuple[float, int], tuple[str, list[float], float]] = {}

    def judged(self, lrs: Sequence[float], seeds: Sequence[int]) -> tuple[Judgement, int]:
        """What the scan's judge makes of these learning rates over these seeds, and how many steps that took."""
        records, curves = [], Curves()
        for seed in seeds:
            for lr in lrs:
                state, losses, _ = self._trained(lr, seed)
                curves.losses[len(records)] = losses
                records.append(_record(len(records), {"lr": lr, "seed": seed}, state))
        return LrJudge(seeds[0], lrs)(records, curves), sum(map(len, curves.losses.values()))

    def judged_at_the_end(self, lrs: Sequence[float], seeds: Sequence[int]) -> list[Configuration]:
        """The same by val_loss at the end, the best first."""
        records, values = [], {}
        for seed in seeds:
            for lr in lrs:
                state, _, val_loss = self._trained(lr, seed)
                if state == "complete":
                    values[len(records)] = val_loss
                records.append(_record(len(records), {"lr": lr, "seed": seed}, state))
        # What is worse than knowing nothing is not told apart: exploded losses would blur all others.
        hopeless = sorted(values.values())[len(values) // 2] * 2
        return ranked(records, values, seeds[0], larger_is_better=False, worst=hopeless)

    def searched(self, seed: int, pruner: str) -> Found:
        """What a search finds that draws from the range of the grid."""
        problem = self._problem
        config = problem.config(seed, report_steps=REPORT_STEPS)
        return search(problem.spec, problem.task, self._splits, config, NUM_DRAWN, (min(LRS), max(LRS)), pruner, WARMUP)

    def _trained(self, lr: float, seed: int) -> tuple[str, list[float], float]:
        if (lr, seed) not in self._known:
            problem = self._problem
            run = loop.start(problem.task, problem.config(seed, lr=lr, eval_every=problem.epochs), self._splits)
            losses: list[float] = []
            while True:
                report = loop.advance(run)
                losses += report.curves["loss"]
                if report.done:
                    break
            run.close()
            state = "diverged" if report.diverged else "complete"
            self._known[lr, seed] = state, losses, report.metrics.get("val_loss", math.inf)
        return self._known[lr, seed]


def _record(number: int, params: dict[str, Any], state: Any) -> TrialRecord:
    return TrialRecord(
        number=number,
        params=params,
        state=state,
        attempts=1,
        reports=1,
        epochs=1.0,
        metrics={},
        samples_per_s=None,
        notes={},
        reason=None,
        mlflow_run_id=None,
        weights_sha256=None,
    )


@dataclass(frozen=True)
class Answer:
    """What a way of answering names, first and as tied with it, and the optimizer steps it took."""

    lr: float
    tied: tuple[float, ...]
    steps: int


def answer_of(configurations: Sequence[Configuration], steps: int) -> Answer:
    first, *others = configurations
    tied = [one.params["lr"] for one in others if one.beside is not None and one.beside.is_known and one.beside.tied]
    return Answer(first.params["lr"], tuple(tied), steps)


# A way of answering: given the trials of a problem and the seed of the sweep, what it names.
WAYS: dict[str, Callable[[Trials, int], Answer]] = {
    "lr_scan": lambda trials, seed: scanned(trials, [seed]),
    "lr_scan --seeds 3": lambda trials, seed: scanned(trials, [seed, seed + 1, seed + 2]),
    "tpe": lambda trials, seed: drawn(trials.searched(seed, "none")),
    "tpe, asha": lambda trials, seed: drawn(trials.searched(seed, "asha")),
}
SEARCHES = ("tpe", "tpe, asha")


def scanned(trials: Trials, seeds: Sequence[int]) -> Answer:
    judgement, steps = trials.judged(LRS, seeds)
    return answer_of(judgement.configurations, steps)


def drawn(found: Found) -> Answer:
    return Answer(found.lr, (), found.steps)


def on_grid(lr: float) -> float:
    """The learning rate of the grid that is nearest: ways that draw from a range are judged by it."""
    return min(LRS, key=lambda value: abs(math.log(value / lr)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="two problems, two sweeps of each; the bar is not judged by so few"
    )
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} CPUs, one thread used")
    print(f"learning rates: {' '.join(f'{lr:g}' for lr in LRS)}\n")
    problems, num_sweeps = (PROBLEMS[::2][:2], 2) if quick else (PROBLEMS, SWEEPS_EACH)
    answers: dict[str, list[Answer]] = {way: [] for way in WAYS}
    right: dict[str, list[bool]] = {way: [] for way in WAYS}
    held: dict[str, list[bool]] = {way: [] for way in WAYS}
    sizes: dict[str, list[int]] = {way: [] for way in WAYS}
    shares: dict[str, list[float]] = {way: [] for way in WAYS}
    print(f"{'problem':22} {'way':18} {'right':>7} {'holds it':>8} {'named':>6} {'steps':>6}   named first")
    for problem in problems:
        began = time.perf_counter()
        trials = Trials(problem)
        by_speed = scanned(trials, range(NUM_TRUTH_SEEDS))
        by_val_loss = answer_of(trials.judged_at_the_end(LRS, range(NUM_TRUTH_SEEDS)), by_speed.steps)
        for what, truth in (("speed", by_speed), ("val_loss", by_val_loss)):
            also = "".join(f", {lr:g}" for lr in truth.tied)
            print(f"{problem.name:22} {f'grid, by {what}':18} {truth.lr:g}{also} ({truth.steps} steps)")
        for way, answer in WAYS.items():
            truth = by_val_loss if way in SEARCHES else by_speed
            found = [answer(trials, FIRST_SWEEP_SEED + 10 * number) for number in range(num_sweeps)]
            good = [on_grid(one.lr) in (truth.lr, *truth.tied) for one in found]
            holds = [truth.lr in map(on_grid, (one.lr, *one.tied)) for one in found]
            named = [1 + len(one.tied) for one in found]
            share = [one.steps / truth.steps for one in found]
            print(
                f"{'':22} {way:18} {sum(good):4}/{len(good):<2} {sum(holds):5}/{len(holds):<2} {_mean(named):6.1f} "
                f"{_mean(share):6.2f}   {' '.join(f'{one.lr:g}' for one in found)}"
            )
            answers[way] += found
            right[way] += good
            held[way] += holds
            sizes[way] += named
            shares[way] += share
        print(f"{'':22} {time.perf_counter() - began:.0f} s\n", flush=True)
    for way in WAYS:
        print(
            f"{way:18} right in {_mean(right[way]):.1%} of {len(right[way])} sweeps; names {_mean(sizes[way]):.1f}, "
            f"the grid's own winner among them in {_mean(held[way]):.1%}; {_mean(shares[way]):.2f} of the grid's steps"
        )
    share = round(_mean(right["lr_scan --seeds 3"]), 3)
    alone, pruned = (answers[way] for way in SEARCHES)
    # The same winner: the same place on the grid, or both within the noise of the truth.
    same = [
        on_grid(one.lr) == on_grid(other.lr) or (good and also)
        for one, other, good, also in zip(alone, pruned, right["tpe"], right["tpe, asha"], strict=True)
    ]
    steps = sum(one.steps for one in pruned) / sum(one.steps for one in alone)
    print(f"with ASHA the search finds the same winner in {_mean(same):.1%}, at {steps:.2f} of the steps")
    bars = {
        "seeds_3_right": {"value": share, "bar": BAR, "met": share >= BAR},
        "asha_same_winner": {"value": round(_mean(same), 3), "bar": SAME_BAR, "met": _mean(same) >= SAME_BAR},
        "asha_steps": {"value": round(steps, 3), "bar": STEPS_BAR, "met": steps <= STEPS_BAR},
    }
    print(json.dumps(bars))
    return 0 if all(entry["met"] for entry in bars.values()) else 1


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    sys.exit(main())
