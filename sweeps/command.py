"""What the commands that run a sweep share: flags, configuration file, a new sweep or a resumed one, what is printed
at the end.

Knows no question: lr_scan.py and search.py hand theirs in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

from cluster.capacity import this_machine
from cluster.job import goes_with_the_job
from sweeps.answers.judgement import Grow, Judge
from sweeps.cli import Parser, fail, number_of, read_config
from sweeps.record.address import checked_address, is_same_database
from sweeps.record.elsewhere import checked_storage
from sweeps.record.home import checked_database
from sweeps.record.store import Folder, checked_name, checked_results, nearest_existing
from sweeps.reporting.commands import dashboard_command, mlflow_command
from sweeps.running.budget import BUDGET_FLAGS, Budget, budget_of, check_budget
from sweeps.running.conduct import Outcome, conduct
from sweeps.running.failures import StorageLost, storage_problem
from sweeps.running.placement import Wish, choose_threads, place
from sweeps.running.progress import MODES, progress_console
from sweeps.running.resume import elsewhere_command, resume_command, resumed
from sweeps.sweep import Sweep
from sweeps.tracking.tracker import resolve_uri
from trainable.config import TrainConfig
from trainable.settings import TASK_PREFIX, parse_settings

DEFAULT_RETRIES = 1

Notes = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """How a command's question becomes a sweep.

    new: from the sweep's name, the flags, the wish and the console a definition, what the question notes beside it, and
    further attributes of the ledger. grown: a definition and its notes, changed by the flags of a resume, and what of
    them is refused. judge: of a definition and its notes.
    """

    name: str
    flags: Callable[[], Parser]
    new: Callable[[str, Mapping[str, Any], Wish, Console], tuple[Sweep, Notes, Notes]]
    grown: Callable[[Sweep, Mapping[str, Any] | None, Mapping[str, Any]], tuple[Sweep, Notes, list[str]]]
    judge: Callable[[Sweep, Mapping[str, Any]], tuple[Judge, Grow | None]]


def add_shared_flags(flags: Parser, question: str, budgets: Sequence[str]) -> None:
    """The flags of place, tracking, resume and retries. Those left out are None, so that a resume can tell what was
    asked for. budgets: those that make sense for the question."""
    add = flags.add_argument
    add("--task", help="what to train: digits, package.module:Class or path/file.py:Class (default: digits)")
    add("--epochs", help="epochs of each trial (default: 1)")
    add("--seed", help="where every random number comes from (default: 0)")
    add("--set", action="append", default=None, metavar="KEY=VALUE", help="any setting of the training, or task.FIELD")
    add("--plan", action="store_const", const=True, help="train nothing: what it would be, how long, on how much disk")
    for flag in budgets:
        metavar, help = BUDGET_FLAGS[flag]
        add(flag, metavar=metavar, help=help, action="append" if flag == "--target" else "store")
    add("--name", help=f"the sweep's name (default: {question}-<task>-<time>)")
    add("--results", metavar="DIR", help="where sweeps are kept (default: results)")
    add("--resume", nargs="?", const="", metavar="NAME", help="go on with a sweep; no name: the latest unfinished")
    add("--allow-drift", action="store_const", const=True, help="resume though trials will differ; it is recorded")
    add("--retries", metavar="N", help="how often a trial whose own code raises is tried again (default: 1)")
    add("--retry-failed", action="store_const", const=True, help="with --resume: run failed trials again too")
    add("--storage", metavar="URI", help="object store for what trials leave: s3://bucket/folder, gs://bucket/folder")
    add("--ledger", metavar="URL", help="PostgreSQL for the sweep's record (default: a file in its folder)")
    add("--tracking-uri", metavar="URI", help="MLflow's store (default: MLFLOW_TRACKING_URI, else sqlite:///mlflow.db)")
    add("--config", metavar="FILE.yaml", help="flags from a file; those on the command line win")
    add("--trials-at-once", metavar="N", help="how many trials run at a time (default: as many as fit)")
    add("--cpus-per-trial", metavar="X", help="CPUs of each trial (default: a fair share)")
    add("--gpus-per-trial", metavar="X", help="GPUs of each trial, a share, or auto (default: 1 where there are any)")
    add("--workers-per-trial", metavar="N", help="how many processes train a trial together, on one node or several")
    add("--accelerator", metavar="TYPE", help="only on GPUs of this type, in Ray's words: A100, H100, T4 ...")
    add("--wait", action="store_const", const=True, help="for nodes that an autoscaler brings, instead of refusing")
    add("--address", metavar="HOST:PORT", help="a running Ray cluster (default: this machine)")
    add("--progress", metavar="HOW", help=f"what is shown on stderr: {', '.join(MODES)} (default: auto)")
    add("--json", action="store_const", const=True, help="print the result as JSON on stdout, and nothing else there")


def flag_names(flags: Parser) -> list[str]:
    return [action.dest for action in flags._actions if action.dest != "help"]


def asked_of(flags: Parser, arguments: Sequence[str] | None) -> dict[str, Any]:
    """The flags of the command line on top of those of the configuration file; `set` as one dict."""
    asked = {name: value for name, value in vars(flags.parse_args(arguments)).items() if value is not None}
    config, task = parse_settings(asked.get("set", []))
    asked["set"] = {**config, **{f"{TASK_PREFIX}{name}": value for name, value in task.items()}}
    return with_config_file(flags, asked)


def with_config_file(flags: Parser, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for on top of what its configuration file says, if it names one."""
    if "config" not in asked:
        return dict(asked)
    from_file = read_config(Path(asked["config"]), flag_names(flags))
    return {**from_file, **asked, "set": {**from_file.get("set", {}), **asked["set"]}}


