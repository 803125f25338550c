"""Schedules against torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from toys import Scripted, config, train

from trainable.schedule import lr_factor

lr_scheduler = torch.optim.lr_scheduler


def torch_lrs(num_steps: int, make: Any) -> list[float]:
    """The learning rates of torch's schedule, from 1.0."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = make(optimizer)
    lrs = []
    for _ in range(num_steps):
        lrs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return lrs


def our_lrs(num_steps: int, **settings: Any) -> list[float]:
    chosen = config(**settings)
    return [lr_factor(chosen, step, num_steps, 5, 0) for step in range(num_steps)]


@pytest.mark.parametrize("num_steps", [1, 2, 5, 40])
def test_cosine(num_steps: int) -> None:
    expected = torch_lrs(num_steps, lambda o: lr_scheduler.CosineAnnealingLR(o, num_steps, eta_min=0.1))
    assert our_lrs(num_steps, schedule="cosine", lr_min_factor=0.1) == pytest.approx(expected)


@pytest.mark.parametrize("num_steps", [5, 10, 40, 97])
def test_one_cycle(num_steps: int) -> None:
    expected = torch_lrs(num_steps, lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=num_steps))
    assert our_lrs(num_steps, schedule="one_cycle") == pytest.approx(expected)


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4])
def test_one_cycle_over_next_to_no_steps(num_steps: int) -> None:
    assert all(0 < lr <= 1 for lr in our_lrs(num_steps, schedule="one_cycle"))


def test_step() -> None:
    expected = torch_lrs(40, lambda o: lr_scheduler.StepLR(o, step_size=10, gamma=0.5))
    assert our_lrs(40, schedule="step", decay_epochs=2, decay_factor=0.5) == pytest.approx(expected)


def test_linear_warm_up_ends_at_lr() -> None:
    assert our_lrs(6, warmup_steps=3) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_warm_up_longer_than_the_run() -> None:
    assert our_lrs(2, warmup_steps=3, schedule="cosine") == pytest.approx([0.25, 0.5])


def test_plateau_is_torchs_without_a_threshold() -> None:
    losses = [4.0, 3.0, 3.0, 3.5, 3.2, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    _, reports = train(
        Scripted(script=tuple(losses)), batch_size=6, epochs=12, lr=1.0, schedule="plateau", plateau_patience=1,
        decay_factor=0.1, lr_min_factor=1e-3,
    )  # fmt: skip
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=1, threshold=0, min_lr=1e-3)
    expected = []
    for loss in losses:
        expected.append(optimizer.param_groups[0]["lr"])
        plateau.step(loss)
    assert len(set(expected)) > 2
    assert [report.curves["lr"][0] for report in reports] == pytest.approx(expected)
