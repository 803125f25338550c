"""Small real data in the formats that the tasks read: MNIST's idx files, CIFAR-10's pickles, images, CSV files.

The content is scikit-learn's bundled digits and tables; torchvision's own readers and checksums are used on it.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import pickle
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
from PIL import Image
from sklearn import datasets as bundled
from torchvision import datasets

NUM_TRAIN, NUM_TEST = 300, 60


def digits(side: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """(360, side, side) uint8 real digits, enlarged and framed in black, and their labels."""
    images, labels = bundled.load_digits(return_X_y=True)
    count, factor = NUM_TRAIN + NUM_TEST, side // 8
    enlarged = numpy.kron(images[:count].reshape(-1, 8, 8) * 15, numpy.ones((factor, factor)))
    margin = (side - 8 * factor) // 2
    framed = numpy.pad(enlarged, ((0, 0), (margin, margin), (margin, margin)))
    return framed.astype(numpy.uint8), labels[:count]


def write_idx(root: Path, name: str) -> list[tuple[str, str]]:
    """A set of MNIST's family in its published form; (file name, md5) of each, as torchvision lists them."""
    images, labels = digits(28)
    folder = root / name / "raw"
    folder.mkdir(parents=True)
    resources = []
    for part, rows in (("train", slice(0, NUM_TRAIN)), ("t10k", slice(NUM_TRAIN, None))):
        for kind, array in (("images-idx3", images[rows]), ("labels-idx1", labels[rows].astype(numpy.uint8))):
            # http://yann.lecun.com/exdb/mnist: two zero bytes, 8 for unsigned bytes, the number of dimensions, each
            # dimension as a big-endian 32 bit number, then the bytes.
            header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            path = folder / f"{part}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(header + array.tobytes()))
            resources.append((path.name, md5_of(path)))
    return resources


def write_cifar10(root: Path) -> dict[str, Any]:
    """CIFAR-10 as its published archive; what torchvision knows of its checksums, by the attribute's name."""
    grey, labels = digits(32)
    images = numpy.repeat(grey[:, None], 3, axis=1).reshape(len(grey), -1)
    folder = root / "made" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    bounds = numpy.linspace(0, NUM_TRAIN, 6).astype(int)
    parts = {f"data_batch_{n + 1}": slice(bounds[n], bounds[n + 1]) for n in range(5)}
    for name, rows in {**parts, "test_batch": slice(NUM_TRAIN, None)}.items():
        entry = {"data": images[rows], "labels": labels[rows].tolist()}
        (folder / name).write_bytes(pickle.dumps(entry))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(number) for number in range(10)]}))
    archive = root / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, folder.name)
    sums = {path.name: md5_of(path) for path in folder.iterdir()}
    return {
        "tgz_md5": md5_of(archive),
        "train_list": [[name, sums[name]] for name in parts],
        "test_list": [["test_batch", sums["test_batch"]]],
        "meta": {**datasets.CIFAR10.meta, "md5": sums["batches.meta"]},
    }


@contextlib.contextmanager
def official(name: str, root: Path) -> Iterator[Path]:
    """Inside, torchvision takes the small set in `root` for the official one: only its list of checksums is another."""
    with pytest.MonkeyPatch.context() as patch:
        if name == "CIFAR10":
            for attribute, value in write_cifar10(root).items():
                patch.setattr(datasets.CIFAR10, attribute, value)
        else:
            patch.setattr(getattr(datasets, name), "resources", write_idx(root, name))
        yield root


def md5_of(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def write_images(root: Path, num_each: int = 12, classes: tuple[int, ...] = (0, 1, 2)) -> Path:
    """root/digit<n>/<number>.png or .jpg, 32 pixels wide and 40 high."""
    images, labels = digits(32)
    for label in classes:
        folder = root / f"digit{label}"
        folder.mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(images[labels == label][:num_each]):
            tall = numpy.pad(image, ((4, 4), (0, 0)))
            Image.fromarray(tall).save(folder / f"{number}.{'jpg' if number % 2 else 'png'}", quality=95)
    return root


def write_table(folder: Path, name: str) -> Path:
    """One of scikit-learn's tables as CSV; the target is called target, its classes by their names."""
    bunch = getattr(bundled, f"load_{name}")(as_frame=True)
    frame: pandas.DataFrame = bunch.frame
    if "target_names" in bunch and name != "digits":
        frame["target"] = [bunch.target_names[number] for number in frame["target"]]
    path = folder / f"{name}.csv"
    frame.to_csv(path, index=False)
    return path
