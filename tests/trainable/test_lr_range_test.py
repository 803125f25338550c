"""The rising-rate test: the loop's own steps under a rate that rises evenly, a function of the seed alone."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
import torch
from torch.nn import functional

from trainable import loop
from trainable.config import TrainConfig
from trainable.lr_range_test import HIGHEST, LOWEST, NUM_STEPS, main, rising_rate_test
from trainable.seeding import permutation
from trainable.tasks.digits import Digits


def test_every_step_is_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written out by hand with torch alone: clipped AdamW, the samples in the run's order, over two epochs and more."""
    lrs, losses = rising_rate_test(Digits(), TrainConfig(seed=3, batch_size=64, threads=1))
    task = Digits()
    images, labels = task.splits(3).train
    torch.manual_seed(3)
    model = task.model()
    biases = [parameter for name, parameter in model.named_parameters() if name.endswith("bias")]
    weights = [parameter for name, parameter in model.named_parameters() if name.endswith("weight")]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, fused=True)
    rows = [rows for epoch in range(3) for rows in permutation(len(labels), 3, epoch).split(64)]
    for step in range(50):
        for group in optimizer.param_groups:
            group["lr"] = LOWEST * (HIGHEST / LOWEST) ** (step / (NUM_STEPS - 1))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images[rows[step]]), labels[rows[step]])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert losses[step] == pytest.approx(loss.item(), rel=1e-4), step
    assert lrs[0] == LOWEST
    steps = [math.log(b / a) for a, b in itertools.pairwise(lrs)]
    assert steps == pytest.approx([math.log(HIGHEST / LOWEST) / (NUM_STEPS - 1)] * len(steps))


def test_it_is_deterministic_and_touches_no_other_run() -> None:
    config = TrainConfig(batch_size=64, threads=1)
    run = loop.start(Digits(), config, Digits().splits(0))
    before = run.state.weights_sha256()
    first = rising_rate_test(Digits(), config)
    assert run.state.weights_sha256() == before
    assert rising_rate_test(Digits(), config) == first
    assert rising_rate_test(Digits(), TrainConfig(batch_size=64, threads=1, seed=1)) != first


def test_it_ends_where_the_loss_explodes() -> None:
    """Plain SGD without clipping on a steep loss: no step is made with a weight that is no number."""
    config = TrainConfig(optimizer="sgd", clip_norm=None, threads=1, batch_size=64)
    lrs, losses = rising_rate_test(Digits(depth=6), config)
    assert all(map(math.isfinite, losses))
    assert len(lrs) == len(losses) <= NUM_STEPS


def test_a_schedule_or_warm_up_does_not_bend_it() -> None:
    plain = rising_rate_test(Digits(), TrainConfig(batch_size=64, threads=1))
    bent = TrainConfig(batch_size=64, threads=1, schedule="cosine", warmup_steps=30, epochs=9)
    assert rising_rate_test(Digits(), bent) == plain


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({}, 0, None),
        ({"task": "nope"}, 2, "unknown task 'nope'"),
        ({"settings": {"widht": 3}}, 2, "task.widht"),
        ({"train": {"lr": -1}}, 2, "lr=-1"),
    ],
)
def test_its_door(change: dict[str, Any], code: int, words: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"task": "digits", "settings": {}, "train": {"batch_size": 256, "threads": 1}, **change}
    assert main([json.dumps(asked)]) == code
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert words in said["error"] if words else len(said["lrs"]) == len(said["losses"]) > 100
