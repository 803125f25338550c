"""`from sweeps import lr_scan, search`: all that the commands do, as functions for scripts and notebooks.

Each flag is a keyword of the same name, and means the same. Nothing is printed on stdout, and the process is never
ended: bad input is a ValueError in words. Knows no more of a sweep than the commands do.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from rich.console import Console

from sweeps.answers.result import SweepResult
from sweeps.command import Question, run_question, with_config_file
from sweeps.lr_scan import LR_SCAN
from sweeps.report import write
from sweeps.running.plan import Plan, plan_question
from sweeps.search import SEARCH
from trainable.settings import TASK_PREFIX
from trainable.task import Task

TaskLike = str | Task | type[Task]
PathLike = str | os.PathLike[str]


class Options(TypedDict, total=False):
    """What both questions take: the flags of the same names, see `python -m sweeps.search --help`."""

    epochs: int
    seed: int
    seeds: int
    set: Mapping[str, Any]
    config: PathLike
    max_time: str
    max_gpu_hours: float
    max_trial_time: str
    name: str
    results: PathLike
    resume: str | bool
    allow_drift: bool
    retries: int
    retry_failed: bool
    storage: str
    ledger: str
    tracking_uri: str
    trials_at_once: int
    cpus_per_trial: float
    gpus_per_trial: float | str
    workers_per_trial: int
    accelerator: str
    wait: bool
    address: str
    progress: str


def lr_scan(
    task: TaskLike | None = None,
    *,
    lrs: str | Sequence[float | str] | None = None,
    extend_edges: bool = False,
    **options: Unpack[Options],
) -> SweepResult:
    """Which learning rate? As `python -m sweeps.lr_scan`: `lr_scan("digits", lrs="1e-4..1e-1:7", seeds=3)`.

    task: a name, or a Task (class or instance) of a module or file that the trials' processes can import.
    progress="none" shows nothing while it runs. Raises ValueError in words for bad input, before any trial.
    """
    return _run(LR_SCAN, task, {"lrs": lrs, "extend_edges": extend_edges}, options)


def search(
    task: TaskLike | None = None,
    *,
    space: Mapping[str, Any] | str | Sequence[str] | Callable[[Any], Any] | None = None,
    trials: int | None = None,
    sampler: str | None = None,
    pruner: str | None = None,
    pruner_warmup: int | None = None,
    pruner_patience: int | None = None,
    metric: str | Sequence[str] | None = None,
    constraint: str | Sequence[str] | None = None,
    points: PathLike | Sequence[Mapping[str, Any]] | None = None,
    warm_start: PathLike | None = None,
    target: str | Sequence[str] | None = None,
    plateau: int | None = None,
    **options: Unpack[Options],
) -> SweepResult:
    """Which of everything? As `python -m sweeps.search`: `search("digits", space={"lr": {"log": [1e-4, 1e-1]}})`.

    task: a name, or a Task (class or instance) of a module or file that the trials' processes can import; space: a
    mapping, entries as on the command line, a file, or a function of such a module; None: the task's own.
    progress="none" shows nothing while it runs. Raises ValueError in words for bad input, before any trial.
    """
    own = _search_flags(locals())
    return _run(SEARCH, task, own, options)


def report(names: str | Sequence[str], *, results: PathLike = "results", to: PathLike | None = None) -> Path:
    """The report of a sweep made anew; of several names, a comparison. As `python -m sweeps.report NAME [NAME ...]`.

    Returns the page, beside which its figures are. Raises ValueError in words for a sweep that is not there.
    """
    named = [names] if isinstance(names, str) else list(names)
    return write(named, Path(results), None if to is None else Path(to), Console(quiet=True))


def plan_lr_scan(
    task: TaskLike | None = None, *, lrs: str | Sequence[float | str] | None = None, **options: Unpack[Options]
) -> Plan:
    """What `lr_scan` with the same arguments would be: as `--plan`, trains nothing and writes nothing."""
    return plan_question(LR_SCAN, _asked(LR_SCAN, task, {"lrs": lrs}, options))


def plan_search(
    task: TaskLike | None = None,
    *,
    space: Mapping[str, Any] | str | Sequence[str] | Callable[[Any], Any] | None = None,
    trials: int | None = None,
    sampler: str | None = None,
    points: PathLike | Sequence[Mapping[str, Any]] | None = None,
    warm_start: PathLike | None = None,
    **options: Unpack[Options],
) -> Plan:
    """What `search` with the same arguments would be: as `--plan`, trains nothing and writes nothing."""
    return plan_question(SEARCH, _asked(SEARCH, task, _search_flags(locals()), options))


def _search_flags(arguments: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in arguments.items() if name not in ("task", "options")}
    if callable(found["space"]):
        found["space"] = _place_of(found["space"], "space", "my_space.py:space")
    return found


def _run(question: Question, task: TaskLike | None, own: Mapping[str, Any], options: Options) -> SweepResult:
    began = time.time()
    asked = _asked(question, task, own, options)
    return run_question(question, asked, began=began, exits=False).result


def _asked(question: Question, task: TaskLike | None, own: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """The arguments as the commands' flags: what is None or False was not asked for."""
    unknown = set(options) - set(Options.__annotations__)
    if unknown:
        raise TypeError(f"unknown argument {sorted(unknown)[0]!r}; known: {', '.join(Options.__annotations__)}")
    given: dict[str, Any] = {**own, **options}
    asked = {name: value for name, value in given.items() if value is not None and value is not False}
    if asked.get("resume") is True:
        asked["resume"] = ""
    settings = dict(asked.get("set", {}))
    if task is not None:
        asked["task"], fields = _named(task)
        for name, value in fields.items():
            if settings.setdefault(name, value) != value:
                raise ValueError(f"set: {name}={settings[name]!r}, and the task itself has {value!r}; keep one of them")
    asked["set"] = settings
    for name in ("results", "config", "warm_start"):
        if name in asked:
            asked[name] = str(asked[name])
    return with_config_file(question.flags(), asked)


