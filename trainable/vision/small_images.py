"""SmallImages: the task of telling the classes of an official set of small images apart, with a small CNN.

mnist, fashion_mnist and cifar10 are this with their own names and numbers. Imports no torch by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trainable.task import Splits, Task

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from trainable.release.fresh import Fresh

NUM_CLASSES = 10
MAX_DEPTH = 4  # halved four times, 28 pixels are one


@dataclass(frozen=True)
class SmallImages(Task):
    """Which of ten classes is it? images: (B, C, H, W) uint8, labels: (B,) long in 0..9.

    train and val are of the official train part, stratified; the official test part is `test`. Without a copy in
    `root` (default: ~/.cache/steadysweep/data) the set is downloaded, by torchvision, which also verifies it.
    """

    root: Path = Path("~/.cache/steadysweep/data")  # folder of the sets, as torchvision arranges them
    download: bool = True  # fetch what is missing; false: never touch the network
    val_share: float = 0.1  # of the official train part
    width: int = 32  # channels of the first stage; each next has twice as many
    depth: int = 2  # stages, each of which halves the image
    dropout: float = 0.0  # share of features switched off before the last layer
    flip: bool = False  # mirror training images left to right at random
    shift: float = 0.0  # move training images at random, by up to this share of their side

    name: ClassVar[str]  # of the class in torchvision.datasets
    side: ClassVar[int]  # of an image, in pixels
    mean: ClassVar[tuple[float, ...]]  # of each channel over the official train part, as published
    deviation: ClassVar[tuple[float, ...]]

    def __post_init__(self) -> None:
        if not 0 < self.val_share < 1:
            raise ValueError(f"val_share={self.val_share} must be above 0 and below 1")
        if self.width < 1 or not 1 <= self.depth <= MAX_DEPTH:
            raise ValueError(f"width={self.width} must be at least 1 and depth={self.depth} 1 to {MAX_DEPTH}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must be at least 0 and below 1")
        if not 0 <= self.shift <= 0.5:
            raise ValueError(f"shift={self.shift} must be 0 to 0.5")

    def model(self) -> nn.Module:
        from trainable.vision.network import small_cnn, with_pixels

        network = small_cnn(len(self.mean), self.side, NUM_CLASSES, self.width, self.depth, self.dropout)
        return with_pixels(network, self.mean, self.deviation)

    def space(self) -> dict[str, Any]:
        return {
            "lr": {"log": [1e-4, 3e-2]},
            "batch_size": {"choice": [64, 128, 256]},
            "task.width": {"choice": [16, 32, 64]},
            "task.depth": {"int": [1, MAX_DEPTH]},
            "task.dropout": {"float": [0.0, 0.5]},
        }

    def splits(self, seed: int) -> Splits:
        from trainable.data import stratified_split
        from trainable.vision.official import read_official

        images, labels = read_official(self.name, self.root, train=True, download=self.download)
        parts = stratified_split(labels, {"train": 1 - self.val_share, "val": self.val_share}, seed)
        return Splits(
            train=(images[parts["train"]], labels[parts["train"]]),
            val=(images[parts["val"]], labels[parts["val"]]),
            indices={name: part.tolist() for name, part in parts.items()},
        )

    def test(self, seed: int) -> tuple[Tensor, ...]:
        """The official test part: the same for every seed."""
        from trainable.vision.official import read_official

        return read_official(self.name, self.root, train=False, download=self.download)

    def preparing(self, seed: int) -> dict[str, Any]:
        shapes = {"uint8": [len(self.mean), self.side, self.side], "int64": []}
        return {"parts": [{"dtype": dtype, "shape": shape} for dtype, shape in shapes.items()]}

    def fresh(self, path: Path, preparing: Mapping[str, Any]) -> Fresh:
        from trainable.release.fresh import read_arrays

        return read_arrays(path, preparing["parts"], NUM_CLASSES)

    def augment(self, batch: tuple[Tensor, ...], generator: torch.Generator) -> tuple[Tensor, ...]:
        from trainable.vision.moves import moved

        return moved(batch[0], self.flip, self.shift, generator), *batch[1:]

    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        from torch.nn import functional

        return functional.cross_entropy(outputs, batch[1], reduction="sum")

    def metrics(self, outputs: Any, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return {"accuracy": (outputs.argmax(1) == batch[1]).sum()}
