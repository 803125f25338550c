"""Measuring the latency of a model: it is there where it is asked for, and changes nothing of the run."""

from __future__ import annotations

import dataclasses
import time

import pytest
import torch
from torch import nn

from tests.trainable.toys import Toy
from trainable import loop
from trainable.config import TrainConfig
from trainable.loop import Report


def reports_of(task: Toy, config: TrainConfig) -> list[Report]:
    run = loop.start(task, config, task.splits(0))
    found: list[Report] = []
    while not (found and found[-1].done):
        found.append(loop.advance(run))
    run.close()
    return found


@pytest.mark.parametrize("task", [Toy(dropout=0.5, batch_norm=True), Toy(loaded=True)])
def test_it_changes_nothing(task: Toy) -> None:
    config = TrainConfig(lr=0.05, epochs=3, threads=1, ema_decay=0.9)
    plain, measured = (reports_of(task, dataclasses.replace(config, measure_latency=on)) for on in (False, True))
    assert [report.latency_ms for report in plain] == [None] * 3
    assert len({report.latency_ms for report in measured}) == 1  # once, at the first evaluation
    assert measured[0].latency_ms is not None
    assert measured[0].latency_ms > 0
    assert [report.metrics for report in plain] == [report.metrics for report in measured]
    assert plain[-1].weights_sha256 == measured[-1].weights_sha256
    assert plain[0].num_params == sum(parameter.numel() for parameter in task.model().parameters())


class Slow(nn.Module):
    """Takes 20 ms for a sample, whatever it is."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        assert self.training or torch.is_inference_mode_enabled()
        if not self.training:
            time.sleep(0.02 * len(inputs))
        out: torch.Tensor = self.model(inputs)
        return out


@dataclasses.dataclass(frozen=True)
class SlowToy(Toy):
    def model(self) -> nn.Module:
        return Slow(super().model())


def test_it_is_of_one_sample() -> None:
    (report,) = reports_of(SlowToy(), TrainConfig(threads=1, measure_latency=True))
    assert report.latency_ms is not None
    assert 20 <= report.latency_ms < 60
