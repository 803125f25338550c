"""Five small real problems for answers.py: tables, images and text that scikit-learn ships, as plain tensors.

Each is a task as a user would bring it. Knows nothing of sweeps.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sklearn.datasets
import torch
from torch import Tensor, nn
from torch.nn import functional

from trainable.task import Splits, Task
from trainable.tasks.digits import Digits

CONTEXT = 12  # characters that the next one is guessed from
NUM_WINDOWS = 4000


def _split(inputs: Tensor, targets: Tensor, seed: int) -> Splits:
    """Four fifths for training; inputs that are numbers are standardized by these."""
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    cut = len(order) * 4 // 5
    train, val = order[:cut], order[cut:]
    if inputs.is_floating_point():
        inputs = (inputs - inputs[train].mean(0)) / inputs[train].std(0).clamp(min=1e-6)
    return Splits(train=(inputs[train], targets[train]), val=(inputs[val], targets[val]))


@functools.cache
def _table(name: str) -> tuple[Tensor, Tensor]:
    inputs, targets = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
    return torch.tensor(inputs).float(), torch.tensor(targets)


@dataclass(frozen=True)
class BreastCancer(Task):
    """Malign or benign, from 30 numbers; 569 samples."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2))

    def splits(self, seed: int) -> Splits:
        return _split(*_table("breast_cancer"), seed)

    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        return functional.cross_entropy(outputs, batch[1].long(), reduction="sum")


@dataclass(frozen=True)
class Diabetes(Task):
    """How far a disease went, from 10 numbers: a regression; 442 samples."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))

    def splits(self, seed: int) -> Splits:
        inputs, targets = _table("diabetes")
        targets = targets.float()
        return _split(inputs, ((targets - targets.mean()) / targets.std())[:, None], seed)

    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        return functional.mse_loss(outputs, batch[1], reduction="sum")


@dataclass(frozen=True)
class DigitsCnn(Digits):
    """The built-in digits, seen by a convolution with BatchNorm."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * 16, 10),
        )


@functools.cache
def _text() -> tuple[Tensor, int]:
    """The descriptions that scikit-learn ships with its data sets, as indices of characters; how many there are."""
    folder = Path(sklearn.datasets.__file__).parent / "descr"
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.rst")))
    known = sorted(set(text))
    index = {character: number for number, character in enumerate(known)}
    return torch.tensor([index[character] for character in text]), len(known)


@dataclass(frozen=True)
class Characters(Task):
    """The next character of English text, from the twelve before it."""

    def model(self) -> nn.Module:
        num = _text()[1]
        return nn.Sequential(
            nn.Embedding(num, 16), nn.Flatten(), nn.Linear(16 * CONTEXT, 64), nn.ReLU(), nn.Linear(64, num)
        )

    def splits(self, seed: int) -> Splits:
        text, _ = _text()
        chosen = torch.randperm(len(text) - CONTEXT, generator=torch.Generator().manual_seed(seed))[:NUM_WINDOWS]
        windows = text.unfold(0, CONTEXT + 1, 1)[chosen]
        return _split(windows[:, :CONTEXT], windows[:, CONTEXT], seed)

    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        return functional.cross_entropy(outputs, batch[1], reduction="sum")
