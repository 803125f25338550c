"""Going on with a sweep: which one is meant, and what of its definition may change.

Knows flags and definitions, and nothing of how trials run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeps.cli import number_of
from sweeps.ledger import Ledger
from sweeps.store import Folder, checked_name, sweeps_in
from sweeps.sweep import Sweep, split_params
from trainable.config import TrainConfig
from trainable.task import absolute_spec


def resumed(
    results: Path, asked: Mapping[str, Any], question: str, lrs: list[float] | None
) -> tuple[Folder, Sweep, str]:
    """The sweep to go on with, its definition with what the flags may change, and its tracking store."""
    present = sweeps_in(results)
    name = asked["resume"]
    if name:
        folder = Folder(results / checked_name(name))
        if not folder.ledger.is_file():
            names = ", ".join(found.name for found in present[:10]) or "none"
            raise ValueError(f"--resume {name}: there is no such sweep in {results}; there are: {names}")
    else:
        left = {"running", "waiting", "failed"} if asked.get("retry_failed") else {"running", "waiting"}
        unfinished = [found for found in present if _has(found, left)]
        if not unfinished:
            raise ValueError(
                f"--resume: there is no unfinished sweep in {results}; give a name to extend a finished one"
            )
        folder = unfinished[0]
    ledger = Ledger(folder.ledger)
    try:
        sweep, uri = ledger.sweep, str(ledger.attribute("tracking_uri"))
    finally:
        ledger.close()
    if sweep.question != question:
        raise ValueError(f"--resume {folder.name}: it is a {sweep.question} sweep; resume it with that command")
    return folder, _changed(sweep, asked, lrs), uri


def _has(folder: Folder, states: set[str]) -> bool:
    """Whether a sweep has trials in one of these states."""
    ledger = Ledger(folder.ledger)
    try:
        return any(record.state in states for record in ledger.trials())
    finally:
        ledger.close()


def _changed(sweep: Sweep, asked: Mapping[str, Any], lrs: list[float] | None) -> Sweep:
    """The definition with more learning rates and more epochs, where asked for. Any other change would make old
    and new trials incomparable: ValueError lists what differs."""
    differences: list[str] = []
    train, task_settings = split_params(asked["set"])
    if "epochs" in asked:
        if "epochs" in train:
            raise ValueError(f"--epochs {asked['epochs']} and --set epochs={train['epochs']} say it twice; keep one")
        train["epochs"] = number_of(asked, "epochs", int)
    stored = {"task": sweep.task, "name": sweep.name, "seed": sweep.train.seed}
    for flag, old in stored.items():
        if flag in asked:
            new = number_of(asked, flag, int) if flag == "seed" else str(asked[flag])
            new = absolute_spec(new) if flag == "task" else new
            if new != old:
                differences.append(f"{flag}: {old} -> {new}")
    config = TrainConfig.from_dict({**sweep.train.to_dict(), **train})
    if config.epochs < sweep.train.epochs:
        differences.append(f"epochs: {sweep.train.epochs} -> {config.epochs} (a resume can only add)")
    differences += [
        f"{name}: {old} -> {config.to_dict()[name]}"
        for name, old in sweep.train.to_dict().items()
        if config.to_dict()[name] != old and name not in ("epochs", "stall_s")
    ]
    differences += [
        f"task.{name}: {sweep.task_settings.get(name, 'default')} -> {value}"
        for name, value in task_settings.items()
        if sweep.task_settings.get(name) != value
    ]
    points = sweep.points
    if lrs is not None:
        known = [point["lr"] for point in sweep.points]
        missing = [lr for lr in known if lr not in lrs]
        if missing:
            differences.append(f"lrs: {', '.join(f'{lr:g}' for lr in missing)} left out (a resume can only add)")
        points = (*sweep.points, *({"lr": lr} for lr in lrs if lr not in known))
    if differences:
        raise ValueError(
            f"--resume {sweep.name} cannot change what its finished trials were trained with: "
            f"{'; '.join(differences)}; leave these out, or start a new sweep with --name"
        )
    return dataclasses.replace(sweep, points=points, train=config)


def resume_command(folder: Folder, question: str = "lr_scan") -> str:
    """What goes on with, or extends, a sweep."""
    results = folder.path.parent
    where = "" if results == Path.cwd() / "results" else f' --results "{results}"'
    return f"python -m sweeps.{question} --resume {folder.name}{where}"
