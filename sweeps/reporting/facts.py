"""What a report is made of: a sweep, its trials as its question judges them, and what each of them said, made small.

Reads the history; knows no figure and no page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeps.answers.diagnosis import Diagnosis, diagnose
from sweeps.answers.judgement import Judgement
from sweeps.answers.seeds import without_seed
from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.record.trial import TERMINAL, TrialRecord
from sweeps.running.account import SPENT
from sweeps.sweep import Sweep

MOST_POINTS = 20_000  # of all loss curves of a report together: what a page of a few MB holds, and a screen shows
FEWEST_POINTS, ENOUGH_POINTS = 20, 400  # of one curve


@dataclass(frozen=True)
class Track:
    """What one trial said. reports: without their curves; losses: (epoch, training loss), each the mean over `every`
    steps, None where one of these was not finite."""

    reports: Sequence[Mapping[str, Any]]
    losses: Sequence[tuple[float, float | None]]
    every: int
    diagnosis: Diagnosis | None


@dataclass(frozen=True)
class Facts:
    """A sweep as it stands. state: running, interrupted, finished or failed; ended_by: the budget that ended it;
    place: where its report goes."""

    folder: Folder
    place: Path
    sweep: Sweep
    judgement: Judgement
    state: str
    verdict: str
    tracks: Mapping[int, Track]
    tracking_uri: str
    ended_by: str | None = None
    seconds: float | None = None
    drift: Sequence[str] = ()
    data: Mapping[str, str] | None = None
    noted: Mapping[str, Any] = field(default_factory=dict)  # by the question, beside the definition

    @property
    def trials(self) -> Sequence[TrialRecord]:
        return self.judgement.trials

    @property
    def begun(self) -> list[TrialRecord]:
        return [trial for trial in self.trials if trial.state != "waiting"]

    @property
    def best(self) -> TrialRecord | None:
        return self.judgement.ranked[0] if self.judgement.ranked else None

    @property
    def measure(self) -> str:
        """The metric that the question ranks by."""
        return self.judgement.measure or self.sweep.metric

    @property
    def larger_is_better(self) -> bool:
        return (self.judgement.mode or self.sweep.mode) == "max"

    @property
    def over_seeds(self) -> bool:
        return any(len(one.trials) > 1 for one in self.judgement.configurations)

    def in_order(self) -> list[TrialRecord]:
        """All trials that have begun: those that have a rank first, each with all its seeds, the best first."""
        rank: dict[int, int] = {}
        for one in self.judgement.configurations:
            for trial in one.trials.values():
                rank[trial.number] = len(rank)
        for trial in self.judgement.ranked:
            rank.setdefault(trial.number, len(rank))
        return sorted(self.begun, key=lambda trial: (rank.get(trial.number, len(rank)), trial.number))

    def value(self, trial: TrialRecord) -> float | None:
        """What the trial is ranked by, of a pruned one so far; None where it has nothing finite, or the last that it
        said is not what it came to."""
        value = trial.metrics.get(self.measure)
        if value is None or not math.isfinite(value) or trial.state in ("diverged", "failed"):
            return None
        return value

    def searched(self) -> list[str]:
        """The names that differ between trials, without the seed where trials repeat over seeds."""
        names = list(dict.fromkeys(name for trial in self.begun for name in without_seed(trial.params)))
        return [name for name in names if len({repr(trial.params.get(name)) for trial in self.begun}) > 1]


def gather(
    folder: Folder, ledger: Ledger, history: History, judgement: Judgement, state: str, verdict: str, place: Path
) -> Facts:
    """The facts of a sweep whose ledger is open; nothing is written."""
    spent = ledger.attribute(SPENT)
    return Facts(
        folder=folder,
        place=place,
        sweep=ledger.sweep,
        judgement=judgement,
        state=state,
        verdict=verdict,
        tracks=_tracks(history, judgement.trials),
        tracking_uri=str(ledger.attribute("tracking_uri")),
        ended_by=ledger.attribute("ended_by"),
        seconds=spent and float(spent["seconds"]),
        drift=ledger.attribute("drift") or (),
        data=ledger.attribute("data"),
        noted=ledger.attribute(ledger.sweep.question) or {},
    )


def so_far(verdict: str, trials: Sequence[TrialRecord], state: str) -> str:
    """The verdict on a sweep that has trials left, with how far it is."""
    done = sum(trial.state in TERMINAL for trial in trials)
    said = f"{state.capitalize()}: {done} of {len(trials)} trials are done"
    return f"{said}. So far: {verdict}" if done else f"{said}; there is no answer yet."


def _tracks(history: History, trials: Sequence[TrialRecord]) -> dict[int, Track]:
    """Read one after the other, so that never more than one trial's curves are in memory as they are."""
    most = min(max(MOST_POINTS // max(len(trials), 1), FEWEST_POINTS), ENOUGH_POINTS)
    found: dict[int, Track] = {}
    for trial in trials:
        if reports := history.reports(trial.number):
            losses, every = _thinned(reports, most)
            slim = [{name: value for name, value in report.items() if name != "curves"} for report in reports]
            found[trial.number] = Track(slim, losses, every, diagnose(reports))
    return found


def _thinned(reports: Sequence[Mapping[str, Any]], most: int) -> tuple[list[tuple[float, float | None]], int]:
    """The training loss over the epochs in at most so many points, and how many steps each is the mean of."""
    losses = [value for report in reports for value in report["curves"]["loss"]]
    last = reports[-1]
    steps_per_epoch = last["step"] / last["epoch"] if last["epoch"] else 1.0
    every = max(1, math.ceil(len(losses) / most))
    points: list[tuple[float, float | None]] = []
    for begin in range(0, len(losses), every):
        part = losses[begin : begin + every]
        mean = math.fsum(part) / len(part) if all(map(math.isfinite, part)) else None
        points.append(((begin + (len(part) + 1) / 2) / steps_per_epoch, mean))
    return points, every
