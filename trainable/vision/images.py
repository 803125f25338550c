"""An image file as pixels, and a Dataset of such files: decoded where they are asked for, in a loader's worker.

Knows no folders and no task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms.v2.functional import pil_to_tensor

# What Pillow raises for a file that is not the image its name promises.
UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)
IGNORED = -100  # the label of an image that could not be read: cross_entropy leaves it out
NUM_THREADS = 8


class Images(Dataset[Any]):
    """(image: (3, size, size) uint8, label: long) of each file.

    skip: a file that cannot be decoded is black and has the label -100, which counts for nothing; else ValueError.
    """

    def __init__(self, files: Sequence[Path], labels: Sequence[int], size: int, skip: bool) -> None:
        self.files = files
        self.labels = labels
        self._size = size
        self._skip = skip

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        try:
            return pixels_of(self.files[index], self._size), torch.tensor(self.labels[index])
        except UNREADABLE as error:
            if self._skip:
                return torch.zeros(3, self._size, self._size, dtype=torch.uint8), torch.tensor(IGNORED)
            raise ValueError(
                f"the image {self.files[index]} cannot be read ({error}); mend or remove it, "
                "or set task.on_unreadable=skip"
            ) from error


def pixels_of(path: Path, size: int) -> Tensor:
    """(3, size, size) uint8: the middle of the image, as large as it goes, shrunk or enlarged; transparent is white."""
    with Image.open(path) as opened:
        opened.draft("RGB", (size, size))  # a JPEG is decoded no larger than needed
        image = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I"):  # 16 bits of grey: Pillow's own conversion cuts off what is above 255
            image = image.convert("I").point(lambda value: value / 256).convert("L")
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        fitted = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BILINEAR)
    pixels: Tensor = pil_to_tensor(fitted)
    return pixels


def unreadable(files: Iterable[Path]) -> list[Path]:
    """Those that are no images by their header (PNG: by their checksums too). Nothing is decoded."""
    files = list(files)
    with ThreadPoolExecutor(NUM_THREADS) as pool:  # what takes time is the disk
        return [path for path, good in zip(files, pool.map(_has_header, files), strict=True) if not good]


def _has_header(path: Path) -> bool:
    try:
        with Image.open(path) as image:
            image.verify()
    except UNREADABLE:
        return False
    return True
