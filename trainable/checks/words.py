"""Tensors, shapes and errors in words, for the checks. Knows no task."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers: all that .to(device) moves."""
    return [*model.named_parameters(), *model.named_buffers()]


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in whatever a model returns."""
    if isinstance(value, Tensor):
        return [value]
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for entry in entries for tensor in tensors_in(entry)]


def describe(tensor: Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    limits = ""
    if tensor.numel() and not tensor.is_complex():
        low, high = float(tensor.min()), float(tensor.max())
        limits = f" in {low:.4g}..{high:.4g}"
    return f"{tuple(tensor.shape)} {kind}{limits}"


def shapes(value: Any) -> str:
    tensors = tensors_in(value)
    found = ", ".join(f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for tensor in tensors)
    return found or type(value).__name__
