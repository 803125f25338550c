"""How much of a GPU one trial takes: counted as torch and CUDA say, and in words where nothing could be tried."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trainable import probe
from trainable.config import TrainConfig
from trainable.memory import CONTEXT_BYTES
from trainable.peak import peak_of

GIB = 2**30
WITH_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def asked(*settings: dict[str, Any], task: str = "digits", **train: Any) -> dict[str, Any]:
    config = TrainConfig(threads=1, **train).to_dict()
    return {"task": task, "trials": [{"settings": one, "train": config} for one in settings]}


class Card:
    """A GPU that torch is told of; the steps themselves are made by the CPU. Bytes by the width of the model."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, taken: dict[int, int | Exception], others: int = 0) -> None:
        self.seen: list[int] = []
        total, kept, peak = 16 * GIB, GIB // 4, [0]
        device = type("Device", (), {"total_memory": total})()

        def tried(task: Any, config: TrainConfig, splits: Any) -> dict[str, Any]:
            self.seen.append(task.width)
            found = taken[task.width]
            if isinstance(found, Exception):
                raise found
            peak[0] = found
            return {}

        told = {
            "is_available": lambda: True,
            "get_device_properties": lambda index: device,
            "empty_cache": lambda: None,
            "reset_peak_memory_stats": lambda: peak.__setitem__(0, 0),
            "max_memory_reserved": lambda: peak[0],
            "memory_reserved": lambda: kept,
            "mem_get_info": lambda: (total - kept - others, total),
        }
        for name, said in told.items():
            monkeypatch.setattr(torch.cuda, name, said)
        monkeypatch.setattr(probe, "probe", tried)


@pytest.mark.parametrize(("others", "own"), [(GIB // 10, CONTEXT_BYTES), (GIB, GIB)])
def test_the_most_of_all_and_what_cuda_takes(others: int, own: int, monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(monkeypatch, {8: GIB, 64: 3 * GIB, 16: 2 * GIB}, others)
    assert peak_of(asked({"width": 8}, {"width": 64}, {"width": 16})) == {"taken": 3 * GIB + own, "total": 16 * GIB}
    assert card.seen == [8, 64, 16]


def test_one_that_does_not_fit_takes_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(monkeypatch, {8: GIB, 64: torch.OutOfMemoryError("CUDA out of memory")})
    assert peak_of(asked({"width": 64}, {"width": 8})) == {"taken": 16 * GIB, "total": 16 * GIB}
    assert card.seen == [64]


def test_what_cannot_be_tried_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that do not go together: the other trials say what they take. Where none can, why."""
    Card(monkeypatch, {8: GIB, 64: RuntimeError("shapes\n  do not fit")})
    assert peak_of(asked({"width": 64}, {"width": 8}))["taken"] == GIB + CONTEXT_BYTES
    assert peak_of(asked({"width": 64})) == {"error": "RuntimeError: shapes do not fit"}
    assert peak_of(asked({"width": 0}))["error"].startswith("ValueError: ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu() -> None:
    assert peak_of(asked({})) == {"error": "torch sees no GPU there"}


def test_the_driver_that_sends_it_needs_no_torch(tmp_path: Path) -> None:
    code = "import sys, sweeps.running.measuring; assert 'torch' not in sys.modules"
    root = str(Path(inspect.getfile(peak_of)).parents[1])
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": root}, check=True)


@WITH_GPU
def test_a_larger_model_takes_more() -> None:
    small = peak_of(asked({"width": 8}))
    large = peak_of(asked({"width": 8192}, batch_size=256))
    weights = 8192 * 8192 * 4
    assert CONTEXT_BYTES < small["taken"] < large["taken"] < large["total"]
    assert large["taken"] - small["taken"] > 3 * weights  # with their gradients and AdamW's two means
