"""python -m sweeps.search: which of everything? Trials are drawn from a space; the best by a metric, or several, wins.

The space is the task's own, a file, entries on the command line or a Python function of an Optuna trial.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from sweeps.answers.judgement import Grow, Judge
from sweeps.answers.seeds import with_fixed_split
from sweeps.answers.tables import search_table, seeds_table
from sweeps.callable import make_callable
from sweeps.cli import Parser, bound_of, number_of, shared_settings
from sweeps.command import (
    Question,
    add_shared_flags,
    asked_of,
    errors_in_words,
    leave,
    num_seeds_of_flags,
    print_end,
    run_question,
    with_threads,
)
from sweeps.running.budget import BUDGET_FLAGS
from sweeps.running.conduct import Outcome
from sweeps.running.placement import Wish
from sweeps.running.plan import plan_question, print_plan
from sweeps.searching.answer import SearchJudge
from sweeps.searching.beginnings import proposed_ahead
from sweeps.searching.files import observations_of, points_of, space_of
from sweeps.searching.pruners import PRUNERS
from sweeps.searching.samplers import SAMPLERS
from sweeps.spaces.function import is_function
from sweeps.spaces.grammar import names_in, parse_space
from sweeps.spaces.valid import check_conflicts
from sweeps.sweep import Sweep
from trainable.config import TrainConfig
from trainable.task import absolute_settings, absolute_spec, load_task

BEGAN = time.time()
DEFAULT_TRIALS = 20
QUESTION = "search"


def parser() -> Parser:
    """The flags. Those left out are None, so that a resume can tell what was asked for."""
    flags = Parser(prog="python -m sweeps.search", description=__doc__.partition("\n")[0])
    add = flags.add_argument
    add(
        "--space",
        action="append",
        metavar="SPACE",
        help="FILE.yaml, NAME=log:1e-5..1e-1, NAME=choice:32,64, or FILE.py:function (default: the task's own)",
    )
    add("--trials", metavar="N", help=f"how many configurations are tried (default: {DEFAULT_TRIALS}; grid: all)")
    add("--sampler", metavar="NAME", help=f"{', '.join(SAMPLERS)} (default: tpe)")
    add("--pruner", metavar="NAME", help=f"{', '.join(PRUNERS)} (default: none)")
    add("--pruner-warmup", metavar="N", help="no trial is pruned before its n-th report (default: 0)")
    add("--pruner-patience", metavar="N", help="a trial with a new best among its last n reports is not pruned")
    add(
        "--metric",
        action="append",
        metavar="NAME:MODE",
        help="what is best, e.g. val_accuracy:max; several give a Pareto table (default: val_loss:min)",
    )
    add("--constraint", action="append", metavar="METRIC<=X", help="trials beyond it never win, e.g. latency_ms<=5")
    add("--points", metavar="FILE", help="configurations to try first, in YAML, JSON or CSV")
    add("--warm-start", metavar="SWEEP", help="teach the sampler the trials of another sweep (its name or folder)")
    add("--seeds", metavar="K", help="train each configuration with K paired seeds; the mean counts (default: 1)")
    add_shared_flags(flags, QUESTION, tuple(BUDGET_FLAGS))
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code (0 answered, 1 a trial failed or no answer, 2 bad input, 128 + signal)."""
    with errors_in_words():
        asked = asked_of(parser(), arguments)
        if asked.get("plan"):
            print_plan(plan_question(SEARCH, asked), as_json=bool(asked.get("json")))
            return 0
        outcome = run_question(SEARCH, asked, began=BEGAN)
    _print(outcome, as_json=bool(asked.get("json")))
    return outcome.exit_code


def _new_sweep(
    name: str, asked: Mapping[str, Any], wish: Wish, console: Console
) -> tuple[Sweep, dict[str, Any], dict[str, Any]]:
    task = absolute_spec(str(asked.get("task", "digits")))
    train, task_settings = shared_settings(asked)
    task_settings = absolute_settings(task, task_settings)
    loaded = load_task(task, task_settings)
    config = TrainConfig.from_dict(train)
    num_seeds = num_seeds_of_flags(asked, 1)
    space, is_own = space_of(asked.get("space"), loaded.space())
    if is_own:  # what is set is not searched
        space = {entry: spec for entry, spec in space.items() if entry not in asked["set"]}
        space = {entry: spec for entry, spec in space.items() if not (entry == "seed" and num_seeds > 1)}
    if not space:
        raise ValueError(f"task {asked.get('task', 'digits')!r} has no space of its own left; give one with --space")
    _check_conflicts(space, asked)
    points = points_of(asked["points"]) if "points" in asked else ()
    sweep = Sweep(
        name=name,
        question=QUESTION,
        task=task,
        task_settings=task_settings,
        train=config,
        space=space,
        points=points,
        num_trials=_num_trials(asked, None if asked.get("sampler") == "grid" else max(DEFAULT_TRIALS, len(points))),
        num_seeds=num_seeds,
        **_rules(asked),
    )
    sweep = _measured(_with_seeds(sweep))
    sweep = dataclasses.replace(sweep, train=with_threads(sweep.train, asked, wish, sweep.num_planned))
    seen = observations_of(asked["warm_start"], asked, sweep) if "warm_start" in asked else []
    if is_function(sweep.space):
        proposed_ahead(sweep, seen, 1)  # what it gives a trial can only be seen by asking it
    if sweep.pruner != "none" and sweep.epochs == 1 and sweep.train.report_steps is None:
        console.print(
            f"note: --pruner {sweep.pruner} has nothing to prune where a trial reports once; "
            "use --epochs 5, or --set report_steps=10",
            soft_wrap=True,
            highlight=False,
        )
    return sweep, {}, {"warm_start": seen} if seen else {}


