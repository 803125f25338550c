"""What a model makes of samples one by one: sums and weights of each, from which means and their intervals follow.

Whose samples these are is the caller's business. Knows no sweeps.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor, nn

from trainable import memory
from trainable.config import TrainConfig
from trainable.data import make_batches, num_samples_of, step_sizes
from trainable.device import Probe, choose_device
from trainable.precision import choose_numerics
from trainable.release.intervals import LEVEL, Numbers, bootstrap_ratio, wilson
from trainable.task import Task

if TYPE_CHECKING:
    from trainable.task import Batch, Examples

MOST_UNITS = 20_000  # more samples than that are taken in groups; an interval would not change
NUM_BATCHES = 200  # where outcomes cannot be had sample by sample
MIN_BATCH = 256


@dataclass(frozen=True)
class Outcomes:
    """Sums and weights of units: samples, or groups of neighbouring ones. The order is that of the samples.

    weight: (U,) float64; sums: (U,) float64 for `loss` and each metric of the task; answers, truth: (N,) what was
    predicted and what is true, of a task that has such (see `Task.answers`).
    """

    weight: Numbers
    sums: Mapping[str, Numbers]
    num_samples: int
    answers: Numbers | None = field(default=None, compare=False)
    truth: Numbers | None = field(default=None, compare=False)
    quantity: bool = False  # these are numbers with a unit, and no classes

    def metrics(self, level: float = LEVEL, seed: int = 0) -> dict[str, dict[str, Any]]:
        """Each metric's `mean` with the ends of its interval, `low` and `high` (None for a single unit), and how that
        was found: Wilson's for shares of hits, the bootstrap over units for other means."""
        total = float(self.weight.sum())
        found: dict[str, dict[str, Any]] = {}
        for name, values in self.sums.items():
            ends: tuple[float, float] | None
            is_share = len(values) == self.num_samples and bool(((values == 0) | (values == 1)).all())
            if is_share and name != "loss" and bool((self.weight == 1).all()):
                ends, method = wilson(float(values.sum()), total, level), "wilson"
            else:
                ends, method = bootstrap_ratio(values, self.weight, level, seed), "bootstrap"
            found[name] = {
                "mean": float(values.sum()) / total,
                "low": ends and ends[0],
                "high": ends and ends[1],
                "level": level,
                "num_units": len(values),
                "method": method,
            }
        return found


