"""One optimizer step in the textbook's order: zero_grad, forward, backward, unscale, clip, step, update.

However many micro-batches it takes, its gradient is the full batch's. Where memory runs out, or torch.compile
fails, everything the failed try changed is put back and the same step is made again. Knows nothing of reports.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trainable import memory
from trainable.clipping import clip
from trainable.data import step_sizes
from trainable.schedule import lr_factor
from trainable.seeding import generator
from trainable.training import Training
from trainable.undo import Undo

if TYPE_CHECKING:
    from trainable.task import Batch


def take_step(run: Training, batch: Batch) -> None:
    """Update the weights on `batch`, and record what the step was like, on the device.

    Waits for the device nowhere; only fp16's scaler does once a step, to know whether the schedule moves on.
    Raises OutOfMemory where not even one sample at a time fits.
    """
    state = run.state
    updates = state.progress.updates
    factor = lr_factor(run.config, updates, run.total_steps, len(run.train.sizes), state.best.decays)
    lr = run.config.lr * factor
    for group in state.optimizer.param_groups:
        group["lr"] = lr * group["lr_multiplier"]
    if run.augments:
        # A stream of its own for every step: what augmentation draws never depends on an interruption.
        stream = generator(state.device, run.config.seed, "augment", state.progress.step)
        batch = run.task.augment(batch, stream)
    while True:
        undo = _undo(run, batch)
        before = run.changes() if run.updated else None
        try:
            _attempt(run, batch, lr)
            break
        except (RuntimeError, MemoryError) as error:
            out_of_memory = memory.is_out_of_memory(error)
            if not out_of_memory and not (state.compiled and not run.updated):
                raise
            reason = f"{type(error).__name__}: {error}"
        # Here the error is let go of, and with it what its traceback held in memory.
        state.zero_grad()
        if before is not None and run.changes() != before:
            raise memory.OutOfMemory(
                f"memory ran out in the middle of an update of the weights ({reason}); "
                f"go on from the last checkpoint, with, {memory.RESCUE_ORDER}"
            )
        if undo is not None:
            undo.apply()
        state.renew_scaler()
        if out_of_memory:
            _shrink(run, run.group.largest_part(len(batch[0])), reason)
        else:
            run.drop_compiled(reason)
    run.proven = max(run.proven, _elements(batch, run))
    run.updated |= state.progress.updates > updates  # not where the scaler skipped the step


def _attempt(run: Training, batch: Batch, lr: float) -> None:
    """The step itself."""
    state, config = run.state, run.config
    optimizer, scaler = state.optimizer, state.scaler
    state.zero_grad()
    # All micro-batches of the step share its weight, so their gradients add up to the full batch's.
    weight = run.task.weight(batch)
    divisor = weight.clamp(min=1) if isinstance(weight, Tensor) else max(weight, 1)
    run.group.seed(config.seed, state.progress.step)
    with run.group.together():
        loss = _backward(run, run.group.part(batch), divisor)
    loss = run.group.sum_gradients(state.trained, loss)
    with run.group.together():
        if scaler.is_enabled() and any(parameter.grad is not None for parameter in state.trained):
            scaler.unscale_(optimizer)
            norm, norm_after = clip(state.trained, config, run.alike)
            scaler.step(optimizer)
            scaler.update()
            # A step with overflow is skipped and lowers the scale; schedule and average do not move on then.
            scale = scaler.get_scale()
            stepped, state.loss_scale = scale >= state.loss_scale, scale
        else:
            norm, norm_after = clip(state.trained, config, run.alike)
            optimizer.step()
            stepped = True
    if stepped:
        state.progress.updates += 1
        if state.average is not None:
            state.average.update(state.model)
    state.interval.record(lr, weight, loss, norm, norm_after)


def _backward(run: Training, part: Batch, divisor: Any) -> Tensor:
    """The gradients of this worker's part, in as many micro-batches as it takes; its share of the step's loss."""
    size = len(part[0])
    if not size:
        return torch.zeros((), device=run.state.device)
    micro_batch = run.state.micro_batch or size
    if micro_batch >= size:
        return _forward_backward(run, part, divisor)
    losses = [_forward_backward(run, piece, divisor) for piece in pieces(part, micro_batch, run.has_batch_norm)]
    return torch.stack(losses).sum()


def _forward_backward(run: Training, batch: Batch, divisor: Any) -> Tensor:
    with run.autocast():
        outputs = run.task.predict(run.state.called, batch)
        loss: Tensor = run.task.loss(outputs, batch) / divisor
    if loss.requires_grad:  # not so when everything the batch touches is frozen
        run.state.scaler.scale(loss).backward()
    return loss.detach()


def pieces(batch: Batch, size: int, merge_single: bool) -> list[Batch]:
    """`batch` in pieces of `size` samples; `merge_single` as in `step_sizes`."""
    sizes = step_sizes(len(batch[0]), size, merge_single)
    return list(zip(*(tensor.split(sizes) for tensor in batch), strict=True))


def _undo(run: Training, batch: Batch) -> Undo | None:
    """What the coming attempt is undone with; None where one as large went well before, to cost nothing then."""
    if run.updated and _elements(batch, run) <= run.proven:
        return None
    return Undo(run.state, update=not run.updated)


def _elements(batch: Batch, run: Training) -> int:
    """How large the largest micro-batch of `batch` is. Not only its samples count: texts differ in length."""
    size = len(batch[0])
    total = sum(tensor.numel() for tensor in batch)
    return total * min(run.state.micro_batch or size, size) // max(size, 1)


def _shrink(run: Training, size: int, reason: str) -> None:
    """Halve the micro-batch, say so, and remember it for later runs of the same shape."""
    tried = min(run.state.micro_batch or size, size)
    run.state.micro_batch = memory.smaller(tried, reason)
    memory.remember(run.shape, run.state.micro_batch)
    run.notes["micro_batch"] = f"{run.state.micro_batch}, after running out of memory at {tried}"
    if run.has_batch_norm:
        run.notes["batch_norm"] = f"sees {run.state.micro_batch} samples at a time: its statistics are of those"
    warnings.warn(f"out of memory with {tried} samples at a time; going on with {run.state.micro_batch}", stacklevel=4)
