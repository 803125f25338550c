"""digits: scikit-learn's bundled 1,797 real 8x8 images of handwritten digits, and an MLP.

Needs no download. torch and scikit-learn are imported where they are used, so that describing
this task (which a driver does before anything trains) costs neither import.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainable.limits import check_network
from trainable.task import Splits, Task

if TYPE_CHECKING:
    import numpy
    import torch
    from torch import Tensor, nn

    from trainable.release.fresh import Fresh

SHARES = {"train": 0.7, "val": 0.15, "test": 0.15}
NUM_PIXELS, NUM_CLASSES = 64, 10


@dataclass(frozen=True)
class Digits(Task):
    """Which digit is it? images: (B, 64) float in 0..1, labels: (B,) long in 0..9."""

    width: int = 64  # units of each hidden layer
    depth: int = 2  # hidden layers
    dropout: float = 0.0  # share of hidden units switched off in training

    def __post_init__(self) -> None:
        check_network(self.width, self.depth, self.dropout)

    def model(self) -> nn.Module:
        from trainable.mlp import mlp

        return mlp(NUM_PIXELS, NUM_CLASSES, self.width, self.depth, self.dropout)

    def space(self) -> dict[str, Any]:
        return {
            "lr": {"log": [1e-4, 1e-1]},
            "task.width": {"choice": [32, 64, 128]},
            "task.depth": {"int": [1, 4]},
            "task.dropout": {"float": [0.0, 0.5]},
        }

    def splits(self, seed: int) -> Splits:
        images, labels, parts = self._load(seed)
        return Splits(
            train=(images[parts["train"]], labels[parts["train"]]),
            val=(images[parts["val"]], labels[parts["val"]]),
            indices={name: parts[name].tolist() for name in ("train", "val")},
        )

    def test(self, seed: int) -> tuple[Tensor, ...]:
        images, labels, parts = self._load(seed)
        return images[parts["test"]], labels[parts["test"]]

    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        from torch.nn import functional

        return functional.cross_entropy(outputs, batch[1], reduction="sum")

    def metrics(self, outputs: Any, batch: tuple[Tensor, ...]) -> dict[str, torch.Tensor]:
        return {"accuracy": (outputs.argmax(1) == batch[1]).sum()}

    def fresh(self, path: Path, preparing: Mapping[str, Any]) -> Fresh:
        from trainable.release.fresh import read_arrays

        return read_arrays(path, preparing["parts"], NUM_CLASSES)

    def _load(self, seed: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        import torch

        from trainable.data import stratified_split

        table = _read_table()
        images = torch.from_numpy(table[:, :NUM_PIXELS]).float() / 16  # pixels are 0..16
        labels = torch.from_numpy(table[:, NUM_PIXELS]).long()
        return images, labels, stratified_split(labels, SHARES, seed)


def _read_table() -> numpy.ndarray:
    """(1797, 65): the pixels of each image, then its label, as scikit-learn has them.

    Its file is read without importing scikit-learn where it can be: the import takes a second, this data
    a hundredth of one, and every trial's process pays.
    """
    import numpy

    package = importlib.util.find_spec("sklearn")
    if package is not None and package.submodule_search_locations:
        file = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
        if file.is_file():
            return numpy.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return numpy.column_stack([images, labels])
