"""python -m sweeps.lr_scan: which learning rate? Each is trained for a short while; the fastest loss descent wins.

The tutorial's fourth anti-pattern, mended: everything else is fixed, initial weights and order of samples too.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from cluster.connect import this_machine
from sweeps.cli import Parser, fail, number_of, read_config
from sweeps.conduct import Outcome, conduct
from sweeps.lr_answer import MEASURE, LrJudge, lrs_of, with_more
from sweeps.lr_finder import Range, find_range
from sweeps.lr_ranges import AUTO_VALUES, learning_rates
from sweeps.placement import Wish, choose_threads, place
from sweeps.report import ranking_table, seeds_table
from sweeps.resume import resume_command, resumed
from sweeps.seeds import num_seeds_of, repeated, with_fixed_split
from sweeps.store import Folder, checked_name, checked_results
from sweeps.sweep import Sweep, split_params
from sweeps.tracking import resolve_uri
from trainable.config import TrainConfig
from trainable.settings import TASK_PREFIX, parse_settings
from trainable.task import absolute_spec, load_task

BEGAN = time.time()
DEFAULT_LRS = (3e-3, 1e-3, 3e-4)  # the tutorial's three
DEFAULT_RETRIES = 1
QUESTION = "lr_scan"


def parser() -> Parser:
    """The flags. Those left out are None, so that a resume can tell what was asked for."""
    flags = Parser(prog="python -m sweeps.lr_scan", description=__doc__.partition("\n")[0])
    add = flags.add_argument
    add("--task", help="what to train: digits, package.module:Class or path/file.py:Class (default: digits)")
    add(
        "--lrs",
        nargs="*",
        metavar="LR",
        help="values, log grids such as 1e-5..1e-1:9, or auto (default: 3e-3 1e-3 3e-4)",
    )
    add("--extend-edges", action="store_const", const=True, help="go on beyond an edge until the winner lies inside")
    add("--seeds", metavar="K", help="repeat each learning rate over K paired seeds, to see what is noise (default: 1)")
    add("--epochs", help="epochs of each trial (default: 1)")
    add("--seed", help="where every random number comes from (default: 0)")
    add("--name", help="the sweep's name (default: lr_scan-<task>-<time>)")
    add("--results", metavar="DIR", help="where sweeps are kept (default: results)")
    add("--resume", nargs="?", const="", metavar="NAME", help="go on with a sweep; no name: the latest unfinished")
    add("--allow-drift", action="store_const", const=True, help="resume though trials will differ; it is recorded")
    add("--retries", metavar="N", help="how often a trial whose own code raises is tried again (default: 1)")
    add("--retry-failed", action="store_const", const=True, help="with --resume: run failed trials again too")
    add("--tracking-uri", metavar="URI", help="MLflow's store (default: MLFLOW_TRACKING_URI, else sqlite:///mlflow.db)")
    add("--config", metavar="FILE.yaml", help="flags from a file; those on the command line win")
    add("--set", action="append", default=None, metavar="KEY=VALUE", help="any setting of the training, or task.FIELD")
    add("--trials-at-once", metavar="N", help="how many trials run at a time (default: as many as fit)")
    add("--cpus-per-trial", metavar="X", help="CPUs of each trial (default: a fair share)")
    add("--gpus-per-trial", metavar="X", help="GPUs of each trial, also a share (default: 1 where there are any)")
    add("--address", metavar="HOST:PORT", help="a running Ray cluster (default: this machine)")
    add("--json", action="store_const", const=True, help="print the result as JSON on stdout, and nothing else there")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code (0 answered, 1 a trial failed or no answer, 2 bad input, 128 + signal)."""
    given = vars(parser().parse_args(arguments))
    try:
        asked = _with_config_file({name: value for name, value in given.items() if value is not None})
        outcome = _run(asked)
    except ValueError as error:
        fail(str(error))
    _print(outcome, as_json=bool(asked.get("json")))
    return outcome.exit_code


