"""Finished sweeps made in this process, without Ray: real trials by the real loop, kept by the real record keeper.

For tests of what comes after a sweep, which need many of them, each with something else amiss.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sweeps.record.drift import identity
from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder, attempt_folder
from sweeps.running.keeper import RecordKeeper
from sweeps.sweep import Sweep
from trainable import checkpoint, loop
from trainable.config import TrainConfig
from trainable.saving import score_of
from trainable.task import absolute_spec, load_task


def made_sweep(
    results: Path,
    *,
    name: str = "made",
    task: str = "digits",
    settings: Mapping[str, Any] | None = None,
    lrs: tuple[float, ...] = (1e-2,),
    left: int = 0,
    metric: str = "val_accuracy",
    mode: str = "max",
    **train: Any,
) -> Folder:
    """A search over learning rates whose last `left` trials have not begun; each of the others is complete."""
    sweep = Sweep(
        name=name,
        question="search",
        task=absolute_spec(task),
        task_settings=dict(settings or {}),
        train=TrainConfig(**{"epochs": 1, "threads": 1, "device": "cpu", **train}),
        points=tuple({"lr": lr} for lr in lrs),
        space={"lr": {"choice": list(lrs)}} if len(lrs) > 1 else {"lr": {"log": [1e-4, 1.0]}},
        num_trials=len(lrs),
        metric=metric,
        mode=mode,
    )
    folder = Folder(results / name)
    folder.path.mkdir(parents=True)
    uri = f"sqlite:///{results.resolve().parent / 'mlflow.db'}"
    where = {"tracking_uri": uri, "folder": str(folder.path.resolve())}
    noted = {"sweep_id": f"id-of-{name}", **where, "identity": identity(sweep), "search": {}}
    ledger = Ledger.create(folder.ledger, sweep, noted)
    history = History(folder.history)
    nobody: Any = SimpleNamespace(stopping_since=None, is_used_up=lambda running: False)
    keeper = RecordKeeper(ledger, history, nobody, nobody, lambda number: None)
    for number in range(len(lrs) - left):
        _train(folder, ledger, keeper, number)
    ledger.close()
    return folder


def _train(folder: Folder, ledger: Ledger, keeper: RecordKeeper, number: int) -> None:
    """What Tune has a trial do, without Tune."""
    config, settings = ledger.sweep.trial_config(ledger.begin(number).params)
    task = load_task(ledger.sweep.task, settings)
    splits = task.splits(config.data_seed)
    run = loop.start(task, config, splits)
    run.notes["data"] = splits.fingerprint()
    done, index = False, 0
    while not done:
        report = loop.advance(run)
        assert report.diverged is None
        keeper("", {"number": number, "report": json.dumps(dataclasses.asdict(report)), "done": False})
        place = folder.trials / attempt_folder(number, 1) / f"checkpoint_{index:06d}"
        score = score_of(report.metrics, ledger.sweep.ranked_by)
        checkpoint.write(place, run.state.save(), step=report.step, config=config.to_dict(), score=score)
        done, index = report.done, index + 1
    last = json.dumps(dataclasses.asdict(loop.advance(run)))
    keeper("", {"number": number, "report": last, "done": True})
    run.close()
