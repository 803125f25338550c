"""The answer of a learning-rate scan: trials ranked by their speed of loss descent, and what is said of them.

Also whether the scan goes on beyond an edge. Knows nothing of how trials run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from sweeps.answers.judgement import Judgement
from sweeps.answers.seeds import SEED, Configuration, lacking, num_seeds_of, ranked, repeated
from sweeps.lr.descent import Speed, measure, starting_loss, verdict
from sweeps.lr.ranges import beyond
from sweeps.record.history import History
from sweeps.record.trial import TrialRecord
from sweeps.sweep import Sweep

MEASURE = "descent_speed"
MOST_EXTENSIONS = 6  # values that --extend-edges tries beyond those that were asked for


@dataclasses.dataclass(frozen=True)
class LrJudge:
    """Judges a scan. seed: of trials that name none; asked: the learning rates that the user gave, the others were
    added by --extend-edges."""

    seed: int
    asked: Sequence[float]
    extend_edges: bool = False

    def __call__(self, trials: Sequence[TrialRecord], history: History) -> Judgement:
        """Rank the configurations by their mean speed of loss descent, and say it in a sentence."""
        measured = {trial.number: trial for trial in trials}
        complete = [trial for trial in trials if trial.state == "complete"]
        speeds = measured_together(
            {
                trial.number: (
                    float(trial.params["lr"]),
                    int(trial.params.get(SEED, self.seed)),
                    history.curve(trial.number, "loss"),
                )
                for trial in complete
            }
        )
        for number, speed in speeds.items():
            trial = measured[number]
            measured[number] = dataclasses.replace(trial, metrics={**trial.metrics, MEASURE: speed.per_step})
        all_trials = list(measured.values())
        values = {number: speed.per_step for number, speed in speeds.items()}
        configurations = ranked(all_trials, values, self.seed, larger_is_better=True, worst=0.0)
        placed = [one for one in configurations if one.estimate is not None]
        words = verdict(
            [_over_seeds(one, speeds) for one in placed], [float(one.params["lr"]) for one in configurations]
        )
        words += "".join(f" {sentence}." for sentence in self._remarks(configurations))
        return Judgement(all_trials, [one.first for one in placed], words, configurations, MEASURE, "max")

    def _remarks(self, configurations: Sequence[Configuration]) -> list[str]:
        over_seeds = any(len(one.trials) > 1 for one in configurations)
        named = {
            state: ", ".join(_which(one, state, over_seeds) for one in configurations if one.seeds(state))
            for state in ("diverged", "failed")
        }
        remarks = [f"{named['diverged']} diverged"] if named["diverged"] else []
        num_failed = sum(len(one.seeds("failed")) for one in configurations)
        num_trials = sum(len(one.trials) for one in configurations)
        if num_failed:
            remarks.append(f"{num_failed} of {num_trials} failed" + (f": {named['failed']}" if over_seeds else ""))
        added = [float(one.params["lr"]) for one in configurations if one.params["lr"] not in self.asked]
        if added:
            values = ", ".join(f"{lr:g}" for lr in sorted(added))
            remarks.append(f"Beyond what was asked for, --extend-edges tried {values}")
            tried = [float(one.params["lr"]) for one in configurations]
            if len(added) >= MOST_EXTENSIONS and tried[0] in (min(tried), max(tried)):
                remarks.append(f"It stops after {MOST_EXTENSIONS}")
        return remarks

    def grow(self, judgement: Judgement, sweep: Sweep) -> Sweep | None:
        """The scan with the next value beyond the edge at which its winner stands; None where that lies inside, or
        the scan has gone far enough. A value that diverged is an edge too: there is no sense in going beyond it."""
        lrs = lrs_of(sweep)
        if not self.extend_edges or len(set(lrs) - set(self.asked)) >= MOST_EXTENSIONS:
            return None
        best = judgement.configurations[0]
        lr = float(best.params["lr"])
        if best.estimate is None:
            # Where all of them diverged the range lies below. Where they failed, another value fails as well.
            larger, at_edge = False, bool(best.seeds("diverged"))
        else:
            larger = lr == max(lrs) and best.estimate.mean > 0  # where no loss falls, larger steps are no remedy
            at_edge = larger or lr == min(lrs)
        return with_more(sweep, [beyond(lrs, larger=larger)], num_seeds_of(sweep)) if at_edge else None


def with_more(sweep: Sweep, lrs: Sequence[float], num_seeds: int) -> Sweep:
    """The scan with these learning rates too, all of them over so many seeds; nothing is there twice."""
    tried = lrs_of(sweep)
    every = [*tried, *(lr for lr in lrs if lr not in tried)]
    points = repeated([{"lr": lr} for lr in every], sweep.train.seed, num_seeds)
    return dataclasses.replace(sweep, points=(*sweep.points, *lacking(sweep, points)))


def lrs_of(sweep: Sweep) -> list[float]:
    """Each learning rate once, in the order in which they were asked for."""
    return list(dict.fromkeys(float(point["lr"]) for point in sweep.points))


def measured_together(curves: Mapping[int, tuple[float, int, Sequence[float]]]) -> dict[int, Speed]:
    """The speeds of trials that have one. curves: trial number -> its learning rate, its seed, one loss a step."""
    smallest: dict[int, tuple[float, float]] = {}  # of each seed: the learning rate, and where its loss started
    for lr, seed, losses in curves.values():
        smallest[seed] = min(smallest.get(seed, (math.inf, math.inf)), (lr, starting_loss(losses)))
    found = {
        number: measure(number, lr, losses, ceiling=smallest[seed][1]) for number, (lr, seed, losses) in curves.items()
    }
    return {number: speed for number, speed in found.items() if speed is not None}


def _over_seeds(one: Configuration, speeds: dict[int, Speed]) -> Speed:
    """The means of a configuration, over the seeds that count."""
    counted = [speeds[one.trials[seed].number] for seed in one.counted]
    assert one.estimate is not None
    return Speed(
        number=one.first.number,
        lr=counted[0].lr,
        per_step=one.estimate.mean,
        final_loss=sum(speed.final_loss for speed in counted) / len(counted),
        over_seeds=one.estimate,
        beside=one.beside,
    )


def _which(one: Configuration, state: str, over_seeds: bool) -> str:
    """`lr=0.1`, and for which of several seeds it is in this state."""
    seeds = one.seeds(state)
    name = f"lr={one.params['lr']:g}"
    if not over_seeds:
        return name
    which = (
        "all seeds" if len(seeds) == len(one.trials) else f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    )
    return f"{name} ({which})"
