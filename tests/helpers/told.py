"""Sweeps that nobody trained: a ledger and a history of what trials would have said, for tests of answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.sweep import Sweep
from trainable.config import TrainConfig

STEPS = 10  # an epoch
BEGAN_MS = 1_800_000_000_000


@dataclass(frozen=True)
class Said:
    """What became of a trial. train, val: a loss for each epoch; more: further metrics of every report; start_s: of its
    first attempt, breaks: epoch -> seconds of a pause before it."""

    state: str = "complete"
    train: Sequence[float] = (1.0, 0.8, 0.7)
    val: Sequence[float] = (1.1, 0.9, 0.8)
    reason: str | None = None
    more: Mapping[str, float] = field(default_factory=dict)
    start_s: float = 0.0
    breaks: Mapping[int, float] = field(default_factory=dict)


def scan(folder: Path, lrs: Sequence[float], said: Sequence[Said], **settings: Any) -> Folder:
    points = settings.pop("points", tuple({"lr": lr} for lr in lrs))
    return _told(
        folder,
        Sweep(name=folder.name, question="lr_scan", task="digits", train=_train(settings), points=points, **settings),
        said,
        {"lr_scan": {"asked": list(lrs), "extend_edges": False, "range": None, "budget": {}}},
    )


def search(
    folder: Path, space: Mapping[str, Any], said: Sequence[tuple[Mapping[str, Any], Said]], **settings: Any
) -> Folder:
    points = tuple(params for params, _ in said)[:: settings.pop("each", 1)]  # of several seeds one
    settings.setdefault("num_trials", len(points))
    sweep = Sweep(
        name=folder.name,
        question="search",
        task="digits",
        train=_train(settings),
        space=space,
        points=points,
        **settings,
    )
    return _told(folder, sweep, [one for _, one in said], {"search": {"budget": {}}})


def _train(settings: dict[str, Any]) -> TrainConfig:
    return TrainConfig(threads=1, epochs=settings.pop("epochs", 3), **settings.pop("train", {}))


def _told(path: Path, sweep: Sweep, said: Sequence[Said], noted: Mapping[str, Any]) -> Folder:
    folder = Folder(path)
    path.mkdir(parents=True)
    where = {"sweep_id": "x", "tracking_uri": f"sqlite:///{path.parent.parent / 'mlflow.db'}", "folder": str(path)}
    ledger, history = Ledger.create(folder.ledger, sweep, {**where, **noted}), History(folder.history)
    ledger.note("spent", {"seconds": 12.0, "gpu_seconds": 0.0})
    for number, one in enumerate(said):
        if one.state == "waiting":
            continue
        ledger.begin(number)
        clock_s = one.start_s
        for index, train in enumerate(one.train):
            clock_s += 1.0 + one.breaks.get(index, 0.0)
            report = _report(index, train, one, clock_s)
            history.append(number, {key: value for key, value in report.items() if key not in ("number", "notes")})
            ledger.report(number, report)
        if one.state != "running":
            ledger.finish(number, one.state, reason=one.reason)  # type: ignore[arg-type]
    ledger.close()
    return folder


def _report(index: int, train: float, said: Said, clock_s: float) -> dict[str, Any]:
    before = 2.3 if index == 0 else said.train[index - 1]
    losses = [before + (train - before) * (step + 1) / STEPS for step in range(STEPS)]
    if index == 0:
        losses[0] = 2.3
    metrics = {"train_loss": train, **said.more}
    if index < len(said.val):
        metrics["val_loss"] = said.val[index]
    return {
        "number": index + 1,
        "report": index + 1,
        "time_ms": BEGAN_MS + int(1000 * clock_s),
        "epoch": index + 1.0,
        "step": (index + 1) * STEPS,
        "total_steps": 3 * STEPS,
        "first_step": index * STEPS,
        "metrics": {name: value for name, value in metrics.items() if math.isfinite(value)},
        "curves": {"loss": losses, "lr": [0.1] * STEPS, "grad_norm": losses, "grad_norm_clipped": losses},
        "samples_per_s": 1.0,
        "seconds": index + 1.0,
        "data_wait_share": 0.0,
        "peak_mem_gib": 0.0,
        "num_params": 10,
        "latency_ms": None,
        "notes": {},
    }
