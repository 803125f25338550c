"""Training: one run put together, its task, config, data and state; what the loop's functions work on.

Knows nothing of how a step is made.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from trainable.clipping import are_alike
from trainable.config import TrainConfig
from trainable.data import Batches
from trainable.group import Alone, Workers
from trainable.precision import Numerics
from trainable.state import TrainState
from trainable.task import Splits, Task

if TYPE_CHECKING:
    from trainable.task import Batch

_version_of = operator.attrgetter("_version")


@dataclass
class Training:
    """One run. Made by `loop.start`, moved on by `loop.advance`."""

    task: Task
    config: TrainConfig
    numerics: Numerics
    state: TrainState
    train: Batches
    val: Batches
    notes: dict[str, str]
    group: Workers = field(default_factory=Alone)
    shape: Hashable = None  # what decides how much memory a sample takes
    stream: Iterator[Batch] | None = None
    # Of this process, not of the run, and so not in a checkpoint:
    proven: int = 0  # elements of the largest micro-batch that went well
    updated: bool = False  # the optimizer has made its tensors
    evaluated: bool = False
    latency_ms: float | None = None  # of one sample, once it was measured
    eval_pieces: int | None = None  # samples at a time in evaluation, after it ran out of memory
    autocast: Callable[[], AbstractContextManager[object]] = field(init=False)
    augments: bool = field(init=False)
    has_batch_norm: bool = field(init=False)
    alike: bool = field(init=False)  # the gradients are of one device and dtype
    _updated_tensors: list[Tensor] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.autocast = self.numerics.autocast()
        self.alike = are_alike(self.state.trained)
        self.augments = type(self.task).augment is not Task.augment
        self.has_batch_norm = has_batch_norm(self.state.model)

    @property
    def total_steps(self) -> int:
        return self.config.epochs * len(self.train.sizes)

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from a checkpoint's state. Raises StateMismatch where it is of another model.

        More epochs than the checkpoint's run had are trained as if they had been asked for from the start, and so
        are more evaluations of patience.
        """
        self.state.load(saved)
        progress, best = self.state.progress, self.state.best
        out_of_patience = self.config.patience is not None and best.evaluations_since >= self.config.patience
        progress.finished = progress.step >= self.total_steps or out_of_patience
        if out_of_patience:
            self.note_early_stop()
        if self.state.micro_batch != self.config.micro_batch:
            self.notes["micro_batch"] = f"{self.state.micro_batch}, as in the checkpoint"
        self.stream = None  # the old one stands at another position
        self._updated_tensors = None

    def note_early_stop(self) -> None:
        self.notes["stopped_early"] = f"no better val_loss for {self.config.patience} evaluations"

    def changes(self) -> int:
        """A number that grows whenever an update changes the weights or the optimizer's tensors in place."""
        if self._updated_tensors is None:
            state = self.state.optimizer.state
            self._updated_tensors = [
                *self.state.trained,
                *(value for tensors in state.values() for value in tensors.values() if isinstance(value, Tensor)),
            ]
        return sum(map(_version_of, self._updated_tensors))

    def drop_compiled(self, reason: str) -> None:
        """Go on without torch.compile, and say so once."""
        self.state.drop_compiled()
        self.notes["compile"] = f"fell back to eager: {reason[:200]}"
        warnings.warn(f"torch.compile failed, going on without it: {reason}", stacklevel=4)

    def close(self) -> None:
        """Let go of loader processes and of the samples on the device."""
        self.stream = None
        self.train.close()
        self.val.close()


def has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def check_for_workers(model: nn.Module, size: int) -> None:
    """Raises ValueError for a model that several workers would train to other weights than one does."""
    if size > 1 and has_batch_norm(model):
        raise ValueError(
            f"the model has BatchNorm, and each of {size} workers would take its statistics from its own part of a "
            "batch: the result would be another than one worker's; use --workers-per-trial 1, or GroupNorm or LayerNorm"
        )


def memory_shape(task: Task, config: TrainConfig, numerics: Numerics, splits: Splits) -> Hashable:
    """Equal for runs whose samples take equally much memory: same model, samples, precision and optimizer."""
    samples = splits.train if isinstance(splits.train, tuple) else ()
    return (
        f"{type(task).__module__}.{type(task).__qualname__}",
        repr(sorted(task.settings().items())),
        tuple((tuple(tensor.shape[1:]), str(tensor.dtype)) for tensor in samples),
        str(numerics.device),
        numerics.name,
        config.optimizer,
        config.ema_decay is None,
        config.freeze,
        config.compile,
    )