def _with_config_file(asked: dict[str, Any]) -> dict[str, Any]:
    """The flags of the configuration file, with those of the command line on top; `set` as one dict."""
    from_file: dict[str, Any] = {}
    if "config" in asked:
        names = [action.dest for action in parser()._actions if action.dest != "help"]
        from_file = read_config(Path(asked["config"]), names)
    config, task = parse_settings(asked.get("set", []))
    settings = {**from_file.get("set", {}), **config, **{f"{TASK_PREFIX}{name}": value for name, value in task.items()}}
    return {**from_file, **asked, "set": settings}


def _run(asked: Mapping[str, Any]) -> Outcome:
    launch_folder = Path.cwd()
    results = checked_results(Path(asked.get("results", "results")))
    wish = Wish(
        trials_at_once=number_of(asked, "trials_at_once", int),
        cpus_per_trial=number_of(asked, "cpus_per_trial", float),
        gpus_per_trial=number_of(asked, "gpus_per_trial", float),
    )
    console = Console(stderr=True)
    drift: list[str] = []
    if asked.get("retry_failed") and "resume" not in asked:
        raise ValueError("--retry-failed is about a sweep that has run: use it with --resume NAME")
    if "resume" in asked:
        found = resumed(results, asked, QUESTION, lambda sweep, noted: _grown(sweep, noted, asked))
        folder, sweep, noted, uri, drift = found.folder, found.sweep, found.noted, found.uri, found.drift
        if "tracking_uri" in asked:
            uri = resolve_uri(asked["tracking_uri"], launch_folder)
    else:
        folder = Folder(results / _name(asked))
        if folder.is_taken():
            raise ValueError(
                f"name {folder.name!r} exists already in {results}; choose another, "
                f"or go on with --resume {folder.name}"
            )
        uri = resolve_uri(asked.get("tracking_uri"), launch_folder)
        sweep, noted = _new_sweep(folder.name, asked, wish, console)
    console.print(f"sweep {sweep.name}  results {folder.path}  tracking {uri}", highlight=False, soft_wrap=True)
    judge = LrJudge(sweep.train.seed, noted["asked"], noted["extend_edges"])
    return conduct(
        folder,
        sweep,
        tracking_uri=uri,
        wish=wish,
        address=asked.get("address"),
        judge=judge,
        grow=judge.grow,
        noted={QUESTION: noted},
        console=console,
        began=BEGAN,
        retries=_retries(asked),
        retry_failed=bool(asked.get("retry_failed")),
        drift=drift,
    )


def _name(asked: Mapping[str, Any]) -> str:
    short = str(asked.get("task", "digits")).rpartition(":")[2].lower() or "task"
    return checked_name(str(asked.get("name") or f"lr_scan-{short}-{time.strftime('%Y%m%d-%H%M%S')}"))