def _grown(
    sweep: Sweep, noted: Mapping[str, Any] | None, asked: Mapping[str, Any]
) -> tuple[Sweep, dict[str, Any], list[str]]:
    """A search that is resumed with its own flags: more trials, other space, rules and limits; what is refused."""
    refused: list[str] = []
    if "warm_start" in asked:
        refused.append("warm-start: trials were proposed without it")
    num_trials = _num_trials(asked, sweep.num_trials)
    if num_trials is not None and num_trials < (sweep.num_trials or 0):
        refused.append(f"trials: {sweep.num_trials} -> {num_trials} (a resume can only add)")
        num_trials = sweep.num_trials
    num_seeds = num_seeds_of_flags(asked, sweep.num_seeds)
    if num_seeds != sweep.num_seeds:
        refused.append(f"seeds: {sweep.num_seeds} -> {num_seeds}; give the best as --points of a new search instead")
    rules = _rules(asked)
    objectives = rules.get("metrics") or ((rules["metric"], rules["mode"]),) if "metric" in asked else sweep.objectives
    if tuple(map(tuple, objectives)) != sweep.objectives:
        refused.append(f"metric: {_spoken(sweep.objectives)} -> {_spoken(objectives)}")
        rules = {name: rule for name, rule in rules.items() if name not in ("metric", "mode", "metrics")}
    space = sweep.space
    if "space" in asked:
        space, _ = space_of(asked["space"], {})
        _check_conflicts(space, asked)
    points = list(sweep.points)
    if "points" in asked:
        points += [point for point in points_of(asked["points"]) if point not in points]
    grown = dataclasses.replace(sweep, space=space, num_trials=num_trials, points=tuple(points), **rules)
    return _measured(grown), dict(noted or {}), refused


def _judge(sweep: Sweep, noted: Mapping[str, Any]) -> tuple[Judge, Grow | None]:
    return SearchJudge(sweep), None


SEARCH = Question(QUESTION, parser, _new_sweep, _grown, _judge)


def _num_trials(asked: Mapping[str, Any], default: int | None) -> int | None:
    num_trials = number_of(asked, "trials", int)
    if num_trials is None:
        return default
    if num_trials < 1:
        raise ValueError(f"--trials {num_trials} must be at least 1")
    return int(num_trials)


def _rules(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What of a sweep's definition says which trials are good, proposed and pruned; only what was asked for."""
    found: dict[str, Any] = {name: str(asked[name]) for name in ("sampler", "pruner") if name in asked}
    if "sampler" in found and found["sampler"] not in SAMPLERS:
        raise ValueError(f"--sampler {found['sampler']} must be one of {', '.join(SAMPLERS)}")
    if "pruner" in found and found["pruner"] not in PRUNERS:
        raise ValueError(f"--pruner {found['pruner']} must be one of {', '.join(PRUNERS)}")
    for name in ("pruner_warmup", "pruner_patience"):
        if name in asked:
            found[name] = number_of(asked, name, int)
    if "metric" in asked:
        objectives = [_objective(entry) for entry in _listed(asked["metric"])]
        if len(objectives) == 1:
            found |= {"metric": objectives[0][0], "mode": objectives[0][1]}
        else:
            found["metrics"] = tuple(objectives)
    if "constraint" in asked:
        limits: dict[str, dict[str, float]] = {}
        for entry in _listed(asked["constraint"]):
            name, side, limit = bound_of("--constraint", entry)
            if side in limits.setdefault(name, {}):
                raise ValueError(f"--constraint {name} is limited twice on one side; keep one of the two")
            limits[name][side] = limit
        found["constraints"] = limits
    return found


def _objective(text: Any) -> tuple[str, str]:
    name, _, mode = (part.strip() for part in str(text).partition(":"))
    if not name or mode not in ("min", "max"):
        raise ValueError(f"--metric {text!r} must be NAME:min or NAME:max, e.g. val_accuracy:max")
    return name, mode


def _listed(given: Any) -> list[Any]:
    """A flag that can be given several times; in a configuration file it may be one value."""
    return list(given) if isinstance(given, list | tuple) else [given]


def _spoken(objectives: Sequence[Sequence[str]]) -> str:
    return ", ".join(f"{name}:{mode}" for name, mode in objectives)


def _check_conflicts(space: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raises ValueError for a name that is searched, and fixed by a flag too."""
    names = [] if is_function(space) else [*names_in(parse_space(space))]
    check_conflicts(names, asked["set"])
    for flag in ("epochs", "seed"):
        if flag in asked:
            check_conflicts(names, {flag: asked[flag]}, f"--{flag} as")


def _with_seeds(sweep: Sweep) -> Sweep:
    """The data are split once, whatever the seed of a trial."""
    if sweep.num_seeds == 1:
        return sweep
    if sweep.metrics:
        raise ValueError("--seeds compares means of one metric, and there are several; keep one --metric and limits")
    return with_fixed_split(sweep)


def _measured(sweep: Sweep) -> Sweep:
    """Latency takes time to measure, so it is measured where it is named."""
    if "latency_ms" not in sweep.named_metrics or sweep.train.measure_latency:
        return sweep
    return dataclasses.replace(sweep, train=dataclasses.replace(sweep.train, measure_latency=True))


def _print(outcome: Outcome, *, as_json: bool) -> None:
    result, judgement = outcome.result, outcome.judgement
    if as_json:
        print(result.to_json())
        return
    title = f"{result.name} ({result.status})"
    sweep = outcome.sweep
    if result.configurations:
        table = seeds_table(result.configurations, sweep.metric, title)
    else:
        table = search_table(judgement.ranked, judgement.trials, sweep, title)
    print_end(outcome, table, QUESTION)


if __name__ == "__main__":
    leave(main())
make_callable(__name__)