def outcomes_of(
    task: Task, model: nn.Module, examples: Examples, config: TrainConfig, *, released: bool = False
) -> Outcomes:
    """The outcomes of `model`, which is in eval(), on `examples`.

    On the device and in the precision of `config`; released: on the CPU in float32, as an exported model is.
    Raises ValueError in words for no samples, for samples that weigh nothing, and for outcomes that are not finite.
    """
    num = num_samples_of(examples)
    if num == 0:
        raise ValueError("there are no samples to evaluate on; give at least one")
    probe = Probe.here()
    device, _ = choose_device("cpu" if released else config.device, probe)
    numerics = choose_numerics("fp32" if released else config.precision, device, probe)
    if not released:
        model.to(device)
    autocast = numerics.autocast()
    at_a_time = min(num, config.eval_batch_size or max(MIN_BATCH, config.batch_size))
    group = math.ceil(num / MOST_UNITS)
    at_a_time = max(group, at_a_time // group * group)  # so that the groups are the same whatever the batch size
    while True:
        batches = make_batches(examples, step_sizes(num, at_a_time, merge_single=False), device, config, shuffled=False)
        units = _Units(task, group)
        try:
            with torch.inference_mode():
                for batch in batches.epoch(0, 0):
                    with autocast():
                        units.add(task.predict(model, batch), batch)
            return units.outcomes(num)
        except _NotSeparable:
            group, at_a_time = 0, max(1, num // NUM_BATCHES)  # a batch is the smallest unit there is
        except (RuntimeError, MemoryError) as error:
            if not memory.is_out_of_memory(error):
                raise
            reason = f"{type(error).__name__}: {error}"
            smaller = memory.smaller(at_a_time, reason)
            warnings.warn(f"out of memory with {at_a_time} samples at a time; going on with {smaller}", stacklevel=2)
            at_a_time = smaller
        finally:
            batches.close()


class _NotSeparable(Exception):
    """The outputs or the loss of a batch are not made of its samples' own."""


class _Units:
    """Outcomes as they come, batch by batch. group: samples of a unit; 0: a batch is one unit."""

    def __init__(self, task: Task, group: int) -> None:
        self._task = task
        self._group = group
        self._weights: list[Tensor] = []
        self._sums: list[dict[str, Tensor]] = []
        self._answers: list[tuple[Tensor, Tensor]] | None = []

    def add(self, outputs: Any, batch: Batch) -> None:
        size = len(batch[0])
        if self._group == 0:
            parts = [(outputs, batch)]
        else:
            if not _has_rows(outputs, size):
                raise _NotSeparable
            cuts = [slice(first, first + self._group) for first in range(0, size, self._group)]
            parts = [(_rows(outputs, cut), tuple(part[cut] for part in batch)) for cut in cuts]
        try:
            found = [self._measure(*part) for part in parts]
        except Exception:
            if self._group == 0:
                raise
            raise _NotSeparable from None  # the task's loss may want a whole batch, and say so by any error
        whole, _ = self._measure(outputs, batch)
        for name, value in whole.items():
            alone = sum(float(sums[name]) for sums, _ in found)
            if math.isfinite(alone) and not math.isclose(alone, float(value), rel_tol=1e-2, abs_tol=1e-2):
                raise _NotSeparable
        self._sums += [sums for sums, _ in found]
        self._weights += [weight for _, weight in found]
        answers = self._task.answers(outputs, batch)
        if answers is None or self._answers is None:
            self._answers = None
        else:
            self._answers.append((answers[0].cpu(), answers[1].cpu()))

    def _measure(self, outputs: Any, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        found = {"loss": self._task.loss(outputs, batch), **self._task.metrics(outputs, batch)}
        sums = {name: torch.as_tensor(value).detach().reshape(()) for name, value in found.items()}
        return sums, torch.as_tensor(self._task.weight(batch)).reshape(())

    def outcomes(self, num_samples: int) -> Outcomes:
        weight = _numbers(self._weights)
        if not weight.sum() > 0:
            raise ValueError(
                f"{type(self._task).__name__}.weight is 0 for every sample: there is nothing to divide by; "
                "give samples that count"
            )
        sums = {name: _numbers([found[name] for found in self._sums]) for name in self._sums[0]}
        for name, values in sums.items():
            bad = numpy.flatnonzero(~numpy.isfinite(values))
            if len(bad):
                raise ValueError(
                    f"{name} is {values[bad[0]]} for {len(bad)} of {len(values)} (the first is number {bad[0]}, "
                    "counted from 0): look for values that are missing or not finite in the data"
                )
        if not self._answers:
            return Outcomes(weight, sums, num_samples)
        quantity = self._answers[0][1].is_floating_point()
        answers, truth = (torch.cat(side).double().numpy() for side in zip(*self._answers, strict=True))
        return Outcomes(weight, sums, num_samples, answers, truth, quantity)


def _numbers(values: list[Tensor]) -> Numbers:
    """(U,) float64, fetched from the device at once; mps has no float64."""
    wide = torch.float32 if values[0].is_mps else torch.float64
    found: Numbers = torch.stack([value.to(wide) for value in values]).cpu().double().numpy()
    return found


def _has_rows(outputs: Any, size: int) -> bool:
    """Whether outputs are tensors, also in tuples, lists and dicts, each with a row for every sample."""
    if isinstance(outputs, Tensor):
        return outputs.ndim > 0 and len(outputs) == size
    if isinstance(outputs, Mapping):
        return bool(outputs) and all(_has_rows(value, size) for value in outputs.values())
    return isinstance(outputs, tuple | list) and bool(outputs) and all(_has_rows(value, size) for value in outputs)


def _rows(outputs: Any, cut: slice) -> Any:
    if isinstance(outputs, Tensor):
        return outputs[cut]
    if isinstance(outputs, Mapping):
        return {name: _rows(value, cut) for name, value in outputs.items()}
    rows = [_rows(value, cut) for value in outputs]
    return tuple(rows) if isinstance(outputs, tuple) else rows


def fingerprint_of(examples: Examples, config: TrainConfig) -> str:
    """sha256 over the samples themselves, in their order; those of a Dataset are read for it, batch by batch."""
    num = num_samples_of(examples)
    sizes = [num] if isinstance(examples, tuple) else step_sizes(num, MIN_BATCH, merge_single=False)
    digests: list[Any] = []
    batches = make_batches(examples, sizes, torch.device("cpu"), config, shuffled=False)
    try:
        for batch in batches.epoch(0, 0):
            digests = digests or [hashlib.sha256(f"{part.dtype}{tuple(part.shape[1:])}".encode()) for part in batch]
            for digest, part in zip(digests, batch, strict=True):
                # As bytes: numpy has no bfloat16.
                digest.update(part.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    finally:
        batches.close()
    return hashlib.sha256("".join(digest.hexdigest() for digest in digests).encode()).hexdigest()
