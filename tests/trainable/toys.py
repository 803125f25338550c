"""Small tasks and helpers for the tests of one trial. Everything is of module level, so that workers can have it."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from trainable import loop
from trainable.config import TrainConfig
from trainable.task import Splits, Task

NUM_FEATURES = 6


class Noisy(Dataset):
    """Rows of tensors, each with noise that is drawn where the row is made, from all three global generators."""

    def __init__(self, tensors: tuple[Tensor, ...], noise: float) -> None:
        self.tensors = tensors
        self.noise = noise

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        inputs, *others = (tensor[index] for tensor in self.tensors)
        drawn = torch.randn(NUM_FEATURES) + random.random() + float(numpy.random.rand())
        return (inputs + self.noise * drawn, *others)


@dataclass(frozen=True)
class Toy(Task):
    """Two noisy classes. inputs: (B, 6) float, labels: (B,) long, indices: (B,) long. Notes what it trains on."""

    num_samples: int = 40
    dropout: float = 0.0
    augmenting: bool = False
    batch_norm: bool = False
    loaded: bool = False  # through a Dataset, with noise of its own
    seen: ClassVar[list[list[int]]] = []

    def model(self) -> nn.Module:
        norm = [nn.BatchNorm1d(8)] if self.batch_norm else []
        return nn.Sequential(nn.Linear(NUM_FEATURES, 8), *norm, nn.ReLU(), nn.Dropout(self.dropout), nn.Linear(8, 2))

    def splits(self, seed: int) -> Splits:
        draw = torch.Generator().manual_seed(seed)
        inputs = torch.randn(self.num_samples + 20, NUM_FEATURES, generator=draw)
        labels = (inputs.sum(1) + 0.3 * torch.randn(len(inputs), generator=draw) > 0).long()
        both = (inputs, labels, torch.arange(len(inputs)))
        train: Any = tuple(tensor[: self.num_samples] for tensor in both)
        val: Any = tuple(tensor[self.num_samples :] for tensor in both)
        return Splits(Noisy(train, 0.1), Noisy(val, 0.1)) if self.loaded else Splits(train, val)

    def predict(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        if model.training:
            self.seen.append(batch[2].tolist())
        return model(batch[0])

    def loss(self, outputs: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        return nn.functional.cross_entropy(outputs, batch[1], reduction="sum")

    def metrics(self, outputs: Tensor, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return {"accuracy": (outputs.argmax(1) == batch[1]).sum()}

    def augment(self, batch: tuple[Tensor, ...], generator: torch.Generator) -> tuple[Tensor, ...]:
        if not self.augmenting:
            return batch
        inputs, *others = batch
        return (inputs + 0.1 * torch.randn(inputs.shape, generator=generator, device=inputs.device), *others)


@dataclass(frozen=True)
class Line(Task):
    """y = w * x with w = 1 at first, the target 0 and squared error: everything about it is known by heart."""

    inputs: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    val_losses: tuple[float, ...] = (1.0,)

    def model(self) -> nn.Module:
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        return model

    def splits(self, seed: int) -> Splits:
        train = torch.tensor(self.inputs).reshape(-1, 1)
        return Splits((train,), (torch.tensor(self.val_losses).reshape(-1, 1),))

    def loss(self, outputs: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        return (outputs**2).sum()


@dataclass(frozen=True)
class Scripted(Line):
    """The n-th evaluation has the n-th loss of the script."""

    script: tuple[float, ...] = ()
    evaluations: list[int] = field(default_factory=list)

    def predict(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        if not model.training:
            self.evaluations.append(1)
        return model(batch[0])

    def loss(self, outputs: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        if outputs.requires_grad:
            return outputs.sum() * 0.001
        return outputs.sum() * 0 + self.script[len(self.evaluations) - 1]


def config(**settings: Any) -> TrainConfig:
    """Plain SGD on one thread, nothing else, unless told."""
    plain = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "clip_norm": None, "device": "cpu", "threads": 1}
    return TrainConfig(**{**plain, **settings})


def start(task: Task, **settings: Any) -> loop.Training:
    chosen = config(**settings)
    return loop.start(task, chosen, task.splits(chosen.data_seed))


def finish(run: loop.Training) -> list[loop.Report]:
    """All reports up to the last."""
    reports = [loop.advance(run)]
    while not reports[-1].done:
        reports.append(loop.advance(run))
    return reports


def train(task: Task, **settings: Any) -> tuple[loop.Training, list[loop.Report]]:
    run = start(task, **settings)
    reports = finish(run)
    run.close()
    return run, reports


def stop_at(run: loop.Training, step: int) -> list[loop.Report]:
    """Train up to `step` of the run, wherever reports fall; the reports made on the way."""
    reports: list[loop.Report] = []
    while run.state.progress.step < step:
        report = loop.advance(run, lambda: run.state.progress.step >= step)
        if report is not None:
            reports.append(report)
    return reports


def through_file(run: loop.Training) -> dict[str, Any]:
    """The run's state as a checkpoint file would give it back."""
    file = io.BytesIO()
    torch.save(run.state.save(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resumed(run: loop.Training, **changes: Any) -> loop.Training:
    """The run gone on with elsewhere: what this process drew since must not matter."""
    saved = through_file(run)
    run.close()
    random.seed(1234)
    numpy.random.seed(1234)
    torch.manual_seed(1234)
    chosen = TrainConfig.from_dict({**run.config.to_dict(), **changes})
    again = loop.start(run.task, chosen, run.task.splits(chosen.data_seed))
    again.load(saved)
    return again


def weight_of(run: loop.Training) -> float:
    """The one weight of `Line`."""
    (parameter,) = run.state.model.parameters()
    return parameter.item()