def wish_of(asked: Mapping[str, Any]) -> Wish:
    return Wish(
        trials_at_once=number_of(asked, "trials_at_once", int),
        cpus_per_trial=number_of(asked, "cpus_per_trial", float),
        gpus_per_trial=asked.get("gpus_per_trial"),
        accelerator=asked.get("accelerator"),
        workers_per_trial=1 if (workers := number_of(asked, "workers_per_trial", int)) is None else workers,
        wait=bool(asked.get("wait")),
    )


def run_question(question: Question, asked: Mapping[str, Any], *, began: float, exits: bool = True) -> Outcome:
    """A new sweep of this question, or one that is resumed, to its end.

    Raises, in words, ValueError for what cannot be done and StorageLost for a disk that cannot be written.

    began: time.time() at which the user began to wait; exits: signals end the process.
    """
    console = progress_console(asked.get("progress"))
    launch_folder = Path.cwd()
    results = checked_results(Path(asked.get("results", "results")))
    if goes_with_the_job(results):
        raise ValueError(
            f"the results folder {results} is in the folder that Ray has unpacked for this job, and goes with it; use "
            "--results with a folder that all nodes see under the same path"
        )
    if goes_with_the_job(launch_folder):  # so would MLflow's database
        launch_folder = nearest_existing(results)
    wish = wish_of(asked)
    drift: list[str] = []
    attributes: Notes = {}
    database: str | None = None
    storage: str | None = None
    retries = _retries(asked)
    if asked.get("retry_failed") and "resume" not in asked:
        raise ValueError("--retry-failed is about a sweep that has run: use it with --resume NAME")
    if "resume" in asked:
        found = resumed(results, asked, question.name, lambda sweep, noted: question.grown(sweep, noted, asked))
        folder, sweep, noted, uri, drift = found.folder, found.sweep, found.noted, found.uri, found.drift
        budget = budget_of(asked, Budget.from_dict(noted.get("budget")))
        if "tracking_uri" in asked:
            uri = resolve_uri(asked["tracking_uri"], launch_folder)
    else:
        folder = Folder(results / sweep_name(question, asked))
        if folder.is_taken():
            raise ValueError(
                f"name {folder.name!r} exists already in {results}; choose another, "
                f"or go on with --resume {folder.name}"
            )
        uri = resolve_uri(asked.get("tracking_uri"), launch_folder)
        if "ledger" in asked and is_same_database(checked_address(asked["ledger"]), uri):
            raise ValueError(
                f"--ledger {asked['ledger']} is MLflow's database too, and some tables of both have one name; give the "
                "ledger one of its own: createdb NAME"
            )
        database = checked_database(asked["ledger"]) if "ledger" in asked else None
        storage = checked_storage(asked["storage"], folder.name) if "storage" in asked else None
        budget = budget_of(asked)
        sweep, noted, attributes = question.new(folder.name, asked, wish, console)
    check_budget(budget, sweep, _gpus(budget, sweep, wish, asked))
    where = f"  storage {storage}" if storage else ""
    where += f"  ledger {database}" if database else ""
    console.print(f"sweep {sweep.name}  results {folder.path}{where}  tracking {uri}", highlight=False, soft_wrap=True)
    judge, grow = question.judge(sweep, noted)
    try:
        return conduct(
            folder,
            sweep,
            tracking_uri=uri,
            wish=wish,
            address=asked.get("address"),
            database=database,
            storage=storage,
            judge=judge,
            grow=grow,
            noted={**attributes, question.name: {**noted, "budget": budget.to_dict()}},
            console=console,
            began=began,
            retries=retries,
            retry_failed=bool(asked.get("retry_failed")),
            drift=drift,
            budget=budget,
            exits=exits,
        )
    except Exception as error:  # what a full disk raises depends on who was writing
        problem = None if isinstance(error, ValueError) else storage_problem(error)
        if problem is None:
            raise
        raise StorageLost(
            f"the sweep stopped, because it could not write to {folder.path}: {problem}; what was written before is "
            f"whole: mend that, then go on with {resume_command(folder, question.name)}"
        ) from error


