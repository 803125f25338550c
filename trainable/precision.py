"""Autocast and GradScaler, or their do-nothing twins (tutorial lab 3).

One table: device -> (autocast dtype, scaler). Knows nothing of models.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from trainable.config import Precision
from trainable.device import Probe

BF16_CAPABILITY = (8, 0)  # Ampere: the first with bf16 tensor cores


@dataclass(frozen=True)
class Numerics:
    """How a run computes: the autocast dtype (None: plain fp32), whether gradients are scaled, and why."""

    device: torch.device
    dtype: torch.dtype | None
    scaled: bool
    reason: str

    @property
    def name(self) -> str:
        return {None: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[self.dtype]

    def autocast(self) -> Callable[[], AbstractContextManager[object]]:
        """A maker of contexts for the forward pass; plain precision costs nothing."""
        if self.dtype is None:
            return contextlib.nullcontext
        return lambda: torch.autocast(self.device.type, dtype=self.dtype)

    def scaler(self, loss_scale: float) -> torch.amp.GradScaler:
        """The gradient scaler, which starts at `loss_scale`; disabled where the precision needs none."""
        return torch.amp.GradScaler(self.device.type, init_scale=loss_scale, enabled=self.scaled)


def choose_numerics(wanted: Precision, device: torch.device, probe: Probe) -> Numerics:
    """The precision for `device`, with its reason.

    | device        | auto                | bf16 | fp16           |
    | cuda >= sm80  | bf16, no scaler     | yes  | with a scaler  |
    | cuda  < sm80  | fp16 with a scaler  | no   | with a scaler  |
    | mps, cpu      | fp32                | yes  | refused on mps |

    On the CPU fp16 is slower than fp32 and exists so that the scaler can be tested without a GPU.
    Raises ValueError for a choice the device cannot honour.
    """
    ampere = device.type == "cuda" and (probe.compute_capability or (0, 0)) >= BF16_CAPABILITY
    if wanted == "auto":
        if device.type != "cuda":
            return Numerics(device, None, False, f"mixed precision gains nothing on {device.type}")
        if ampere:
            return Numerics(device, torch.bfloat16, False, "the GPU has bf16 units, which need no gradient scaling")
        return Numerics(device, torch.float16, True, "the GPU has no bf16 units; fp16 needs gradient scaling")
    if wanted == "fp32":
        return Numerics(device, None, False, "asked for")
    if wanted == "bf16":
        if device.type == "cuda" and not ampere:
            raise ValueError(
                f"precision=bf16 needs a GPU of compute capability 8.0 or newer, this one has "
                f"{probe.compute_capability}; use precision=auto or fp16"
            )
        return Numerics(device, torch.bfloat16, False, "asked for")
    if device.type == "mps":
        raise ValueError("precision=fp16 needs gradient scaling, which mps lacks; use precision=auto or bf16")
    if device.type == "cpu":
        warnings.warn(
            "precision=fp16 on a CPU is slower than fp32 and saves nothing; it is there for tests", stacklevel=2
        )
    return Numerics(device, torch.float16, True, "asked for")
