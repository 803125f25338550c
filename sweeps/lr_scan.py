"""python -m sweeps.lr_scan: which learning rate? Each is trained for a short while; the fastest loss descent wins.

The tutorial's fourth anti-pattern, mended: everything else is fixed, initial weights and order of samples too.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from sweeps.answers.judgement import Grow, Judge
from sweeps.answers.seeds import num_seeds_of, repeated, with_fixed_split
from sweeps.answers.tables import ranking_table, seeds_table
from sweeps.callable import make_callable
from sweeps.cli import Parser, fail, shared_settings
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
from sweeps.lr.answer import MEASURE, LrJudge, lrs_of, with_more
from sweeps.lr.finder import Range, find_range
from sweeps.lr.ranges import AUTO_VALUES, learning_rates
from sweeps.running.conduct import Outcome
from sweeps.running.placement import Wish
from sweeps.running.plan import plan_question, print_plan
from sweeps.sweep import Sweep
from trainable.config import TrainConfig
from trainable.task import absolute_settings, absolute_spec, load_task

BEGAN = time.time()
DEFAULT_LRS = (3e-3, 1e-3, 3e-4)  # the tutorial's three
BUDGETS = ("--max-time", "--max-gpu-hours", "--max-trial-time")  # the others would end it by another measure
QUESTION = "lr_scan"


def parser() -> Parser:
    """The flags. Those left out are None, so that a resume can tell what was asked for."""
    flags = Parser(prog="python -m sweeps.lr_scan", description=__doc__.partition("\n")[0])
    add = flags.add_argument
    add(
        "--lrs",
        nargs="*",
        metavar="LR",
        help="values, log grids such as 1e-5..1e-1:9, or auto (default: 3e-3 1e-3 3e-4)",
    )
    add("--extend-edges", action="store_const", const=True, help="go on beyond an edge until the winner lies inside")
    add("--seeds", metavar="K", help="repeat each learning rate over K paired seeds, to see what is noise (default: 1)")
    add_shared_flags(flags, QUESTION, BUDGETS)
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code (0 answered, 1 a trial failed or no answer, 2 bad input, 128 + signal)."""
    with errors_in_words():
        asked = asked_of(parser(), arguments)
        if asked.get("plan"):
            print_plan(plan_question(LR_SCAN, asked), as_json=bool(asked.get("json")))
            return 0
        outcome = run_question(LR_SCAN, asked, began=BEGAN)
    _print(outcome, as_json=bool(asked.get("json")))
    return outcome.exit_code


def _new_sweep(
    name: str, asked: Mapping[str, Any], wish: Wish, console: Console
) -> tuple[Sweep, dict[str, Any], dict[str, Any]]:
    """The definition, and what the ledger notes beside it: learning rates `asked` for, `extend_edges`, the `range`."""
    task = absolute_spec(str(asked.get("task", "digits")))
    train, task_settings = shared_settings(asked)
    task_settings = absolute_settings(task, task_settings)
    if "lr" in train:
        raise ValueError(f"--set lr={train['lr']} fixes what the scan varies; use --lrs {train['lr']}")
    lrs = learning_rates(asked.get("lrs", DEFAULT_LRS))
    num_seeds = num_seeds_of_flags(asked, 1)
    extend_edges = bool(asked.get("extend_edges"))
    config = TrainConfig.from_dict(train)
    load_task(task, task_settings)
    num_lrs = AUTO_VALUES if lrs is None else len(lrs)
    _check_edges(extend_edges, num_lrs)
    repeated([{}], config.seed, num_seeds)  # refuses what cannot be, before a range test takes its time
    config = with_threads(config, asked, wish, num_lrs * num_seeds)
    found: Range | None = None
    if lrs is None and asked.get("plan"):
        raise ValueError("--lrs auto finds its range by training, and --plan trains nothing; give a grid to plan with")
    if lrs is None:
        console.print("finding the range of learning rates: one run with a rising rate", soft_wrap=True)
        try:
            found = find_range(task, task_settings, config)
        except KeyboardInterrupt:
            fail("interrupted while the range was being found; nothing was written", code=128 + signal.SIGINT)
        lrs = list(found.lrs)
        tried = " ".join(f"{lr:g}" for lr in lrs)
        console.print(f"range {tried}: {found.reason}", highlight=False, markup=False, soft_wrap=True)
    sweep = Sweep(
        name=name,
        question=QUESTION,
        task=task,
        task_settings=task_settings,
        train=config,
        points=repeated([{"lr": lr} for lr in lrs], config.seed, num_seeds),
    )
    if num_seeds > 1:
        sweep = with_fixed_split(sweep)
    return sweep, {"asked": lrs, "extend_edges": extend_edges, "range": found and found.to_dict()}, {}


def _grown(
    sweep: Sweep, noted: Mapping[str, Any] | None, asked: Mapping[str, Any]
) -> tuple[Sweep, dict[str, Any], list[str]]:
    """A sweep that is resumed with the scan's own flags: more learning rates, more seeds; what of it is refused."""
    noted = dict(noted or {"asked": lrs_of(sweep), "extend_edges": False, "range": None})  # older sweeps noted nothing
    refused: list[str] = []
    lrs: list[float] = noted["asked"]
    if "lrs" in asked:
        given = learning_rates(asked["lrs"])
        if given is None and noted["range"] is None:
            raise ValueError(f"--lrs auto: {sweep.name} was given its learning rates; start a new sweep for auto")
        lrs = given or noted["asked"]
        missing = [lr for lr in noted["asked"] if lr not in lrs]
        if missing:
            refused.append(f"lrs: {', '.join(f'{lr:g}' for lr in missing)} left out (a resume can only add)")
    before = num_seeds_of(sweep)
    num_seeds = num_seeds_of_flags(asked, before)
    if num_seeds < before:
        refused.append(f"seeds: {before} -> {num_seeds} (a resume can only add)")
    extend_edges = bool(asked.get("extend_edges", noted["extend_edges"]))
    grown = sweep if refused else with_more(sweep, lrs, num_seeds)
    _check_edges(extend_edges, len(lrs_of(grown)))
    if num_seeds > 1:
        grown = with_fixed_split(grown)
    return grown, {**noted, "asked": lrs, "extend_edges": extend_edges}, refused


def _check_edges(extend_edges: bool, num_lrs: int) -> None:
    if extend_edges and num_lrs < 2:
        raise ValueError(
            "--extend-edges with one learning rate: the next is as far away as they are from each other; "
            "give two or more with --lrs"
        )


def _judge(sweep: Sweep, noted: Mapping[str, Any]) -> tuple[Judge, Grow | None]:
    judge = LrJudge(sweep.train.seed, noted["asked"], noted["extend_edges"])
    return judge, judge.grow


LR_SCAN = Question(QUESTION, parser, _new_sweep, _grown, _judge)


def _print(outcome: Outcome, *, as_json: bool) -> None:
    result, ranked = outcome.result, outcome.judgement.ranked
    if as_json:
        print(result.to_json())
        return
    unranked = [trial for trial in result.trials if trial.number not in {other.number for other in ranked}]
    title = f"{result.name} ({result.status})"
    if any(len(one.trials) > 1 for one in result.configurations):
        table = seeds_table(result.configurations, MEASURE, title)
    else:
        table = ranking_table(ranked, unranked, MEASURE, title)
    print_end(outcome, table, QUESTION)


if __name__ == "__main__":
    leave(main())
make_callable(__name__)
