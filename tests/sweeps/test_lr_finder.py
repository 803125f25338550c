"""`--lrs auto`: from the curve of a rising-rate test to a range, and the words where there is none."""

from __future__ import annotations

import math
from pathlib import Path

import numpy
import pytest

from sweeps.lr.finder import choose_range, find_range
from tests.helpers.drivers import ROOT
from trainable.config import TrainConfig
from trainable.lr_range_test import rising_rate_test
from trainable.tasks.digits import Digits

MOODY = f"{ROOT / 'tests/helpers/moody.py'}:Moody"
LRS = [1e-7 * 10 ** (8 * step / 159) for step in range(160)]


def curve(falls_at: float, rises_at: float, noise: float = 0.02) -> list[float]:
    """A loss of 2.3 that falls to 0.5 around one learning rate and rises again around another, in a decade each."""
    draw = numpy.random.default_rng(0)

    def around(lr: float, place: float) -> float:
        return 1 / (1 + math.exp(-4 * math.log10(lr / place)))

    return [2.3 - 1.8 * around(lr, falls_at) + 6 * around(lr, rises_at) + noise * draw.normal() for lr in LRS]


def test_from_where_it_falls_to_where_it_rises() -> None:
    found = choose_range(LRS, curve(3e-3, 1.0))
    assert 2e-4 <= found.lrs[0] <= 1e-3  # a fall of 5 % lies 0.7 decades before the middle
    assert 5e-2 <= found.lrs[-1] <= 0.5
    assert 5 <= len(found.lrs) <= 7
    assert list(found.lrs) == sorted(found.lrs)
    assert "the loss (2.3) began to fall at 0.000" in found.reason
    assert "it rises again" in found.reason
    assert found.to_dict()["tested_losses"] == tuple(curve(3e-3, 1.0))


def test_the_range_moves_with_the_task() -> None:
    """A task that wants rates a hundred times larger gets a range a hundred times larger."""
    small, large = choose_range(LRS, curve(1e-4, 1e-2)), choose_range(LRS, curve(1e-2, 1.0))
    assert large.lrs[0] / small.lrs[0] == pytest.approx(100, rel=0.6)
    assert large.lrs[-1] / small.lrs[-1] == pytest.approx(100, rel=0.6)


@pytest.mark.parametrize("end", [100, 130])
def test_a_curve_that_ended_early(end: int) -> None:
    """The loss was no longer finite: the last rate that was still good is the upper end."""
    found = choose_range(LRS[:end], curve(1e-4, 1e9)[:end])
    assert found.lrs[-1] <= LRS[end - 1] * 1.6
    assert "no longer finite" in found.reason


def test_a_loss_that_never_rises_again() -> None:
    assert "the largest rate tested" in choose_range(LRS, curve(1e-2, 1e9)).reason


@pytest.mark.parametrize(
    "losses", [[2.3] * 160, curve(1e9, 1e9), curve(1e9, 1e-2), curve(1e9, 1e9, noise=1.0), [1.0] * 5, []]
)
def test_no_range_where_no_loss_falls(losses: list[float]) -> None:
    """Noise alone must not make a range, nor a loss that only rises; nor may an empty curve be an IndexError."""
    with pytest.raises(ValueError, match="did the loss fall beyond its noise; give learning rates yourself"):
        choose_range(LRS[: len(losses)], losses)


def test_on_a_real_task() -> None:
    """The digits: the range holds what an exhaustive scan of one epoch finds, 1e-2 to 3e-2."""
    found = choose_range(*rising_rate_test(Digits(), TrainConfig(threads=1)))
    assert found.lrs[0] <= 2e-3
    assert 1e-2 <= found.lrs[-1] <= 1e-1


def test_a_task_whose_process_dies(tmp_path: Path) -> None:
    settings = {"mood": "killed", "step_log": str(tmp_path / "steps.log")}
    with pytest.raises(
        ValueError, match="--lrs auto tests the task on this machine first, and that failed: its process"
    ):
        find_range(MOODY, settings, TrainConfig(threads=1))
