"""A folder of class folders: its classes, and which of its images are for which part.

Every file is looked into once, so that one that is no image is known before training. Knows no task.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

from trainable.data import stratified_split
from trainable.vision.images import unreadable

FOLDERS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
NUM_NAMED = 5  # files or classes in a message


@dataclass(frozen=True)
class Part:
    """Images of one part: their files, the class of each, and its number among those they were taken from."""

    files: Sequence[Path]
    labels: Sequence[int]
    indices: Sequence[int]

    def of(self, chosen: Iterable[int]) -> Part:
        """The images at the positions `chosen`."""
        rows = list(chosen)
        return Part(
            [self.files[row] for row in rows], [self.labels[row] for row in rows], [self.indices[row] for row in rows]
        )


def classes_of(root: Path) -> list[str]:
    """The names of the classes: the class folders, of train/ where there are parts, in order of name.

    Raises ValueError where there are less than two.
    """
    folders = _folders(root)
    folder = folders.get("train", root)
    names = _class_folders(folder)
    if len(names) < 2:
        loose = sum(is_image(entry) for entry in folder.iterdir())
        raise ValueError(
            f"{folder.absolute()} holds {f'only one class folder, {names[0]!r}' if names else 'no class folders'}"
            + (f", and {loose} images in none" if loose else "")
            + f"; arrange the images as {folder.name}/<class>/<image>, with two classes or more"
        )
    return names


def find_parts(
    root: Path, shares: Mapping[str, float], seed: int, wanted: Sequence[str], *, skip: bool
) -> dict[str, Part]:
    """The images of the `wanted` parts, as `root` arranges them, else split by `seed` in these shares, stratified.

    The folder of a part that is not wanted is not looked into. Raises ValueError for what cannot be trained on:
    an empty class, a class that train/ has not, a file that is no image (with `skip`: a warning, and it is left out).
    """
    classes = classes_of(root)
    folders = _folders(root)
    if "train" not in folders:
        return _split(_images(root, root, classes, 0, skip), dict(shares), seed, wanted)
    if "val" not in folders and {"train", "val"} & set(wanted):
        val = shares["val"]
        own = _split(
            _images(root, folders["train"], classes, 0, skip), {"train": 1 - val, "val": val}, seed, ("train", "val")
        )
    else:
        own, start = {}, 0
        for name in ("train", "val"):
            if {"train", "val"} & set(wanted):
                own[name] = _images(root, folders[name], classes, start, skip)
                start += len(own[name].files)
    if "test" in wanted and "test" in folders:
        own["test"] = _images(root, folders["test"], classes, 0, skip)
    return {name: own[name] for name in wanted if name in own}


def arrived(path: Path, classes: Sequence[str], *, skip: bool) -> tuple[Part, bool]:
    """Images that came after training, and whether they have labels: path/<class>/<image>, or images without.

    Raises ValueError for a class that training did not have, for no images, and for both at once.
    """
    if not path.exists():
        raise ValueError(f"there is no file or folder {path.absolute()}; give a folder of class folders, or of images")
    loose = sorted(entry for entry in ([path] if path.is_file() else path.iterdir()) if is_image(entry))
    folders = _class_folders(path) if path.is_dir() else []
    if loose and folders:
        raise ValueError(
            f"{path.absolute()} holds {len(loose)} images beside folders ({_some(folders)}); give images in the "
            "folders of their classes, or all without"
        )
    unknown = [name for name in folders if name not in classes]
    if unknown:
        raise ValueError(
            f"{path.absolute()} has folders of classes that training did not have: {_some(unknown)}; known are "
            f"{_some(list(classes))}"
        )
    if folders:
        return _images(path, path, list(classes), 0, skip), True
    if not loose:
        raise ValueError(f"{path.absolute()} holds no images (they end in {' '.join(IMG_EXTENSIONS)})")
    return _readable(Part(loose, [0] * len(loose), range(len(loose))), path, path, skip), False


def is_image(path: Path) -> bool:
    """By its name."""
    return path.is_file() and path.suffix.lower() in IMG_EXTENSIONS


def source_of(root: Path, files: Iterable[Path]) -> str:
    """A digest of names and sizes: the same wherever the folder lies."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root).as_posix()}:{path.stat().st_size};".encode())
    return digest.hexdigest()


def _folders(root: Path) -> dict[str, Path]:
    """The folders of the parts, where `root` has train/ and another of them."""
    if not root.is_dir():
        raise ValueError(f"there is no folder {root.absolute()}; set task.root to a folder of class folders")
    found = {part: root / name for part, names in FOLDERS.items() for name in names if (root / name).is_dir()}
    return found if "train" in found and len(found) > 1 else {}


def _class_folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _images(root: Path, folder: Path, classes: list[str], start: int, skip: bool) -> Part:
    """All images of the class folders of `folder`, numbered from `start`."""
    names = _class_folders(folder)
    unknown = [name for name in names if name not in classes]
    if unknown:
        raise ValueError(f"{folder.absolute()} has classes that train/ has not: {_some(unknown)}")
    numbers = {name: classes.index(name) for name in names}
    found = make_dataset(str(folder), numbers, IMG_EXTENSIONS, allow_empty=True) if names else []
    full = {number for _, number in found}
    empty = [name for name, number in numbers.items() if number not in full]
    if empty or not names:
        raise ValueError(
            f"{folder.absolute()} has class folders without images: {_some(empty) or 'all'}; fill or remove them "
            f"(images end in {' '.join(IMG_EXTENSIONS)})"
        )
    every = Part([Path(path) for path, _ in found], [number for _, number in found], range(start, start + len(found)))
    return _readable(every, root, folder, skip)


def _readable(every: Part, root: Path, folder: Path, skip: bool) -> Part:
    """Without the images that cannot be read, if `skip`."""
    bad = set(unreadable(every.files))
    if not bad:
        return every
    named = _some([path.relative_to(root).as_posix() for path in every.files if path in bad])
    if not skip:
        raise ValueError(
            f"{len(bad)} of {len(every.files)} images in {folder.absolute()} cannot be read: {named}; mend or remove "
            "them, or set task.on_unreadable=skip"
        )
    warnings.warn(f"{len(bad)} of {len(every.files)} images cannot be read and are left out: {named}", stacklevel=5)
    return every.of(row for row, path in enumerate(every.files) if path not in bad)


def _split(every: Part, shares: dict[str, float], seed: int, wanted: Sequence[str]) -> dict[str, Part]:
    rows = stratified_split(torch.tensor(every.labels), shares, seed)
    return {name: every.of(rows[name].tolist()) for name in wanted}


def _some(names: list[str]) -> str:
    return ", ".join(names[:NUM_NAMED]) + (f" and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else "")
