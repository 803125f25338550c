"""A moving average of the weights (Polyak and Juditsky 1992), which evaluation may look at instead of the weights.

Knows nothing of optimizers or evaluation.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class Average:
    """The first update copies the weights; each later one moves `1 - decay` of the way towards them.

    Buffers (BatchNorm's running statistics) are averages already, and are copied. The same rule as
    torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn, without its look at a counter on the device.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model)
        self.model.requires_grad_(False)
        self.num_updates = 0
        self._decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        ours = [parameter.detach() for parameter in self.model.parameters()]
        theirs = [parameter.detach() for parameter in model.parameters()]
        if self.num_updates == 0:
            torch._foreach_copy_(ours, theirs)
        else:
            torch._foreach_lerp_(ours, theirs, 1 - self._decay)
        buffers: list[Tensor] = list(self.model.buffers())
        if buffers:
            torch._foreach_copy_(buffers, list(model.buffers()))
        self.num_updates += 1
