"""Batches through a DataLoader: workers, pinned memory, and the next batch on its way while one is computed on.

What a sample's random transforms draw is a function of (seed, epoch, sample index), so the number of
workers never changes a result. Everything that goes to a worker is of module level, so any start method will do.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate, get_worker_info

from trainable.config import TrainConfig
from trainable.seeding import derive_seed, isolated, permutation, seed_cpu
from trainable.workers import Limits, check_limits

if TYPE_CHECKING:
    from trainable.task import Batch


class LoadedBatches:
    """Samples of a Dataset, batch by batch, on the device. Worker processes live until `close`."""

    def __init__(
        self,
        samples: SeededSamples | TensorSamples,
        sizes: list[int],
        device: torch.device,
        config: TrainConfig,
        *,
        shuffled: bool,
    ) -> None:
        """Raises ValueError where this process may not open what so many workers need."""
        self.sizes = sizes
        self.wait_s = 0.0
        self._device = device
        self._sampler = EpochSampler(sizes, config.seed if shuffled else None)
        if config.num_workers:
            check_limits(config.num_workers, samples.batch_of(max(sizes)), Limits.here())
        self._loader: DataLoader[Any] = DataLoader(
            samples,
            batch_sampler=self._sampler,
            collate_fn=collated,
            num_workers=config.num_workers,
            persistent_workers=config.num_workers > 0,
            pin_memory=device.type == "cuda",
            multiprocessing_context=_start_method(config),
            # Without a generator of its own the loader draws from the global one at every epoch,
            # and a resume in mid-epoch would draw once more than the unbroken run.
            generator=torch.Generator().manual_seed(config.seed),
        )

    def epoch(self, epoch: int, first_step: int) -> Iterator[Batch]:
        self._sampler.position = (epoch, first_step)
        began = time.perf_counter()
        batches = self._ahead(iter(self._loader))
        batch = next(batches, None)
        self.wait_s += time.perf_counter() - began
        while batch is not None:
            yield batch
            began = time.perf_counter()
            batch = next(batches, None)
            self.wait_s += time.perf_counter() - began

    def _ahead(self, host: Iterator[Any]) -> Iterator[Batch]:
        """Batches on the device. On CUDA one is copied by a stream of its own while the one before is computed on."""
        if self._device.type != "cuda":
            for batch in host:
                yield tuple(tensor.to(self._device) for tensor in batch)
            return
        copying = torch.cuda.Stream(self._device)
        coming: tuple[Batch, torch.cuda.Event] | None = None
        for batch in host:
            with torch.cuda.stream(copying):
                on_device = tuple(tensor.to(self._device, non_blocking=True) for tensor in batch)
            copied = copying.record_event()
            if coming is not None:
                yield _arrived(*coming)
            coming = on_device, copied
        if coming is not None:
            yield _arrived(*coming)

    def close(self) -> None:
        """End the worker processes now; left alone they live until the loader is collected."""
        iterator = getattr(self._loader, "_iterator", None)
        if iterator is not None:
            iterator._shutdown_workers()
            self._loader._iterator = None
            del iterator
            gc.collect()  # its queues and processes refer to each other, and hold file descriptors until collected


def _arrived(batch: Batch, copied: torch.cuda.Event) -> Batch:
    """`batch`, safe to use on the current stream: that waits, on the device, until it is copied."""
    current = torch.cuda.current_stream()
    current.wait_event(copied)
    for tensor in batch:
        tensor.record_stream(current)  # its memory is not given away before this stream is done with it
    return batch


def _start_method(config: TrainConfig) -> str | None:
    return config.worker_start if config.num_workers and config.worker_start != "default" else None


class EpochSampler(Sampler[list[tuple[int, int]]]):
    """Lists of (epoch, sample index), one list a step, from `position` on."""

    def __init__(self, sizes: list[int], seed: int | None) -> None:
        self.position = (0, 0)
        self._sizes = sizes
        self._seed = seed

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch, first_step = self.position
        num_samples = sum(self._sizes)
        order = list(range(num_samples)) if self._seed is None else permutation(num_samples, self._seed, epoch).tolist()
        start = 0
        for step, size in enumerate(self._sizes):
            if step >= first_step:
                yield [(epoch, index) for index in order[start : start + size]]
            start += size

    def __len__(self) -> int:
        return len(self._sizes) - self.position[1]


class SeededSamples(Dataset[Any]):
    """A dataset whose every sample draws from its own stream, in whatever process it is made."""

    def __init__(self, dataset: Dataset[Any], seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitems__(self, keys: list[tuple[int, int]]) -> Batch:
        if get_worker_info() is not None:  # nobody else draws in a worker, so nothing need be put back
            return self._collated(keys)
        with isolated():
            return self._collated(keys)

    def batch_of(self, num_samples: int) -> Batch:
        """A batch of that many samples, as far as its size goes."""
        return tuple(tensor.expand(num_samples, *tensor.shape[1:]) for tensor in self.__getitems__([(0, 0)]))

    def _collated(self, keys: list[tuple[int, int]]) -> Batch:
        samples = []
        for epoch, index in keys:
            seed_cpu(derive_seed(self._seed, "sample", epoch, index))
            samples.append(self._dataset[index])
        return tuple(default_collate(samples))


class TensorSamples(Dataset[Any]):
    """Samples that are rows of tensors: a batch is one gather, not a stack of rows."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self._tensors = tensors

    def __getitems__(self, keys: list[tuple[int, int]]) -> Batch:
        rows = torch.tensor([index for _, index in keys])
        return tuple(tensor.index_select(0, rows) for tensor in self._tensors)

    def batch_of(self, num_samples: int) -> Batch:
        return tuple(tensor[:1].expand(num_samples, *tensor.shape[1:]) for tensor in self._tensors)


def collated(batch: Any) -> Any:
    """The samples above come as a batch already; a function of module level, so that it can be pickled."""
    return batch
