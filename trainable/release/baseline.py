"""What a released model is watched against: its columns in training, its speed on this machine, its size.

Plain JSON values, made once at acceptance. Knows no sweeps, and not how fresh samples are compared with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor, nn

from trainable.data import num_samples_of
from trainable.release.histogram import Array, described_all
from trainable.release.speed import measured

if TYPE_CHECKING:
    from trainable.config import TrainConfig
    from trainable.task import Batch, Examples, Task

FORMAT = 1
MOST_ROWS = 100_000  # samples whose columns are looked at, of tensors
MOST_LOADED = 1000  # the same of a Dataset, which reads each
AT_A_TIME = 256


def baseline_of(
    *,
    task: Task,
    preparing: Mapping[str, Any],
    train_examples: Examples,
    test_examples: Examples,
    model: nn.Module,
    config: TrainConfig,
    metrics: Mapping[str, Any],
    size_bytes: int,
) -> dict[str, Any]:
    """Statistics of every column of the train part, `metrics` (of the test part, with their intervals), latency and
    throughput of `model` by batch size with the machine they were measured on, `size_bytes` and the parameters.

    `model` is on the CPU and in evaluation. A generator seeded by config.seed picks the samples that are kept.
    """
    columns = columns_of(task, train_examples, preparing, config.seed)
    return {
        "format": FORMAT,
        "features": described_all(columns, task.code_names(preparing), config.seed),
        "num_samples": num_samples_of(train_examples),
        "metrics": dict(metrics),
        "speed": measured(task, model, some_samples(test_examples, AT_A_TIME)),
        "size_bytes": size_bytes,
        "num_params": sum(parameter.numel() for parameter in model.parameters()),
    }


def columns_of(task: Task, examples: Examples, preparing: Mapping[str, Any], seed: int = 0) -> dict[str, Array]:
    """The task's columns of all samples, or of so many that a seeded generator picks. ValueError for a column that
    is none."""
    rows = _picked(num_samples_of(examples), isinstance(examples, tuple), seed)
    found: dict[str, list[Array]] = {}
    for first in range(0, len(rows), AT_A_TIME):
        batch = _gathered(examples, rows[first : first + AT_A_TIME].tolist())
        for name, values in task.features(batch, preparing).items():
            found.setdefault(name, []).append(_column(task, name, values, len(batch[0])))
    return {name: numpy.concatenate(pieces) for name, pieces in found.items()}


def _picked(num: int, are_tensors: bool, seed: int) -> Array:
    """The samples to look at, in their order: of tensors whole blocks, as what follows each other may be one text."""
    block, most = (AT_A_TIME, MOST_ROWS) if are_tensors else (1, MOST_LOADED)
    rows = numpy.arange(num)
    if num <= most:
        return rows
    firsts = numpy.random.default_rng(seed).choice(num // block, most // block, replace=False) * block
    return (numpy.sort(firsts)[:, None] + numpy.arange(block)).ravel()


def some_samples(examples: Examples, most: int) -> Batch:
    """The first samples, at most so many."""
    return _gathered(examples, list(range(min(most, num_samples_of(examples)))))


def _gathered(examples: Examples, rows: list[int]) -> Batch:
    if isinstance(examples, tuple):
        return tuple(part[rows] for part in examples)
    samples = [examples[row] for row in rows]
    return tuple(torch.stack([torch.as_tensor(part) for part in parts]) for parts in zip(*samples, strict=True))


def _column(task: Task, name: str, values: Tensor, num: int) -> Array:
    whole = not (values.is_floating_point() or values.is_complex())
    if values.is_complex() or values.ndim not in ((1, 2) if whole else (1,)) or len(values) != num:
        raise ValueError(
            f"{type(task).__name__}.features gives {name!r} with the shape {tuple(values.shape)} and type "
            f"{values.dtype} for {num} samples; give (N,) floats, or (N,) or (N, T) integers"
        )
    found: Array = values.detach().cpu().to(torch.int64 if whole else torch.float64).numpy()
    return found
