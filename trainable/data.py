"""Splits, the order of samples, and batches on the device, by index where the samples fit there.

Position is (epoch, step): any batch of any epoch can be had without drawing those before it.
Knows nothing of models or losses.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from trainable.config import TrainConfig
from trainable.loader import LoadedBatches, SeededSamples, TensorSamples
from trainable.seeding import generator, permutation

if TYPE_CHECKING:
    from trainable.task import Batch, Examples, Splits, Task

GATHER_BYTES = 32 * 2**20  # resident samples are brought into order this many bytes at a time


def stratified_split(labels: Tensor, shares: dict[str, float], seed: int) -> dict[str, Tensor]:
    """Disjoint index tensors named like `shares`, each class spread over them in those proportions.

    labels: (N,) integers. The same seed gives the same split; every sample lands in exactly one part.
    """
    total = sum(shares.values())
    if not math.isclose(total, 1.0):
        raise ValueError(f"shares {shares} add up to {total}; they must add up to 1")
    parts: dict[str, list[Tensor]] = {name: [] for name in shares}
    for label in labels.unique(sorted=True).tolist():
        members = (labels == label).nonzero().squeeze(1)
        order = generator(torch.device("cpu"), seed, "split", int(label))
        members = members[torch.randperm(len(members), generator=order)]
        start, cumulative = 0, 0.0
        for name, share in shares.items():
            cumulative += share
            stop = round(cumulative * len(members))
            parts[name].append(members[start:stop])
            start = stop
    return {name: torch.cat(pieces).sort().values for name, pieces in parts.items()}


def step_sizes(num_samples: int, batch_size: int, merge_single: bool) -> list[int]:
    """The number of samples of each step of an epoch; together they are all samples.

    `merge_single`: a rest of one sample joins the step before it, because BatchNorm cannot train on one.
    """
    sizes = [batch_size] * (num_samples // batch_size)
    rest = num_samples % batch_size
    if rest == 1 and merge_single and sizes:
        sizes[-1] += 1
    elif rest:
        sizes.append(rest)
    return sizes


def num_samples_of(examples: Examples) -> int:
    return len(examples[0]) if isinstance(examples, tuple) else len(examples)  # type: ignore[arg-type]


def num_bytes_of(examples: Examples) -> int | None:
    """The size of the samples in memory; None for a Dataset, which alone knows."""
    if not isinstance(examples, tuple):
        return None
    return sum(tensor.numel() * tensor.element_size() for tensor in examples)


class Batches(Protocol):
    """Batches on the device: an epoch of them from any step on, and how long they were waited for."""

    sizes: list[int]
    wait_s: float

    def epoch(self, epoch: int, first_step: int) -> Iterator[Batch]: ...

    def close(self) -> None: ...


class ResidentBatches:
    """All samples live on the device; a batch is a slice of the samples brought into order there.

    The order of many steps is gathered at once and then cut into views, so a step costs no kernel
    for its data at all.
    """

    def __init__(self, tensors: tuple[Tensor, ...], sizes: list[int], device: torch.device, seed: int | None) -> None:
        self.tensors = tuple(tensor.to(device) for tensor in tensors)
        self.sizes = sizes
        self.wait_s = 0.0  # nothing is ever waited for
        self._device = device
        self._seed = seed

    def epoch(self, epoch: int, first_step: int) -> Iterator[Batch]:
        if self._seed is None:  # in the order they stand
            pieces = [tensor.split(self.sizes) for tensor in self.tensors]
            yield from zip(*(piece[first_step:] for piece in pieces), strict=True)
            return
        order = permutation(sum(self.sizes), self._seed, epoch)
        if self._device.type == "cuda":  # from pinned memory the copy does not wait for the device
            order = order.pin_memory()
        order = order.to(self._device, non_blocking=True)
        row_bytes = sum(tensor[:1].numel() * tensor.element_size() for tensor in self.tensors)
        stride = max(1, GATHER_BYTES // max(1, row_bytes * max(self.sizes)))
        starts = [0]
        for size in self.sizes:
            starts.append(starts[-1] + size)
        for first in range(first_step, len(self.sizes), stride):
            sizes = self.sizes[first : first + stride]
            rows = order[starts[first] : starts[first + len(sizes)]]
            gathered = [tensor.index_select(0, rows).split(sizes) for tensor in self.tensors]
            yield from zip(*gathered, strict=True)

    def close(self) -> None:
        self.tensors = ()


def make_batches(
    examples: Examples, sizes: list[int], device: torch.device, config: TrainConfig, *, shuffled: bool
) -> Batches:
    """Batches over `examples`: resident where they are tensors that fit, through a loader otherwise.

    shuffled: in an order from (seed, epoch), as training wants it; else as the samples stand (evaluation).
    Raises ValueError for tensors of different lengths, and where the workers asked for cannot be had.
    """
    if not isinstance(examples, tuple):
        return LoadedBatches(SeededSamples(examples, config.seed), sizes, device, config, shuffled=shuffled)
    if len({len(tensor) for tensor in examples}) > 1:
        raise ValueError(f"the tensors of a split differ in length: {[len(tensor) for tensor in examples]}")
    num_bytes = num_bytes_of(examples)
    assert num_bytes is not None
    if num_bytes <= config.resident_gib * 2**30:
        return ResidentBatches(examples, sizes, device, config.seed if shuffled else None)
    return LoadedBatches(TensorSamples(examples), sizes, device, config, shuffled=shuffled)


@functools.lru_cache(maxsize=1)
def splits_once(task: Task, seed: int) -> Splits:
    """The trials of a sweep share their data: a process that is used again loads it once."""
    return task.splits(seed)
