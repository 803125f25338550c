"""What a model is called with, so that it can be exported and called without its task.

Knows no MLflow: whoever packs models up asks here for what goes in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainable.data import make_batches, num_samples_of
from trainable.task import Task

if TYPE_CHECKING:
    from trainable.config import TrainConfig
    from trainable.task import Batch, Examples

SIZES = (2, 3)  # of two batches, by which it is seen which dimensions grow with them


class NotExportable(Exception):
    """Why a model cannot be had as a graph of its own, in words."""


@dataclass(frozen=True)
class Call:
    """How `task.predict` calls the model: the tensors of one batch, and the shape of each with -1 where it is the
    number of samples; the same of what comes back."""

    inputs: tuple[Tensor, ...]
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[torch.dtype, ...]


def call_of(task: Task, model: nn.Module, examples: Examples, config: TrainConfig) -> Call:
    """How the task calls `model`, which is on the CPU and in eval(). Raises NotExportable where it is not called
    exactly once, with tensors only."""
    sizes = [min(size, num_samples_of(examples)) for size in SIZES]
    if len(set(sizes)) < 2:
        raise NotExportable(f"{max(sizes)} sample(s) do not show which dimensions are those of the batch")
    few, more = (_record(task, model, first_batch(examples, size, config)) for size in sizes)
    # The smaller one is the example: it is written down as text, and may be images.
    return Call(few[0], _shapes(few[0], more[0]), _shapes(few[1], more[1]), tuple(part.dtype for part in few[1]))


def first_batch(examples: Examples, size: int, config: TrainConfig) -> Batch:
    """The first `size` samples, on the CPU."""
    if isinstance(examples, tuple):
        return tuple(part[:size] for part in examples)
    batches = make_batches(examples, [size], torch.device("cpu"), config, shuffled=False)
    try:
        return next(iter(batches.epoch(0, 0)))
    finally:
        batches.close()


def inputs_of(task: Task, model: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
    """The tensors that the model is called with for a batch. Raises NotExportable as `call_of` does."""
    return _record(task, model, batch)[0]


def _record(task: Task, model: nn.Module, batch: Batch) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    calls: list[tuple[tuple[Any, ...], Mapping[str, Any], Any]] = []
    handle = model.register_forward_hook(
        lambda module, given, named, came: calls.append((given, named, came)), with_kwargs=True
    )
    try:
        with torch.inference_mode():
            task.predict(model, batch)
    finally:
        handle.remove()
    if len(calls) != 1:
        raise NotExportable(f"{type(task).__name__}.predict calls the model {len(calls)} times and not once")
    given, named, came = calls[0]
    if named or not given or not all(isinstance(part, Tensor) for part in given):
        raise NotExportable(
            f"{type(task).__name__}.predict calls the model with something else than tensors by position"
        )
    outputs = flat(came)
    if outputs is None:
        raise NotExportable(f"the model gives back a {type(came).__name__}, which is not made of tensors")
    # Ordinary tensors again: those of inference mode cannot be traced.
    return tuple(part.clone() for part in given), outputs


def flat(outputs: Any) -> tuple[Tensor, ...] | None:
    """The tensors in tuples, lists and dicts, in order; None where there is anything else in them."""
    if isinstance(outputs, Tensor):
        return (outputs,)
    if type(outputs) not in (tuple, list, dict) or not outputs:
        return None
    found: list[Tensor] = []
    for part in outputs.values() if isinstance(outputs, dict) else outputs:
        tensors = flat(part)
        if tensors is None:
            return None
        found += tensors
    return tuple(found)


def _shapes(few: tuple[Tensor, ...], more: tuple[Tensor, ...]) -> tuple[tuple[int, ...], ...]:
    if [part.ndim for part in few] != [part.ndim for part in more]:
        raise NotExportable("what goes in or comes out has another number of dimensions for another batch")
    return tuple(
        tuple(-1 if a != b else a for a, b in zip(one.shape, other.shape, strict=True))
        for one, other in zip(few, more, strict=True)
    )


def difference(ours: Any, theirs: Any) -> float:
    """The largest absolute difference of any number in two models' outputs; infinite where shapes differ."""
    pairs = [flat(ours), flat(theirs)]
    if pairs[0] is None or pairs[1] is None or [p.shape for p in pairs[0]] != [p.shape for p in pairs[1]]:
        return float("inf")
    found = 0.0
    for one, other in zip(pairs[0], pairs[1], strict=True):
        if one.numel():
            apart = (one.detach().cpu().double() - other.detach().cpu().double()).abs()
            # What is infinite, or no number, on both sides is the same.
            apart[(one.cpu() == other.cpu()) | (one.cpu().isnan() & other.cpu().isnan())] = 0
            found = max(found, float("inf") if apart.isnan().any() else float(apart.max()))
    return found
