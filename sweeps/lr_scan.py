"""python -m sweeps.lr_scan: which learning rate? Each is trained for a short while; the fastest loss descent wins.

The tutorial's fourth anti-pattern, mended: everything else is fixed, initial weights and order of samples too.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from cluster.connect import this_machine
from sweeps.cli import Parser, fail, number_of, read_config
from sweeps.conduct import Judgement, Outcome, conduct
from sweeps.descent import measure, rank, verdict
from sweeps.history import History
from sweeps.ledger import TrialRecord
from sweeps.placement import Wish, choose_threads, place
from sweeps.report import ranking_table
from sweeps.resume import resume_command, resumed
from sweeps.store import Folder, checked_name, checked_results
from sweeps.sweep import Sweep, split_params
from sweeps.tracking import resolve_uri
from trainable.config import TrainConfig
from trainable.settings import TASK_PREFIX, parse_settings
from trainable.task import absolute_spec, load_task

BEGAN = time.time()
DEFAULT_LRS = (3e-3, 1e-3, 3e-4)  # the tutorial's three
DEFAULT_RETRIES = 1
MEASURE = "descent_speed"


def parser() -> Parser:
    """The flags. Those left out are None, so that a resume can tell what was asked for."""
    flags = Parser(prog="python -m sweeps.lr_scan", description=__doc__.partition("\n")[0])
    add = flags.add_argument
    add("--task", help="what to train: digits, package.module:Class or path/file.py:Class (default: digits)")
    add("--lrs", nargs="*", metavar="LR", help="learning rates to try (default: 3e-3 1e-3 3e-4)")
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
    drift: list[str] = []
    if asked.get("retry_failed") and "resume" not in asked:
        raise ValueError("--retry-failed is about a sweep that has run: use it with --resume NAME")
    if "resume" in asked:
        found = resumed(results, asked, "lr_scan", _learning_rates(asked["lrs"]) if "lrs" in asked else None)
        folder, sweep, uri, drift = found.folder, found.sweep, found.uri, found.drift
        if "tracking_uri" in asked:
            uri = resolve_uri(asked["tracking_uri"], launch_folder)
    else:
        sweep = _new_sweep(asked, wish)
        folder = Folder(results / sweep.name)
        if folder.is_taken():
            raise ValueError(
                f"name {sweep.name!r} exists already in {results}; choose another, or go on with --resume {sweep.name}"
            )
        uri = resolve_uri(asked.get("tracking_uri"), launch_folder)
    console = Console(stderr=True)
    console.print(f"sweep {sweep.name}  results {folder.path}  tracking {uri}", highlight=False, soft_wrap=True)
    return conduct(
        folder,
        sweep,
        tracking_uri=uri,
        wish=wish,
        address=asked.get("address"),
        judge=judge,
        console=console,
        began=BEGAN,
        retries=_retries(asked),
        retry_failed=bool(asked.get("retry_failed")),
        drift=drift,
    )


def _new_sweep(asked: Mapping[str, Any], wish: Wish) -> Sweep:
    task = absolute_spec(str(asked.get("task", "digits")))
    train, task_settings = split_params(asked["set"])
    if "lr" in train:
        raise ValueError(f"--set lr={train['lr']} fixes what the scan varies; use --lrs {train['lr']}")
    for flag in ("epochs", "seed"):
        if flag in asked:
            if flag in train:
                raise ValueError(f"--{flag} {asked[flag]} and --set {flag}={train[flag]} say it twice; keep one")
            train[flag] = number_of(asked, flag, int)
    lrs = _learning_rates(asked.get("lrs", DEFAULT_LRS))
    config = TrainConfig.from_dict(train)
    load_task(task, task_settings)
    if asked.get("address") is None:
        machine = this_machine(count_gpus=wish.needs_gpus(config))
        cpus = place(wish, machine, len(lrs), config).cpus_per_trial
    else:
        cpus = wish.cpus_per_trial or 1
    config = dataclasses.replace(config, threads=choose_threads(config, cpus))
    short = task.rpartition(":")[2].lower() or "task"
    name = str(asked.get("name") or f"lr_scan-{short}-{time.strftime('%Y%m%d-%H%M%S')}")
    return Sweep(
        name=checked_name(name),
        question="lr_scan",
        task=task,
        task_settings=task_settings,
        train=config,
        points=tuple({"lr": lr} for lr in lrs),
    )


def _retries(asked: Mapping[str, Any]) -> int:
    retries = number_of(asked, "retries", int)
    if retries is None:
        return DEFAULT_RETRIES
    if retries < 0:
        raise ValueError(f"--retries {retries} must be at least 0")
    return int(retries)


def _learning_rates(given: Any) -> list[float]:
    """Learning rates from the command line (texts, also joined by commas) or from a file (numbers)."""
    values = list(given) if isinstance(given, list | tuple) else [given]
    texts = [text for value in values for text in str(value).split(",") if text.strip()]
    if not texts:
        raise ValueError("--lrs needs at least one learning rate, e.g. --lrs 3e-3 1e-3 3e-4")
    found: list[float] = []
    for text in texts:
        try:
            lr = float(text)
        except ValueError:
            raise ValueError(f"--lrs {text!r} is not a number; give learning rates such as 3e-3") from None
        if not 0 < lr < float("inf"):
            raise ValueError(f"--lrs {text}: a learning rate must be above 0 and finite, such as 1e-3")
        if lr in found:
            raise ValueError(f"--lrs {text} is given twice; each learning rate is trained once")
        found.append(lr)
    return found


def judge(trials: Sequence[TrialRecord], history: History) -> Judgement:
    """Rank the complete trials by their speed of loss descent, and say it in a sentence."""
    lrs = {trial.number: float(trial.params["lr"]) for trial in trials}
    ranked = rank(
        measure(trial.number, lrs[trial.number], history.curve(trial.number, "loss"))
        for trial in trials
        if trial.state == "complete"
    )
    measured = {trial.number: trial for trial in trials}
    for speed in ranked:
        trial = measured[speed.number]
        measured[speed.number] = dataclasses.replace(trial, metrics={**trial.metrics, MEASURE: speed.per_step})
    words = verdict(ranked, list(lrs.values()))
    diverged = [f"lr={lrs[trial.number]:g}" for trial in trials if trial.state == "diverged"]
    if diverged:
        words += f" {', '.join(diverged)} diverged."
    failed = sum(trial.state == "failed" for trial in trials)
    if failed:
        words += f" {failed} of {len(trials)} failed."
    return Judgement(list(measured.values()), [measured[speed.number] for speed in ranked], words)


def _print(outcome: Outcome, *, as_json: bool) -> None:
    result, folder = outcome.result, outcome.folder
    if as_json:
        print(result.to_json())
        return
    console = Console(highlight=False, soft_wrap=True)
    ranked = outcome.judgement.ranked
    unranked = [trial for trial in result.trials if trial.number not in {other.number for other in ranked}]
    console.print(ranking_table(ranked, unranked, MEASURE, f"{result.name} ({result.status})"))
    for trial in result.trials:
        if trial.state == "failed" and trial.reason:
            kind = trial.failures[-1]["kind"] if trial.failures else "failed"
            console.print(f"trial {trial.number} failed: {kind}: {trial.reason.strip().splitlines()[-1]}", markup=False)
    console.print(f"\n{result.verdict}\n", markup=False)
    for remark in outcome.remarks:
        console.print(remark, markup=False)
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