def _new_sweep(name: str, asked: Mapping[str, Any], wish: Wish, console: Console) -> tuple[Sweep, dict[str, Any]]:
    """The definition, and what the ledger notes beside it: learning rates `asked` for, `extend_edges`, the `range`."""
    task = absolute_spec(str(asked.get("task", "digits")))
    train, task_settings = split_params(asked["set"])
    if "lr" in train:
        raise ValueError(f"--set lr={train['lr']} fixes what the scan varies; use --lrs {train['lr']}")
    for flag in ("epochs", "seed"):
        if flag in asked:
            if flag in train:
                raise ValueError(f"--{flag} {asked[flag]} and --set {flag}={train[flag]} say it twice; keep one")
            train[flag] = number_of(asked, flag, int)
    lrs = learning_rates(asked.get("lrs", DEFAULT_LRS))
    num_seeds = _num_seeds(asked, 1)
    extend_edges = bool(asked.get("extend_edges"))
    config = TrainConfig.from_dict(train)
    load_task(task, task_settings)
    num_lrs = AUTO_VALUES if lrs is None else len(lrs)
    _check_edges(extend_edges, num_lrs)
    repeated([{}], config.seed, num_seeds)  # refuses what cannot be, before a range test takes its time
    if asked.get("address") is None:
        machine = this_machine(count_gpus=wish.needs_gpus(config))
        cpus = place(wish, machine, num_lrs * num_seeds, config).cpus_per_trial
    else:
        cpus = wish.cpus_per_trial or 1
    config = dataclasses.replace(config, threads=choose_threads(config, cpus))
    found: Range | None = None
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
    return sweep, {"asked": lrs, "extend_edges": extend_edges, "range": found and found.to_dict()}


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
    num_seeds = _num_seeds(asked, before)
    if num_seeds < before:
        refused.append(f"seeds: {before} -> {num_seeds} (a resume can only add)")
    extend_edges = bool(asked.get("extend_edges", noted["extend_edges"]))
    grown = sweep if refused else with_more(sweep, lrs, num_seeds)
    _check_edges(extend_edges, len(lrs_of(grown)))
    if num_seeds > 1:
        grown = with_fixed_split(grown)
    return grown, {**noted, "asked": lrs, "extend_edges": extend_edges}, refused


def _num_seeds(asked: Mapping[str, Any], default: int) -> int:
    num_seeds = number_of(asked, "seeds", int)
    if num_seeds is None:
        return default
    if num_seeds < 1:
        raise ValueError(f"--seeds {num_seeds} must be at least 1; 3 is a good start")
    return int(num_seeds)


def _check_edges(extend_edges: bool, num_lrs: int) -> None:
    if extend_edges and num_lrs < 2:
        raise ValueError(
            "--extend-edges with one learning rate: the next is as far away as they are from each other; "
            "give two or more with --lrs"
        )


def _retries(asked: Mapping[str, Any]) -> int:
    retries = number_of(asked, "retries", int)
    if retries is None:
        return DEFAULT_RETRIES
    if retries < 0:
        raise ValueError(f"--retries {retries} must be at least 0")
    return int(retries)


def _print(outcome: Outcome, *, as_json: bool) -> None:
    result, folder = outcome.result, outcome.folder
    if as_json:
        print(result.to_json())
        return
    console = Console(highlight=False, soft_wrap=True)
    ranked = outcome.judgement.ranked
    unranked = [trial for trial in result.trials if trial.number not in {other.number for other in ranked}]
    title = f"{result.name} ({result.status})"
    over_seeds = any(len(one.trials) > 1 for one in result.configurations)
    if over_seeds:
        console.print(seeds_table(result.configurations, MEASURE, title))
    else:
        console.print(ranking_table(ranked, unranked, MEASURE, title))
    for trial in result.trials:
        if trial.state == "failed" and trial.reason:
            kind = trial.failures[-1]["kind"] if trial.failures else "failed"
            console.print(f"trial {trial.number} failed: {kind}: {trial.reason.strip().splitlines()[-1]}", markup=False)
    console.print(f"\n{result.verdict}\n", markup=False)
    for remark in outcome.remarks:
        console.print(remark, markup=False)
    if not over_seeds and len(ranked) > 1:
        console.print(f"one seed: {resume_command(folder)} --seeds 3 would tell how sure this is", markup=False)
    console.print(f"results  {folder.path}", markup=False)
    console.print(f"curves   {folder.plot}", markup=False)
    console.print(f"MLflow   {mlflow_command(result.tracking_uri)}", markup=False)
    console.print(f"resume   {resume_command(folder)}", markup=False)


def mlflow_command(uri: str) -> str:
    """What opens MLflow's pages on these runs."""
    return f"open {uri}" if uri.startswith("http") else f'mlflow ui --backend-store-uri "{uri}"'


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is written, and Ray is stopped. Taking the interpreter down in order would cost another second.
    os._exit(code)
