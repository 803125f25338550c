"""Going on with a sweep: which one is meant, and what of its definition may change.

Knows flags and definitions, and nothing of how trials run.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeps.cli import shared_settings
from sweeps.record.drift import data_fingerprint, differences, identity
from sweeps.record.elsewhere import fetched
from sweeps.record.home import move
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder, checked_name, existing_sweep, sweeps_in
from sweeps.running.account import ENDED_BY
from sweeps.sweep import Sweep
from sweeps.tracking.moved import present_store
from trainable.config import TrainConfig
from trainable.objects import above
from trainable.task import absolute_settings, absolute_spec, load_task

FREE = ("epochs", "stall_s")  # what a resume may change: nothing that is trained already depends on it


@dataclass(frozen=True)
class Resumed:
    """A sweep to go on with: its definition, with what was asked to change, and where it is tracked.

    `noted`: what the question keeps in the ledger beside the definition.
    `drift`: what makes its later trials incomparable to the earlier ones, where that was allowed.
    """

    folder: Folder
    sweep: Sweep
    noted: dict[str, Any]
    uri: str
    drift: list[str]


# What a question's own flags make of a definition, given what the ledger noted for it: that, what is to be noted now,
# and what is refused.
Grown = Callable[[Sweep, Mapping[str, Any] | None], tuple[Sweep, dict[str, Any], list[str]]]


def resumed(results: Path, asked: Mapping[str, Any], question: str, grown: Grown) -> Resumed:
    """The sweep to go on with. Raises ValueError where there is none, or where the flags, the task's code, its
    data or torch differ from what its trials were trained with, unless `--allow-drift` was given."""
    name = asked["resume"]
    if name:
        if "storage" in asked:
            folder = fetched(results, checked_name(name), asked["storage"], asked.get("ledger"), "--resume")
        else:
            folder = existing_sweep(results, name, "--resume")
            if "ledger" in asked:
                move(folder.ledger, asked["ledger"])
    elif given := [flag for flag in ("ledger", "storage") if flag in asked]:
        raise ValueError(
            f"--{given[0]} with --resume says where that of one sweep is now: name the sweep, --resume NAME"
        )
    else:
        left = {"running", "waiting", "failed"} if asked.get("retry_failed") else {"running", "waiting"}
        unfinished = [found for found in sweeps_in(results) if _has(found, left)]
        if not unfinished:
            raise ValueError(
                f"--resume: there is no unfinished sweep in {results}; give a name to extend a finished one"
            )
        folder = unfinished[0]
    ledger = Ledger(folder.ledger)
    try:
        old, uri = ledger.sweep, present_store(folder, ledger)
        known, data = ledger.attribute("identity"), ledger.attribute("data")
        noted = ledger.attribute(question)
    finally:
        ledger.close()
    if old.question != question:
        raise ValueError(f"--resume {folder.name}: it is a {old.question} sweep; resume it with that command")
    sweep, refused, drift = _changed(old, asked, known)
    sweep, noted, too = grown(sweep, noted)
    refused += too
    if known is not None:
        drift += differences(known, identity(sweep))
    if refused or (drift and not asked.get("allow_drift")):
        raise ValueError(_refusal(folder.name, refused, drift))
    # Last, because it takes seconds: the data themselves.
    if data is not None:
        key, before = next(iter(data.items()))
        now = data_fingerprint(sweep.task, key)
        if now is not None and now != before:
            drift += differences({"data": before}, {"data": now})
            if not asked.get("allow_drift"):
                raise ValueError(_refusal(folder.name, refused, drift))
    return Resumed(folder, sweep, noted, uri, drift)


def _refusal(name: str, refused: list[str], drift: list[str]) -> str:
    way_out = "" if refused else ", or record them and go on with --allow-drift"
    return (
        f"--resume {name} cannot change what its finished trials were trained with: "
        f"{'; '.join([*refused, *drift])}; leave these out, start a new sweep with --name{way_out}"
    )


def _has(folder: Folder, states: set[str]) -> bool:
    """Whether a sweep has trials in one of these states, and was not ended by its budget."""
    ledger = Ledger(folder.ledger)
    try:
        return ledger.attribute(ENDED_BY) is None and any(record.state in states for record in ledger.trials())
    finally:
        ledger.close()


def _changed(
    sweep: Sweep, asked: Mapping[str, Any], known: Mapping[str, str] | None
) -> tuple[Sweep, list[str], list[str]]:
    """The definition with everything that the flags of all questions change; what of it is refused, what is a drift.

    More epochs are neither, nor is the same task in another place.
    """
    refused: list[str] = []
    drift: list[str] = []
    if "name" in asked and str(asked["name"]) != sweep.name:
        refused.append(f"name: {sweep.name} -> {asked['name']}")
    train, task_settings = shared_settings(asked)
    config = TrainConfig.from_dict({**sweep.train.to_dict(), **train})
    if config.epochs < sweep.train.epochs:
        refused.append(f"epochs: {sweep.train.epochs} -> {config.epochs} (a resume can only add)")
    old, new = sweep.train.to_dict(), config.to_dict()
    drift += [f"{name}: {old[name]} -> {new[name]}" for name in old if old[name] != new[name] and name not in FREE]
    task = absolute_spec(str(asked["task"])) if "task" in asked else sweep.task
    try:
        same = {name for name, value in task_settings.items() if sweep.task_settings.get(name) == value}
        task_settings = {
            name: value for name, value in absolute_settings(task, task_settings).items() if name not in same
        }
        load_task(task, {**sweep.task_settings, **task_settings})
    except ValueError as error:
        if "task" in asked:
            raise ValueError(f"--resume {sweep.name}: task: {sweep.task} -> {task}: {error}") from error
        raise ValueError(f"--resume {sweep.name}: {error}; say with --task where it is now") from error
    drift += [
        f"task.{name}: {sweep.task_settings.get(name, 'default')} -> {value}"
        for name, value in task_settings.items()
        if sweep.task_settings.get(name) != value
    ]
    settings = {**sweep.task_settings, **task_settings}
    changed = dataclasses.replace(sweep, train=config, task=task, task_settings=settings)
    if task != sweep.task and (known is None or differences(known, {**known, **identity(changed)})):
        drift.append(f"task: {sweep.task} -> {task}")
    return changed, refused, drift


def resume_command(folder: Folder, question: str = "lr_scan") -> str:
    """What goes on with, or extends, a sweep."""
    results = folder.path.parent
    where = "" if results == Path.cwd() / "results" else f' --results "{results}"'
    return f"python -m sweeps.{question} --resume {folder.name}{where}"


def elsewhere_command(folder: Folder, question: str) -> str | None:
    """What goes on with a sweep from a machine that has nothing of it; None where none can."""
    if folder.storage is None or folder.ledger != folder.pointer:
        return None
    return f"python -m sweeps.{question} --resume {folder.name} --storage {shlex.quote(above(folder.storage))}"
