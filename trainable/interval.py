"""What is recorded between two reports: one value a step, on the device, fetched all at once.

Knows nothing of what the values mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

COMPACT_AFTER = 512  # recorded scalars are joined into one tensor after this many, without a sync


@dataclass
class Interval:
    """One value a step since the last report; tensors stay on the device until `fetch`."""

    lrs: list[float] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)  # numbers, or device scalars where the task counts tokens
    losses: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    norms_after: list[Tensor] = field(default_factory=list)

    def record(self, lr: float, weight: Any, loss: Tensor, norm: Tensor, norm_after: Tensor) -> None:
        self.lrs.append(lr)
        self.weights.append(weight)
        self.losses.append(loss)
        self.norms.append(norm)
        self.norms_after.append(norm_after)
        if len(self.lrs) % COMPACT_AFTER == 0:
            self.losses, self.norms, self.norms_after = (
                [joined(values)] for values in (self.losses, self.norms, self.norms_after)
            )

    def fetch(self, clip_norm: float | None) -> tuple[dict[str, list[float]], list[float]]:
        """The curves on the host, and each step's weight. Waits for the device.

        `clip_norm`: where it is set, the norm after clipping is worked out from the norm before, for all
        steps at once: clip_grad_norm_ multiplies by this very factor, so no pass over the gradients is needed.
        """
        norms = on_host(self.norms)
        if clip_norm is None:
            after = on_host(self.norms_after)
        else:
            # Where a gradient overflowed there is nothing to clip (and infinity times 0 is no number).
            after = torch.where(norms.isfinite(), norms * (clip_norm / (norms + 1e-6)).clamp(max=1.0), norms)
        curves = {
            "loss": on_host(self.losses).tolist(),
            "lr": list(self.lrs),
            "grad_norm": norms.tolist(),
            "grad_norm_clipped": after.tolist(),
        }
        return curves, numbers(self.weights)

    def save(self) -> dict[str, Any]:
        return {
            "lrs": list(self.lrs),
            "weights": numbers(self.weights),
            **{name: joined(getattr(self, name)).cpu() for name in ("losses", "norms", "norms_after")},
        }

    def load(self, saved: dict[str, Any], device: torch.device) -> None:
        self.lrs, self.weights = list(saved["lrs"]), list(saved["weights"])
        for name in ("losses", "norms", "norms_after"):
            setattr(self, name, [saved[name].to(device)] if self.lrs else [])


def joined(values: list[Tensor]) -> Tensor:
    """Scalars and vectors, in order, as one vector."""
    return torch.cat([value.reshape(-1) for value in values]) if values else torch.empty(0)


def on_host(values: list[Tensor]) -> Tensor:
    """`joined`, on the CPU in float64: moved first, because mps has no float64."""
    return joined(values).cpu().double()


def numbers(values: list[Any]) -> list[float]:
    """Numbers and device scalars as floats, with one transfer for all of them."""
    tensors = [value.detach().reshape(()) for value in values if isinstance(value, Tensor)]
    fetched = iter(torch.stack(tensors).cpu().double().tolist() if tensors else ())
    return [next(fetched) if isinstance(value, Tensor) else float(value) for value in values]