@contextlib.contextmanager
def errors_in_words() -> Iterator[None]:
    """What a command cannot do is one message on stderr: exit code 2 for what was asked, 1 for a disk that is full."""
    try:
        yield
    except StorageLost as error:
        fail(str(error), code=1)
    except ValueError as error:
        fail(str(error))


def with_threads(config: TrainConfig, asked: Mapping[str, Any], wish: Wish, num_trials: int) -> TrainConfig:
    """The config with torch's threads decided: they are part of what decides a result's last bits."""
    if asked.get("address") is None:
        machine = this_machine(count_gpus=wish.needs_gpus(config))
        cpus = place(wish, machine, num_trials, config).cpus
    else:
        cpus = (wish.cpus_per_trial or wish.workers_per_trial) / wish.workers_per_trial
    return dataclasses.replace(config, threads=choose_threads(config, cpus))


def sweep_name(question: Question, asked: Mapping[str, Any]) -> str:
    short = str(asked.get("task", "digits")).rpartition(":")[2].lower() or "task"
    return checked_name(str(asked.get("name") or f"{question.name}-{short}-{time.strftime('%Y%m%d-%H%M%S')}"))


def num_seeds_of_flags(asked: Mapping[str, Any], default: int) -> int:
    num_seeds = number_of(asked, "seeds", int)
    if num_seeds is None:
        return default
    if num_seeds < 1:
        raise ValueError(f"--seeds {num_seeds} must be at least 1; 3 is a good start")
    return int(num_seeds)


def print_end(outcome: Outcome, table: Table, question: str) -> None:
    """The answer on stdout: the table, what failed, the verdict, where everything is, and what to try next."""
    result, folder = outcome.result, outcome.folder
    # A table fits itself into a terminal; a pipe or a file gets whole lines, however long.
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 1000)
    console.print(table)
    for trial in result.trials:
        if trial.state == "failed" and trial.reason:
            kind = trial.failures[-1]["kind"] if trial.failures else "failed"
            console.print(f"trial {trial.number} failed: {kind}: {trial.reason.strip().splitlines()[-1]}", markup=False)
    console.print(f"\n{result.verdict}\n", markup=False)
    for remark in outcome.remarks:
        console.print(remark, markup=False)
    report = outcome.report
    if report is not None and report.diagnosis:
        console.print(report.diagnosis, markup=False)
    console.print(f"results  {folder.path}", markup=False)
    if report is not None:
        console.print(f"report   {report.page}", markup=False)
    console.print(f"MLflow   {mlflow_command(result.tracking_uri)}", markup=False)
    console.print(f"Optuna   {dashboard_command(folder)}", markup=False)
    console.print(f"resume   {resume_command(folder, question)}", markup=False)
    if anywhere := elsewhere_command(folder, question):
        console.print(f"         {anywhere}  # from any machine", markup=False)
    if report is not None and report.step is not None:
        console.print(f"next     {report.step.command}\n         {report.step.why}", markup=False)


def leave(code: int) -> NoReturn:
    """End the process of a command. All is written, and Ray is stopped: taking the interpreter down in order would
    cost another second."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _gpus(budget: Budget, sweep: Sweep, wish: Wish, asked: Mapping[str, Any]) -> float | None:
    """What a trial gets, as far as it can be known here and matters."""
    if budget.max_gpu_hours is None or asked.get("address") is not None:
        return None
    return place(wish, this_machine(count_gpus=True), sweep.num_planned, sweep.train).gpus_per_trial


def _retries(asked: Mapping[str, Any]) -> int:
    retries = number_of(asked, "retries", int)
    if retries is None:
        return DEFAULT_RETRIES
    if retries < 0:
        raise ValueError(f"--retries {retries} must be at least 0")
    return int(retries)