def _named(task: TaskLike) -> tuple[str, dict[str, Any]]:
    """A task by a name under which a trial's process finds it, and those of its fields that are not its defaults."""
    if isinstance(task, str):
        return task, {}
    kind = task if isinstance(task, type) else type(task)
    if not isinstance(kind, type) or not issubclass(kind, Task):
        raise ValueError(f"task {task!r} must be a name such as digits, or a class or an instance of a trainable Task")
    spec = _place_of(kind, "task", f"my_task.py:{kind.__name__}")
    if isinstance(task, type):
        return spec, {}
    fields = inspect.signature(kind).parameters
    changed = {name: value for name, value in task.settings().items() if fields[name].default != value}
    return spec, {f"{TASK_PREFIX}{name}": value for name, value in changed.items()}


def _place_of(thing: Any, what: str, example: str) -> str:
    """`module:name` or `file.py:name` of a class or function. Raises ValueError for what a trial's process could
    not find: what was defined in a notebook, in the script itself, or inside a function."""
    module, name = thing.__module__, thing.__qualname__
    if module == "__main__" or module not in sys.modules or not name.isidentifier():
        where = "in a notebook or in the script that is running" if module == "__main__" else f"as {name} in {module}"
        raise ValueError(
            f"{what} {thing.__name__} is defined {where}, where the trials' processes cannot find it: put it into a "
            f"file of its own, at its top level, and give {example!r} or import it from there"
        )
    file = getattr(sys.modules[module], "__file__", None)
    found = importlib.util.find_spec(module) if "." in module or file is None else None
    if found is None and file is not None and "site-packages" not in Path(file).parts:
        return f"{Path(file).resolve()}:{name}"  # a file of the user's: also found where sys.path is another
    return f"{module}:{name}"
