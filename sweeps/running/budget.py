"""Budgets: what ends a sweep before all of its trials are done, read from what the ledger knows.

A function of the trials and of the time that was spent, so a resumed sweep decides as an unbroken one does.
Knows nothing of how trials are stopped.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeps.cli import bound_of, number_of
from sweeps.record.trial import TERMINAL, TrialRecord
from sweeps.running.progress import spoken
from sweeps.searching.front import best_first, values_of
from sweeps.searching.outcomes import MEASURED
from sweeps.sweep import Sweep

# flag -> what stands for its value, what it does
BUDGET_FLAGS = {
    "--max-time": ("2h", "end after so much time, over all attempts; e.g. 90s, 30m, 1h30m"),
    "--max-gpu-hours": ("X", "end after so many hours of GPUs that trials held"),
    "--target": ("METRIC<=X", "end once a trial has got there, e.g. val_loss<=0.1; several must hold together"),
    "--plateau": ("N", "end after N trials without a better best"),
    "--max-trial-time": ("10m", "end a trial after so much training"),
}
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DURATION = re.compile(r"(\d+(\.\d+)?[smhd])+")
OFF = "none"  # takes a budget away on a resume


@dataclass(frozen=True)
class Budget:
    """What may end a sweep; None: nothing does. target: (metric, "at_most" or "at_least", limit), all of one trial."""

    max_time_s: float | None = None
    max_gpu_hours: float | None = None
    target: tuple[tuple[str, str, float], ...] = ()
    plateau: int | None = None
    max_trial_s: float | None = None

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any] | None) -> Budget:
        """From what `dataclasses.asdict` gave, through JSON."""
        plain = dict(plain or {})
        target = tuple((str(name), str(side), float(limit)) for name, side, limit in plain.pop("target", ()))
        return cls(**plain, target=target)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def metrics(self) -> tuple[str, ...]:
        """What the target looks at."""
        return tuple(name for name, _, _ in self.target)


NO_BUDGET = Budget()


@dataclass(frozen=True)
class Spent:
    """Over all attempts of a sweep: its own time, and that of the GPUs its trials held."""

    seconds: float = 0.0
    gpu_seconds: float = 0.0


@dataclass(frozen=True)
class End:
    """A budget that is used up: which, and the sentence that says so. gives_up: the trials under way are not wanted
    any more; otherwise they wait for a larger budget."""

    budget: str
    words: str
    gives_up: bool


def budget_of(asked: Mapping[str, Any], before: Budget | None = None) -> Budget:
    """The budget that the flags ask for, on top of what it was `before`. Raises ValueError in words."""
    found = before or Budget()
    if "max_time" in asked:
        found = dataclasses.replace(found, max_time_s=duration("--max-time", asked["max_time"]))
    if "max_trial_time" in asked:
        found = dataclasses.replace(found, max_trial_s=duration("--max-trial-time", asked["max_trial_time"]))
    if "max_gpu_hours" in asked:
        hours = None if asked["max_gpu_hours"] == OFF else number_of(asked, "max_gpu_hours", float)
        if hours is not None and not 0 < hours < math.inf:
            raise ValueError(f"--max-gpu-hours {asked['max_gpu_hours']} must be a number above 0")
        found = dataclasses.replace(found, max_gpu_hours=hours)
    if "plateau" in asked:
        plateau = None if asked["plateau"] == OFF else number_of(asked, "plateau", int)
        if plateau is not None and plateau < 1:
            raise ValueError(f"--plateau {asked['plateau']} must be at least 1")
        found = dataclasses.replace(found, plateau=plateau)
    if "target" in asked:
        given = asked["target"]
        entries = [given] if isinstance(given, str) else list(given)
        bounds = [] if entries == [OFF] else [bound_of("--target", entry) for entry in entries]
        found = dataclasses.replace(found, target=tuple(bounds))
    return found


def duration(flag: str, text: Any) -> float | None:
    """`1h30m` in seconds; None for `none`. Raises ValueError in words."""
    text = str(text).strip().lower().replace(" ", "")
    if text == OFF:
        return None
    seconds = 0.0
    if DURATION.fullmatch(text):
        seconds = math.fsum(float(part[:-1]) * UNITS[part[-1]] for part in re.findall(r"[\d.]+[smhd]", text))
    if seconds <= 0:
        raise ValueError(f"{flag} {text!r} must be a time with its unit: 90s, 30m, 2h, 1h30m")
    return seconds


def check_budget(budget: Budget, sweep: Sweep, gpus_per_trial: float | None) -> None:
    """Raises ValueError for a budget that would never be reached. gpus_per_trial: None where it is not known yet."""
    for name in budget.metrics:
        if name in MEASURED:
            raise ValueError(f"--target {name}: every trial has that at once; limit it with --constraint instead")
    if budget.plateau is not None and sweep.metrics:
        raise ValueError("--plateau compares trials by one number, and there are several metrics; keep one of the two")
    if budget.max_gpu_hours is not None and gpus_per_trial == 0:
        raise ValueError("--max-gpu-hours would never be reached, as no trial gets a GPU here; use --max-time")


def end_of_sweep(budget: Budget, sweep: Sweep, trials: Sequence[TrialRecord], spent: Spent) -> End | None:
    """The budget that is used up, or None."""
    hit = next((trial for trial in trials if has_target(budget, trial)), None)
    if hit is not None:
        values = ", ".join(f"{name} {hit.metrics[name]:.4g}" for name in budget.metrics)
        return End("target", f"Ended as --target was reached: trial {hit.number} has {values}.", gives_up=True)
    if budget.plateau is not None and (best := trials_since_best(sweep, trials)) is not None and best >= budget.plateau:
        what = "configurations" if sweep.num_seeds > 1 else "trials"
        return End("plateau", f"Ended by --plateau {budget.plateau}: {best} {what} brought no better best.", True)
    return end_of_time(budget, spent)


def end_of_time(budget: Budget, spent: Spent) -> End | None:
    """The same, of time alone: cheap, to be asked often."""
    if budget.max_time_s is not None and spent.seconds >= budget.max_time_s:
        return End("max_time", f"Ended by --max-time {spoken(budget.max_time_s)}.", gives_up=False)
    if budget.max_gpu_hours is not None and spent.gpu_seconds >= 3600 * budget.max_gpu_hours:
        return End("max_gpu_hours", f"Ended by --max-gpu-hours {budget.max_gpu_hours:g}.", gives_up=False)
    return None


def has_target(budget: Budget, trial: TrialRecord) -> bool:
    """Whether the trial's last report keeps all of the target's limits, and it is within the sweep's own."""
    if not budget.target or trial.state in ("failed", "diverged", "waiting") or not trial.feasible:
        return False
    values = [(trial.metrics.get(name), side, limit) for name, side, limit in budget.target]
    return all(
        value is not None and (value <= limit if side == "at_most" else value >= limit) for value, side, limit in values
    )


def trials_since_best(sweep: Sweep, trials: Sequence[TrialRecord]) -> int | None:
    """How many trials (with seeds: configurations) have ended after the best one, in the order of their numbers;
    None before there is a best. A failed one says nothing."""
    size = sweep.num_seeds
    groups = [trials[start : start + size] for start in range(0, len(trials), size)]
    ended = [group for group in groups if all(trial.state in TERMINAL for trial in group)]
    ended = [group for group in ended if any(trial.state != "failed" for trial in group)]
    sign = 1 if sweep.mode == "min" else -1
    means: list[tuple[float, int]] = []
    for index, group in enumerate(ended):
        values = [values_of(trial, sweep)[0] for trial in best_first(group, sweep)]
        if values:
            means.append((sign * math.fsum(values) / len(values), index))
    return len(ended) - 1 - min(means)[1] if means else None
