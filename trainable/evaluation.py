"""Evaluation under eval() and inference_mode() together (tutorial, third anti-pattern), in sums and weights.

Knows nothing of training.
"""

from __future__ import annotations

import numbers
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trainable import memory
from trainable.latency import latency_ms
from trainable.step import pieces
from trainable.training import Training

if TYPE_CHECKING:
    from trainable.task import Batch


def evaluate(run: Training) -> dict[str, float]:
    """val_loss and the task's metrics as val_*: sums over all samples, divided once.

    The batch size, and a short last batch, therefore never change a value; a mean of means would.
    Raises OutOfMemory where not even one sample at a time fits.
    """
    model = run.state.evaluated
    was_training = model.training
    model.eval()
    sums: dict[str, Tensor] = {}
    weight: Any = 0
    with torch.inference_mode(), run.group.together():
        for batch in run.val.epoch(0, 0):
            if run.config.measure_latency and run.latency_ms is None:
                run.latency_ms = latency_ms(run, batch)
            part = run.group.part(batch)
            for found, piece_weight in _measure(run, part) if len(part[0]) else ():
                for name, value in found.items():
                    sums[name] = sums[name] + value if name in sums else value
                weight = weight + piece_weight
    if model is not run.state.model:
        model.train(was_training)
    elif was_training:
        run.state.train_mode()  # not train(): frozen modules stay in eval()
    values, total = run.group.summed(sums, weight)
    if total == 0:
        raise ValueError(f"{type(run.task).__name__}.weight is 0 for every val sample: there is nothing to divide by")
    return {f"val_{name}": value / total for name, value in values.items()}


def _measure(run: Training, batch: Batch) -> list[tuple[dict[str, Tensor], Any]]:
    """Sums and weight of each piece of `batch`; smaller pieces where memory demands."""
    size = len(batch[0])
    while True:
        at_a_time = min(run.eval_pieces or size, size)
        parts = [batch] if at_a_time == size else pieces(batch, at_a_time, merge_single=False)
        try:
            return [_sums(run, part) for part in parts]
        except (RuntimeError, MemoryError) as error:
            out_of_memory = memory.is_out_of_memory(error)
            if not out_of_memory and not (run.state.compiled and not run.evaluated):
                raise
            reason = f"{type(error).__name__}: {error}"
        if out_of_memory:
            run.eval_pieces = memory.smaller(at_a_time, reason)
            memory.remember((run.shape, "evaluation"), run.eval_pieces)
            run.notes["eval_batch"] = f"{run.eval_pieces}, after running out of memory at {at_a_time}"
            warnings.warn(
                f"out of memory in evaluation with {at_a_time} samples at a time; going on with {run.eval_pieces}",
                stacklevel=3,
            )
        else:
            run.drop_compiled(reason)


def _sums(run: Training, batch: Batch) -> tuple[dict[str, Tensor], Any]:
    with run.autocast():
        outputs = run.task.predict(run.state.called_in_evaluation, batch)
        found = {"loss": run.task.loss(outputs, batch), **run.task.metrics(outputs, batch)}
    # mps has no float64
    wide = torch.float32 if run.numerics.device.type == "mps" else torch.float64
    run.evaluated = True
    return {name: _sum_of(name, value, run).to(wide) for name, value in found.items()}, run.task.weight(batch)


def _sum_of(name: str, value: Any, run: Training) -> Tensor:
    if isinstance(value, Tensor | numbers.Real) and torch.as_tensor(value).numel() == 1:
        return torch.as_tensor(value).detach().reshape(())
    raise ValueError(
        f"{type(run.task).__name__} says {value!r} for metric {name!r}; it must be one number, a sum over the batch"
    )
