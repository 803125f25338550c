"""`--plan`: what a sweep would be, without training a trial or writing anything: its trials, how many run at once, how
long it takes, how much disk, and whether the task passes the checks.

What a step costs is probed in a process of its own. Knows no question but what it is handed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cluster.capacity import this_machine
from sweeps.command import Question, sweep_name, wish_of
from sweeps.running.budget import Budget, budget_of, check_budget
from sweeps.running.doors import ask
from sweeps.running.placement import place
from sweeps.running.progress import progress_console, spoken
from sweeps.searching.beginnings import proposed_ahead
from sweeps.sweep import Sweep, describe
from trainable.objects import checked_address

MOST_PROBED = 3  # configurations: the first, the last, and one between
MOST_AHEAD = 200  # proposals that are worked out
MOST_ROWS = 20
MEASURED_THERE = "auto: how many trials share a GPU is measured on the cluster first"
START_S = 6.0  # a process that can train: measured, on two cores


@dataclass(frozen=True)
class Plan:
    """What a sweep would be. trials: the parameters that are known beforehand, of `num_trials` in all."""

    name: str
    question: str
    task: str
    sampler: str | None
    trials: Sequence[Mapping[str, Any]]
    num_trials: int
    trials_at_once: int
    resources: str
    device: str | None
    num_params: int | None
    step_s: float | None
    trial_s: float | None
    sweep_s: float | None
    disk_bytes: int | None
    findings: Sequence[Mapping[str, Any]]
    refused: str | None
    budget: Mapping[str, Any]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)


def plan_question(question: Question, asked: Mapping[str, Any]) -> Plan:
    """The plan of a new sweep. Raises ValueError in words for whatever the sweep itself would refuse."""
    if "resume" in asked:
        raise ValueError(
            "--plan is about a new sweep; what is left of one that has begun shows python -m sweeps.show NAME"
        )
    progress_console(asked.get("progress"))  # nothing is shown, but the sweep itself would refuse the word
    if "storage" in asked:
        checked_address(asked["storage"])
    wish, quiet = wish_of(asked), Console(quiet=True)
    if wish.is_auto and "address" in asked:  # whose GPUs are not this machine's
        wish = dataclasses.replace(wish, gpus_per_trial=None, why_gpus=MEASURED_THERE)
    sweep, _, attributes = question.new(sweep_name(question, asked), asked, wish, quiet)
    budget = budget_of(asked)
    check_budget(budget, sweep, None)
    trials: list[dict[str, Any]] = [dict(point) for point in sweep.points]
    if sweep.space:
        trials = proposed_ahead(sweep, attributes.get("warm_start"), min(sweep.num_planned, MOST_AHEAD))
    cost = _cost(sweep, trials, budget)
    gpus = float(cost["gpus"])
    machine = dataclasses.replace(this_machine(count_gpus=False), gpus=gpus, node_gpus=gpus)
    placement = place(wish, machine, sweep.num_planned, sweep.train)
    trial_s = sweep_s = disk = None
    if cost["trials"]:
        each = [one["steps"] * one["step_s"] + one["evaluations"] * one["eval_s"] for one in cost["trials"]]
        trial_s = sum(each) / len(each)
        if budget.max_trial_s is not None:
            trial_s = min(trial_s, budget.max_trial_s)
        sweep_s = START_S + -(-sweep.num_planned // placement.trials_at_once) * trial_s
        if budget.max_time_s is not None:
            sweep_s = min(sweep_s, budget.max_time_s)
        disk = max(one["checkpoint_bytes"] for one in cost["trials"]) * sweep.num_planned
    first = cost["trials"][0] if cost["trials"] else {}
    return Plan(
        name=sweep.name,
        question=sweep.question,
        task=sweep.task,
        sampler=sweep.sampler if sweep.space else None,
        trials=trials,
        num_trials=sweep.num_planned,
        trials_at_once=placement.trials_at_once,
        resources=placement.reason,
        device=first.get("device"),
        num_params=first.get("num_params"),
        step_s=first.get("step_s"),
        trial_s=trial_s,
        sweep_s=sweep_s,
        disk_bytes=disk,
        findings=cost["findings"],
        refused=cost["refused"],
        budget=budget.to_dict(),
    )


def _cost(sweep: Sweep, trials: Sequence[Mapping[str, Any]], budget: Budget) -> dict[str, Any]:
    """What the probe says (see trainable/probe.py). Raises ValueError in words where it could not be run."""
    picked = sorted({0, len(trials) // 2, len(trials) - 1})[:MOST_PROBED]
    asked: dict[str, Any] = {
        "task": sweep.task,
        "shared": {"settings": dict(sweep.task_settings), "train": sweep.train.to_dict()},
        "metrics": [*sweep.named_metrics, *budget.metrics],
        "trials": [],
    }
    for index in picked:
        config, settings = sweep.trial_config(trials[index])
        asked["trials"].append({"settings": settings, "train": config.to_dict()})
    return ask("trainable.probe", asked, sweep.task, "--plan tries a few steps of the task first")


def print_plan(plan: Plan, *, as_json: bool) -> None:
    """The plan on stdout."""
    if as_json:
        print(plan.to_json())
        return
    console = Console(highlight=False, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.title = f"plan of {plan.question} on {plan.task}: {plan.num_trials} trials"
    table.add_column("trial", no_wrap=True)
    table.add_column("params", overflow="fold")
    for number, params in enumerate(plan.trials[:MOST_ROWS]):
        table.add_row(str(number), Text(describe(params)))
    console.print(table)
    if len(plan.trials) > MOST_ROWS:
        console.print(f"and {len(plan.trials) - MOST_ROWS} more that are known by now: --plan --json lists them")
    if len(plan.trials) < plan.num_trials:
        rest = plan.num_trials - len(plan.trials)
        console.print(f"the other {rest} follow from what these come to (sampler {plan.sampler})", markup=False)
    console.print(f"at once     {plan.trials_at_once}, {plan.resources}", markup=False)
    if plan.refused is not None:
        console.print(f"checks      NO: {plan.refused}", markup=False)
    else:
        doubted = [finding for finding in plan.findings if finding["passed"] is False]
        passed = sum(finding["passed"] is True for finding in plan.findings)
        console.print(f"checks      {passed} passed, {len(doubted)} doubted", markup=False)
        for finding in doubted:
            console.print(f"            {finding['question']} {finding['answer']}; {finding['advice']}", markup=False)
    if plan.trial_s is not None:
        assert plan.step_s is not None
        assert plan.sweep_s is not None
        assert plan.disk_bytes is not None
        console.print(f"a step      {1000 * plan.step_s:.3g} ms on {plan.device}, {plan.num_params:,} parameters")
        console.print(f"a trial     about {_brief(plan.trial_s)}")
        console.print(f"the sweep   about {spoken(plan.sweep_s)}, some {START_S:g} s of it to start processes")
        console.print(f"disk        about {_size(plan.disk_bytes)} of checkpoints")
    console.print("nothing was trained and nothing was written; leave --plan out to begin")


def _brief(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else spoken(seconds)


def _size(num_bytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes / 1e3:.3g} kB"
