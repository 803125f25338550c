"""What an attempt at a step may have changed before it failed, so that the step can be made again exactly.

Taken only before an attempt that is larger than any that went well, so a run pays for it a few times in all.
Knows nothing of why an attempt failed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainable import seeding
from trainable.optim import load_named_state, named_state
from trainable.state import TrainState


class Undo:
    """The generators and buffers as they were, and with `update` the weights and the optimizer's state too.

    Before the first update of a process the optimizer's own tensors do not exist yet: making them is
    where the memory of the update is asked for, between the updates of two groups.
    """

    def __init__(self, state: TrainState, *, update: bool) -> None:
        self._state = state
        self._random = seeding.global_state(state.device)
        self._buffers = [buffer.detach().clone() for buffer in state.model.buffers()]
        # On the host: the device is what is short of memory.
        self._weights: list[Tensor] | None = None
        self._optimizer: Any = None
        if update:
            self._weights = [_cpu_copy(parameter) for parameter in state.trained]
            self._optimizer = _cpu_copy(named_state(state.optimizer, state.model))

    @torch.no_grad()
    def apply(self) -> None:
        """Put everything back."""
        seeding.set_global_state(self._random, self._state.device)
        for buffer, before in zip(self._state.model.buffers(), self._buffers, strict=True):
            buffer.copy_(before)
        if self._weights is not None:
            for parameter, weight in zip(self._state.trained, self._weights, strict=True):
                parameter.copy_(weight)
            load_named_state(self._state.optimizer, self._state.model, self._optimizer)


def _cpu_copy(value: Any) -> Any:
    """Nested dicts and lists, their tensors copied to the CPU."""
    if isinstance(value, Tensor):
        return value.detach().clone() if value.device.type == "cpu" else value.detach().cpu()
    if isinstance(value, dict):
        return {key: _cpu_copy(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_cpu_copy(entry) for entry in value]
    return value
