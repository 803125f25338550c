"""Every built-in task is trained by a sweep, in Ray's processes, on small data in the real formats."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainable.tasks.formats import write_cifar10, write_idx, write_images, write_table

# In a file of its own, because a trial's process must take the small set for the official one too.
SMALL_CIFAR = """
import pickle
from dataclasses import dataclass
from pathlib import Path
from torchvision import datasets
from trainable.tasks.cifar10 import Cifar10

for name, value in pickle.loads(Path(__file__).with_name("checksums.pickle").read_bytes()).items():
    setattr(datasets.CIFAR10, name, value)

@dataclass(frozen=True)
class Small(Cifar10):
    pass
"""


def prepared(name: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """The task and its settings, with data in `folder`."""
    if name == "table":
        return name, {"path": write_table(folder, "diabetes"), "target": "target"}
    if name == "image_folder":
        return name, {"root": write_images(folder / "pictures", 36), "size": 32, "arch": "resnet18"}
    if name == "char_lm":
        return name, {"context": 32, "width": 16, "depth": 1}
    if name == "cifar10":
        (folder / "checksums.pickle").write_bytes(pickle.dumps(write_cifar10(folder)))
        (folder / "small.py").write_text(SMALL_CIFAR)
        return "small.py:Small", {"root": folder, "download": False, "width": 8}
    torchvisions = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}[name]
    for file, _ in write_idx(folder, torchvisions):
        archive = folder / torchvisions / "raw" / file
        archive.with_suffix("").write_bytes(gzip.decompress(archive.read_bytes()))
        archive.unlink()  # it is not the official one, whose checksum is known
    return name, {"root": folder, "download": False, "width": 8}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "image_folder", "table", "char_lm"])
def test_a_sweep_trains_it(name: str, scan: Callable[..., tuple[int, Any]], launch_folder: Path) -> None:
    task, settings = prepared(name, launch_folder)
    given = [part for key, value in settings.items() for part in ("--set", f"task.{key}={value}")]
    code, result = scan("--task", task, *given, "--lrs", "3e-3", "1e-3", "--epochs", "2", "--set", "batch_size=16")
    assert code == 0
    assert [trial["state"] for trial in result["trials"]] == ["complete", "complete"]
    measures = {"train_loss", "val_loss", "val_mae" if name == "table" else "val_accuracy"}
    assert all(measures <= set(trial["metrics"]) for trial in result["trials"])
    # Better than knowing nothing: log(10) of ten classes, log(3) of three, a deviation of 1, log(92) of 92 characters.
    nothing = {"image_folder": 1.09, "table": 1.0, "char_lm": 4.5}.get(name, 2.3)
    assert min(trial["metrics"]["train_loss"] for trial in result["trials"]) < nothing
