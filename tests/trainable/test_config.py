"""TrainConfig: every knob is checked once, in words."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainable.config import TrainConfig


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lr": 0}, "lr=0.0 must be above 0"),
        ({"lr": "fast"}, "lr='fast' must be a number"),
        ({"lr": float("inf")}, "lr=inf must be a finite number"),
        ({"lr": True}, "lr=True must be a number"),
        ({"epochs": 1.5}, "epochs=1.5 must be a whole number"),
        ({"micro_batch": 0}, "micro_batch=0 must be at least 1"),
        ({"beta2": 1}, "beta2=1.0 must be below 1"),
        ({"compile": 1}, "compile=1 must be true or false"),
        ({"optimizer": "adamx"}, "optimizer='adamx' must be one of adamw, adam, sgd, rmsprop, muon"),
        ({"freeze": "head"}, "must be a list of names"),
        ({"lr_multipliers": [1]}, "must be a mapping"),
        ({"lr_multipliers": {"a": 0}}, "to train nothing there use freeze"),
        ({"clip_norm": 1, "clip_value": 1}, "choose one and set the other to null"),
        ({"nesterov": True}, "nesterov=true needs optimizer=sgd or muon"),
        ({"loss_scale": -1}, "loss_scale=-1.0 must be above 0"),
        ({"worker_start": "thread"}, "must be one of default, fork, spawn, forkserver"),
        ({"learning_rate": 1}, "unknown config key 'learning_rate'; .*known: lr, batch_size"),
        ({"weight_decy": 1}, "did you mean weight_decay"),
    ],
)
def test_refused_in_words(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainConfig.from_dict(values)


@given(
    lr=st.floats(1e-9, 1e3), batch_size=st.integers(1, 10**6), micro_batch=st.none() | st.integers(1, 10),
    freeze=st.lists(st.text(min_size=1)), multipliers=st.dictionaries(st.text(), st.floats(1e-3, 1e3)),
)  # fmt: skip
def test_plain_values_and_back(
    lr: float, batch_size: int, micro_batch: int | None, freeze: list[str], multipliers: dict[str, float]
) -> None:
    import json

    config = TrainConfig(
        lr=lr, batch_size=batch_size, micro_batch=micro_batch, freeze=tuple(freeze), lr_multipliers=multipliers
    )
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_numbers_as_yaml_gives_them() -> None:
    config = TrainConfig.from_dict({"epochs": 1e1, "lr": 1, "clip_norm": None})
    assert (config.epochs, config.lr, config.clip_norm) == (10, 1.0, None)
    assert isinstance(config.lr, float)


def test_the_split_follows_the_seed_unless_told() -> None:
    assert TrainConfig(seed=3).data_seed == 3
    assert TrainConfig(seed=3, split_seed=5).data_seed == 5


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("trainable, trainable.config, trainable.task", ["torch", "numpy"]),
        ("trainable.loop, trainable.tasks.digits", ["ray", "optuna", "mlflow", "sklearn", "matplotlib", "torchvision"]),
    ],
)
def test_what_is_not_needed_is_not_imported(modules: str, absent: list[str]) -> None:
    program = f"import sys, {modules}; print([name for name in {absent} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_torch_alone_is_enough() -> None:
    """As on a bare GPU machine: no numpy, and none of the sweeps' libraries."""
    program = """
import sys
for name in ("numpy", "sklearn", "ray", "optuna", "mlflow", "torchvision"):
    sys.modules[name] = None
import torch
from dataclasses import dataclass
from torch import nn
from trainable import loop
from trainable.config import TrainConfig
from trainable.task import Splits, Task

@dataclass(frozen=True)
class Plain(Task):
    def model(self): return nn.Linear(3, 1)
    def splits(self, seed): return Splits((torch.ones(8, 3),), (torch.ones(4, 3),))
    def loss(self, outputs, batch): return (outputs ** 2).sum()

task, config = Plain(), TrainConfig(batch_size=4, epochs=2, device="cpu", threads=1)
run = loop.start(task, config, task.splits(0))
loop.advance(run)
again = loop.start(task, config, task.splits(0))
again.load(run.state.save())
print(loop.advance(run).weights_sha256 == loop.advance(again).weights_sha256)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr
