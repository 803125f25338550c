"""A trained model out of a run's checkpoints, ready for inference: eval() and, where there is one, the average of
weights.

Knows no sweeps, and nothing of how a run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainable import checkpoint
from trainable.state import load_strictly
from trainable.task import Task


def load_model(
    task: Task, folders: Iterable[Path], which: str = "best", with_state: Callable[[Path], Path] = lambda folder: folder
) -> nn.Module:
    """The model of `task` with the weights of its best-scored checkpoint (`which="best"`) or its newest ("last"), on
    the CPU and in eval(). A damaged checkpoint is passed over for the next in order. with_state: what brings a folder's
    state, where only its manifest is here.

    Draws nothing from the caller's generators. Raises ValueError where there is no good checkpoint.
    """
    if which not in ("best", "last"):
        raise ValueError(f"which={which!r} must be best (the checkpoint with the best validation) or last (the newest)")
    problems = []
    for folder in in_order(folders, which):
        try:
            saved = checkpoint.read(with_state(folder))
        except checkpoint.CheckpointError as error:
            problems.append(str(error))
            continue
        return model_with(task, weights_of(saved))
    raise ValueError("there is no good checkpoint to load" + (f": {'; '.join(problems)}" if problems else ""))


def model_with(task: Task, weights: dict[str, torch.Tensor]) -> nn.Module:
    """A model of `task` with these weights, on the CPU and in eval(); draws nothing from the caller's generators."""
    with torch.random.fork_rng():
        model = task.model()
    load_strictly(model, weights)
    return model.eval()


def weights_of(saved: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What evaluation looked at: the average of weights, where one was kept."""
    weights: dict[str, torch.Tensor] = saved["average"]["model"] if saved["average"] else saved["model"]
    return weights


def in_order(folders: Iterable[Path], which: str) -> list[Path]:
    """The checkpoints there are, the wanted one first. What is best was said when they were written: it is what the
    sweep ranks by, see `saving.score_of`."""
    manifests: dict[Path, dict[str, Any]] = {}
    for folder in folders:
        try:
            manifests[folder] = checkpoint.read_manifest(folder)
        except checkpoint.CheckpointError:
            continue
    newest_first = sorted(manifests, key=lambda folder: (manifests[folder]["step"], str(folder)), reverse=True)
    if which == "last":
        return newest_first
    scored = [folder for folder in newest_first if manifests[folder].get("score") is not None]
    # Those without a score were saved in the middle of an epoch.
    return [*sorted(scored, key=lambda folder: manifests[folder]["score"]), *newest_first]
