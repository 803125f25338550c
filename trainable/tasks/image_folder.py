"""image_folder: any folder of class folders of images, and any of torchvision's classification models.

Decoding happens in the loader's workers (`--set num_workers=4`), random moves and normalisation on the device.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainable.limits import check_shares
from trainable.task import Splits, Task

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from trainable.release.fresh import Fresh
    from trainable.vision.folder import Part
    from trainable.vision.images import Images


@dataclass(frozen=True)
class ImageFolder(Task):
    """Which class? images: (B, 3, size, size) uint8, labels: (B,) long, in the order of the class folders' names.

    root/<class>/<image> is split by the seed, stratified; root/train, root/val (or valid, validation) and root/test
    are respected where they are there. An image is shrunk to fill `size` pixels, what sticks out is cut off; grey,
    palette, transparent (on white) and 16 bit images are made RGB.
    """

    root: Path  # folder of class folders
    arch: str = "resnet18"  # a name in torchvision.models.list_models(module=torchvision.models)
    pretrained: bool = False  # begin with torchvision's weights, all but the last layer
    freeze_backbone: bool = False  # train the last layer alone
    size: int = 224  # pixels of each side, as the model sees it
    flip: bool = True  # mirror training images left to right at random
    shift: float = 0.125  # move training images at random, by up to this share of their side
    val_share: float = 0.15  # where root has no val folder of its own
    test_share: float = 0.15  # where root has no parts of its own
    on_unreadable: Literal["refuse", "skip"] = "refuse"  # an image that cannot be read

    def __post_init__(self) -> None:
        if self.size < 8:
            raise ValueError(f"size={self.size} must be at least 8 pixels")
        if not 0 <= self.shift <= 0.5:
            raise ValueError(f"shift={self.shift} must be 0 to 0.5")
        check_shares(self.val_share, self.test_share)

    def model(self) -> nn.Module:
        from trainable.vision import backbone as torchvision_models
        from trainable.vision.folder import classes_of
        from trainable.vision.network import with_pixels

        if self.freeze_backbone and not self.pretrained:
            warnings.warn("freeze_backbone without pretrained: the last layer sees random features", stacklevel=2)
        num_classes = len(classes_of(self._folder))
        network = torchvision_models.backbone(self.arch, num_classes, self.size, pretrained=self.pretrained)
        return with_pixels(network, torchvision_models.MEAN, torchvision_models.DEVIATION)

    def frozen(self) -> tuple[str, ...]:
        if not self.freeze_backbone:
            return ()
        from trainable.vision.backbone import all_but_head
        from trainable.vision.folder import classes_of

        names = all_but_head(self.arch, len(classes_of(self._folder)), self.size)
        return tuple(f"network.{name}" for name in names)

    def space(self) -> dict[str, Any]:
        return {
            "lr": {"log": [1e-5, 1e-2]},
            "batch_size": {"choice": [16, 32, 64]},
            "weight_decay": {"log": [1e-5, 1e-1]},
            "task.shift": {"choice": [0.0, 0.125, 0.25]},
        }

    def splits(self, seed: int) -> Splits:
        from trainable.vision.folder import source_of

        parts = self._parts(seed, ("train", "val"))
        for name, part in parts.items():
            if not part.files:
                raise ValueError(
                    f"{self._folder} has too few images: none is left for {name}; add some, or change shares"
                )
        return Splits(
            train=self._images(parts["train"]),
            val=self._images(parts["val"]),
            indices={name: list(part.indices) for name, part in parts.items()},
            source=source_of(self._folder, [path for part in parts.values() for path in part.files]),
        )

    def test(self, seed: int) -> Images:
        part = self._parts(seed, ("test",)).get("test")
        if part is None or not part.files:
            raise NotImplementedError(f"{self._folder} has no test part: no folder test/, or task.test_share is 0")
        return self._images(part)

    def preparing(self, seed: int) -> dict[str, Any]:
        from trainable.vision.folder import classes_of

        return {"classes": classes_of(self._folder)}

    def fresh(self, path: Path, preparing: Mapping[str, Any]) -> Fresh:
        """A folder of class folders, or of images, which then have no labels; or a single image."""
        from trainable.release.fresh import Fresh
        from trainable.vision.folder import arrived

        part, labelled = arrived(path, preparing["classes"], skip=self.on_unreadable == "skip")
        return Fresh(self._images(part), labelled)

    def features(self, batch: tuple[Tensor, ...], preparing: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Telling numbers of each image, a gap where it could not be read."""
        numbers = super().features(batch, preparing)
        return {name: values.masked_fill(batch[1] < 0, float("nan")) for name, values in numbers.items()}

    def augment(self, batch: tuple[Tensor, ...], generator: torch.Generator) -> tuple[Tensor, ...]:
        from trainable.vision.moves import moved

        return moved(batch[0], self.flip, self.shift, generator), *batch[1:]

    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        from torch.nn import functional

        return functional.cross_entropy(outputs, batch[1], reduction="sum")

    def weight(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Images, less those that could not be read: they have a label below 0."""
        return (batch[1] >= 0).sum()

    def metrics(self, outputs: Any, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return {"accuracy": (outputs.argmax(1) == batch[1]).sum()}

    def _parts(self, seed: int, wanted: tuple[str, ...]) -> dict[str, Part]:
        """What is for which part; the folder of a part that is not wanted is not looked into."""
        from trainable.vision.folder import find_parts

        shares = {"train": 1 - self.val_share - self.test_share, "val": self.val_share, "test": self.test_share}
        return find_parts(self._folder, shares, seed, wanted, skip=self.on_unreadable == "skip")

    def _images(self, part: Part) -> Images:
        from trainable.vision.images import Images

        return Images(part.files, part.labels, self.size, skip=self.on_unreadable == "skip")

    @property
    def _folder(self) -> Path:
        return self.root.expanduser()
