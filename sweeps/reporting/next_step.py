"""What to try next: one command line that runs, and why, from what the answer leaves open.

Knows both questions and their flags; what it advises is looked for in a fixed order, and the first that holds is said.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeps.answers.seeds import without_seed
from sweeps.lr.answer import MOST_EXTENSIONS, lrs_of
from sweeps.lr.ranges import beyond, next_value
from sweeps.record.trial import TERMINAL
from sweeps.reporting.command_line import beginning, going_on, space_flag
from sweeps.reporting.commands import command_on
from sweeps.reporting.facts import Facts
from sweeps.searching.answer import Edge, at_edges
from sweeps.spaces.function import is_function
from sweeps.spaces.grammar import Choice, Entry, Range, describe, parse_space
from sweeps.sweep import describe as described
from trainable.settings import TASK_PREFIX
from trainable.task import load_task

SEEDS = 3
CONFIRMED = 3  # configurations that are tried again over seeds
TRIALS = 20  # of a search that follows a scan
SPACE_FILE, POINTS_FILE = "next_space.json", "next_points.json"


@dataclass(frozen=True)
class NextStep:
    """why: a sentence; command: a line for a shell; files: what the command reads, by name, beside the report."""

    why: str
    command: str
    files: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def next_step(facts: Facts) -> NextStep | None:
    """None while it runs, or where nothing is left to say."""
    if facts.state == "running":
        return None
    left = sum(trial.state not in TERMINAL for trial in facts.trials)
    if left and facts.ended_by is None:
        return NextStep(f"{left} trial(s) are not done: go on with them.", going_on(facts))
    if facts.trials and all(trial.state == "failed" for trial in facts.trials):
        return NextStep(
            "Every trial failed: mend what they say, then run them again.", going_on(facts, "--retry-failed")
        )
    return _after_scan(facts) if facts.sweep.question == "lr_scan" else _after_search(facts)


def _after_scan(facts: Facts) -> NextStep:
    tried = lrs_of(facts.sweep)
    best = facts.judgement.configurations[0] if facts.best is not None else None
    if best is None or best.estimate is None or best.estimate.mean <= 0:
        lower = beyond(tried, larger=False) if len(tried) > 1 else next_value(tried[0], larger=False)
        return NextStep("No learning rate made the loss fall: try a smaller one.", _with_lr(facts, lower))
    lr = float(best.params["lr"])
    for larger, edge in ((True, max(tried)), (False, min(tried))):
        if lr == edge:
            which = "only" if len(tried) == 1 else "largest" if larger else "smallest"
            why = f"lr={lr:g} is the {which} value tried: the best may lie beyond."
            asked = facts.noted.get("asked", tried)
            if len(tried) > 1 and len(set(tried) - set(asked)) < MOST_EXTENSIONS:
                return NextStep(why, going_on(facts, "--extend-edges"))
            further = beyond(tried, larger=larger) if len(tried) > 1 else next_value(lr, larger=larger)
            return NextStep(why, _with_lr(facts, further))
    if not facts.over_seeds:
        return NextStep("One seed cannot tell a difference from noise.", going_on(facts, f"--seeds {SEEDS}"))
    if seeds := _seeds_that_tell(facts):
        return NextStep("The best are within the noise of each other: more seeds would tell.",
                        going_on(facts, f"--seeds {seeds}"))  # fmt: skip
    return _search_with(facts, lr)


def _with_lr(facts: Facts, lr: float) -> str:
    values = " ".join(f"{value:g}" for value in [*lrs_of(facts.sweep), lr])
    return going_on(facts, f"--lrs {values}")


def _seeds_that_tell(facts: Facts) -> int | None:
    """How many seeds would tell the winner from all it ties with; None where it ties with none, or none can tell."""
    tied = [one.beside for one in facts.judgement.configurations if one.beside is not None and one.beside.tied]
    needed = [beside.seeds for beside in tied if beside.seeds is not None]
    return max(needed) if needed and len(needed) == len(tied) else None


def _search_with(facts: Facts, lr: float) -> NextStep:
    """Which learning rate is answered: which of everything else?"""
    try:
        own = list(load_task(facts.sweep.task, facts.sweep.task_settings).space())
    except ValueError:  # its code is not here any more
        own = []
    taken = {f"{TASK_PREFIX}{name}" for name in facts.sweep.task_settings} | {"lr"}
    spaces = [] if set(own) - taken else ["--space weight_decay=log:0.0001..0.1", "--space batch_size=choice:16,32,64"]
    command = beginning(
        facts, "search", {"lr": lr, "epochs": max(5, facts.sweep.epochs)}, *spaces, f"--trials {TRIALS}"
    )
    return NextStep(f"lr={lr:g} is settled: search everything else with it.", command)


def _after_search(facts: Facts) -> NextStep | None:
    best, sweep = facts.best, facts.sweep
    diverged = sum(trial.state == "diverged" for trial in facts.trials)
    if best is None:
        if diverged:
            return _scan_lrs(
                facts, {}, "No trial has an answer, and some diverged: see at which lr it learns at all.", 3
            )
        return NextStep("No trial has an answer yet: try more.", _more(facts))
    if facts.ended_by == "target":
        return NextStep("The target is reached: open the test samples, once.", command_on(facts.folder, "accept"))
    params = without_seed(best.params)
    if edges := at_edges(sweep, params):
        return _widened(facts, edges)
    track = facts.tracks.get(best.number)
    diagnosis = track.diagnosis if track else None
    kind = diagnosis.kind if diagnosis else ""
    if kind == "too_short" and "epochs" not in params and not _has_end(facts):
        why = "The best one's losses still fall: train all of them on, for twice as long."
        return NextStep(why, going_on(facts, f"--epochs {2 * sweep.epochs}"))
    if kind == "overfit":
        return _regularized(facts, params)
    if kind in ("underfit", "unstable"):
        words = {"underfit": "The best one underfits: is its lr right?", "unstable": "The best one's loss rose again:"}
        return _scan_lrs(facts, params, f"{words[kind]} scan it with its other settings.", 4)
    if sweep.metrics or is_function(sweep.space):
        return NextStep("More trials may find better ones.", _more(facts))
    several = len(facts.judgement.ranked) > 1
    if sweep.num_seeds > 1:
        if several and (seeds := _seeds_that_tell(facts)):
            return _confirmed(facts, "The best are within the noise of each other: more seeds would tell.", seeds)
        why = "More seeds would not tell more: open the test samples, once."
        return NextStep(why, command_on(facts.folder, "accept"))
    is_all = sweep.num_planned < (sweep.num_trials or 0)  # the space has no other configuration
    if several and (is_all or best.number < 2 * len(facts.trials) / 3):
        what = "Every configuration was tried" if is_all else "The last third of the trials found no better one"
        return _confirmed(
            facts, f"{what}, and one seed cannot tell a difference from noise: the best over seeds.", SEEDS
        )
    why = "The best one came late" if several else "Only one trial was trained to its end"
    return NextStep(f"{why}: more trials may find better ones.", _more(facts))


def _has_end(facts: Facts) -> bool:
    """Whether a budget would end the sweep again at once."""
    return facts.ended_by is not None


def _more(facts: Facts, *flags: str) -> str:
    off = [f"--{facts.ended_by.replace('_', '-')} none"] if facts.ended_by else []
    return going_on(facts, *flags, f"--trials {2 * (facts.sweep.num_trials or 1)}", *off)


def _widened(facts: Facts, edges: list[Edge]) -> NextStep:
    entries = parse_space(facts.sweep.space)
    for edge in edges:
        entries = {name: _wider(name, entry, edge) for name, entry in entries.items()}
    named = " and ".join(f"{edge.name}={edge.value:g}" for edge in edges)
    why = f"The best has {named}, at the end of its range: look beyond, with more trials."
    flags, files = _space_flags(facts, entries)
    return NextStep(why, _more(facts, *flags), files)


def _wider(name: str, entry: Entry, edge: Edge) -> Entry:
    if isinstance(entry, Range):
        return _wider_range(entry, edge) if name == edge.name else entry
    if isinstance(entry, Choice):
        options = []
        for option in entry.options:
            drawn = _wider_range(option.drawn, edge) if isinstance(option.drawn, Range) and name == edge.name else None
            brings = {inner: _wider(inner, further, edge) for inner, further in option.brings.items()}
            options.append(dataclasses.replace(option, drawn=drawn or option.drawn, brings=brings))
        return Choice(tuple(options))
    return entry


def _wider_range(entry: Range, edge: Edge) -> Range:
    if edge.end == "lower":
        return dataclasses.replace(entry, low=edge.further) if entry.low == edge.bound else entry
    return dataclasses.replace(entry, high=edge.further) if entry.high == edge.bound else entry


def _space_flags(facts: Facts, entries: Mapping[str, Entry]) -> tuple[list[str], dict[str, Any]]:
    """The space as flags, or as a file where flags cannot say it."""
    flags = [space_flag(name, entry) for name, entry in entries.items()]
    if all(flag is not None for flag in flags):
        return [flag for flag in flags if flag is not None], {}
    return [f"--space {_beside(facts, SPACE_FILE)}"], {SPACE_FILE: describe(entries)}


def _beside(facts: Facts, name: str) -> str:
    path = facts.place / name
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _regularized(facts: Facts, params: Mapping[str, Any]) -> NextStep:
    """The best again, with what holds it back from learning by heart."""
    spaces, without = ["--space weight_decay=log:0.001..1"], ["weight_decay"]
    dropout = f"{TASK_PREFIX}dropout"
    if dropout in params or "dropout" in _fields(facts):
        spaces.append(f"--space {dropout}=float:0.0..0.7")
        without.append(dropout)
    fixed = {name: value for name, value in params.items() if name not in without}
    why = f"The best one ({described(params)}) overfits: search what holds against it, with the rest as it is."
    command = beginning(
        facts, "search", fixed, *spaces, _metric_flags(facts), f"--trials {TRIALS}", without=tuple(without)
    )
    return NextStep(why, " ".join(command.split()))


def _fields(facts: Facts) -> list[str]:
    try:
        return [*load_task(facts.sweep.task, facts.sweep.task_settings).settings()]
    except ValueError:
        return []


def _metric_flags(facts: Facts) -> str:
    if facts.sweep.objectives == (("val_loss", "min"),):
        return ""
    return " ".join(f"--metric {shlex.quote(f'{name}:{mode}')}" for name, mode in facts.sweep.objectives)


def _scan_lrs(facts: Facts, params: Mapping[str, Any], why: str, decades: int) -> NextStep:
    lr = float(params.get("lr", facts.sweep.train.lr))
    high = lr * 10 if decades == 4 else lr
    grid = f"{lr / 10 ** (decades - 1):.2g}..{high:.2g}:{decades + 1}"
    fixed = {name: value for name, value in params.items() if name != "lr"}
    command = beginning(facts, "lr_scan", fixed, f"--lrs {grid}", without=("lr", "epochs"))
    return NextStep(why, command)


def _confirmed(facts: Facts, why: str, seeds: int) -> NextStep:
    """The first few again, with several seeds each, in a sweep of their own."""
    points = [without_seed(trial.params) for trial in facts.judgement.ranked[:CONFIRMED]]
    flags, files = _space_flags(facts, parse_space(facts.sweep.space))
    text = json.loads(json.dumps(points))
    command = beginning(facts, "search", {}, *flags, f"--points {_beside(facts, POINTS_FILE)}",
                        f"--trials {len(points)}", f"--seeds {seeds}", _metric_flags(facts))  # fmt: skip
    return NextStep(why, command.rstrip(), {**files, POINTS_FILE: text})
