"""Gradient clipping, after backward and before the step (tutorial lab 2), with the norms before and after.

Knows nothing of losses or optimizers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainable.config import TrainConfig

ALIKE_ON = ("cpu", "cuda")  # where torch has the kernels that take many tensors at once


def are_alike(parameters: list[Tensor]) -> bool:
    """Whether all gradients are of one kind, so that `clip` need not sort them at every step."""
    kinds = {(parameter.device, parameter.dtype) for parameter in parameters}
    return len(kinds) == 1 and parameters[0].device.type in ALIKE_ON


@torch.no_grad()
def clip(parameters: list[Tensor], config: TrainConfig, alike: bool) -> tuple[Tensor, Tensor]:
    """Clip the gradients by norm, by value or not at all; their total norm before and after, on the device.

    Where `clip_norm` is set the second is not worked out here, but for all
    steps of a report at once (`Interval.fetch`).
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if config.clip_norm is not None:
        if alike and gradients and not any(gradient.is_sparse for gradient in gradients):
            # Line for line what clip_grad_norm_ does, which takes twice as long for small models.
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
            torch._foreach_mul_(gradients, (config.clip_norm / (norm + 1e-6)).clamp(max=1.0))
        else:
            norm = nn.utils.clip_grad_norm_(parameters, config.clip_norm)
        return norm, norm
    norm = nn.utils.get_total_norm(gradients)
    if config.clip_value is None:
        return norm, norm
    nn.utils.clip_grad_value_(parameters, config.clip_value)
    return norm, nn.utils.get_total_norm(gradients)
