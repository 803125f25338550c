"""The official sets that torchvision knows: found, verified, downloaded where that is allowed, read.

A set that is not whole is an error that says which files to put where. Knows no task.
"""

from __future__ import annotations

import contextlib
import os
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import torch
from torch import Tensor
from torchvision import datasets
from torchvision.datasets.utils import check_integrity

SILENCE_S = 30  # of a server, after which a download has failed
# What reading a file raises that is not what it should be.
UNREADABLE = (RuntimeError, AssertionError, ValueError, TypeError, KeyError, IndexError, OSError)


def read_official(name: str, root: Path, *, train: bool, download: bool) -> tuple[Tensor, Tensor]:
    """images: (N, C, H, W) uint8, labels: (N,) long, of the official train or test part of `name`.

    name: the class in torchvision.datasets: MNIST, FashionMNIST or CIFAR10. Without `download` the network is never
    touched. Raises ValueError where the files are missing, damaged or cannot be fetched.
    """
    kind: Any = getattr(datasets, name)
    root = root.expanduser()
    if not _is_whole(kind, root):
        _complete(kind, root, download)
    try:
        found = kind(root, train=train)
    except UNREADABLE as error:
        raise ValueError(f"{_advice(kind, root)} ({type(error).__name__}: {error})") from error
    images = torch.as_tensor(found.data)
    images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
    return images.contiguous(), torch.as_tensor(found.targets).long()


def _complete(kind: Any, root: Path, download: bool) -> None:
    """Make the set whole from its archives, fetching them where that is allowed. One process at a time does it."""
    if not download and not all(check_integrity(path, md5) for path, md5 in _archives(kind, root)):
        raise ValueError(f"{_advice(kind, root)}; or let task.download=true fetch them")
    try:
        root.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(root / f"{kind.__name__}.lock"), _impatient():
            if _is_whole(kind, root):  # another process was here before
                return
            for path, md5 in _archives(kind, root):
                unpacked = path.with_suffix("")
                if unpacked.is_file() and check_integrity(path, md5) and not _is_unpacked(unpacked, path):
                    unpacked.unlink()  # torchvision takes any file of the right name for a good one
            kind(root, download=True)
    except UNREADABLE as error:
        raise ValueError(f"{_advice(kind, root)}; fetching failed: {' '.join(str(error).split())}") from error
    if not _is_whole(kind, root):
        raise ValueError(_advice(kind, root))


def _archives(kind: Any, root: Path) -> list[tuple[Path, str]]:
    """The files as they are published, and their md5."""
    if issubclass(kind, datasets.MNIST):
        return [(_raw(kind, root) / name, md5) for name, md5 in kind.resources]
    return [(root / kind.filename, kind.tgz_md5)]


def _raw(kind: Any, root: Path) -> Path:
    return root / str(kind.__name__) / "raw"


def _is_whole(kind: Any, root: Path) -> bool:
    if issubclass(kind, datasets.MNIST):
        return all(_is_unpacked(path.with_suffix(""), path) for path, _ in _archives(kind, root))
    parts = [*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"])]
    return all(check_integrity(root / kind.base_folder / name, md5) for name, md5 in parts)


def _is_unpacked(path: Path, archive: Path) -> bool:
    """Whether `path` is all that `archive` holds, by the checksum at its end: an interrupted unpacking leaves less."""
    if not path.is_file():
        return False
    if not archive.is_file():
        return True
    with archive.open("rb") as file:
        file.seek(-min(8, archive.stat().st_size), os.SEEK_END)
        return file.read(4) == zlib.crc32(path.read_bytes()).to_bytes(4, "little")


def _advice(kind: Any, root: Path) -> str:
    wanted = [
        f"{path.relative_to(root)} (md5 {md5}{'; the one there is damaged' if path.is_file() else ''})"
        for path, md5 in _archives(kind, root)
        if not check_integrity(path, md5)
    ]
    if not wanted:
        return f"{kind.__name__} in {root} has its archives, but what was unpacked from them is damaged: delete that"
    return f"{kind.__name__} is not whole in {root}: put there {', '.join(wanted)}, or set task.root to where they are"


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """Inside, a server that says nothing is given up on: by default it would be waited for without end."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENCE_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
