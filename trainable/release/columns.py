"""The columns that drift is looked for in where a task names none: of tables, images and texts, by shape and type.

Knows tensors only, no tasks.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_COLUMNS = 64  # of a sample's own values; of more, so many evenly spaced ones and their mean and spread
CHANNELS = {1: ("",), 3: ("red ", "green ", "blue ")}


def columns_of(part: Tensor) -> dict[str, Tensor]:
    """The columns of samples (N, ...): of whole numbers (N,) or (N, T) their codes, of images (N, C, H, W) a few
    telling numbers, else the values themselves."""
    whole = not (part.is_floating_point() or part.is_complex() or part.dtype is torch.uint8)
    if whole and part.ndim <= 2:
        return {"value" if part.ndim == 1 else "tokens": part}
    if part.ndim == 4:
        return image_numbers(part)
    values = part.float().reshape(len(part), -1)
    width = values.shape[1]
    if width <= MOST_COLUMNS:
        return {f"input {column}": values[:, column] for column in range(width)}
    spaced = torch.linspace(0, width - 1, MOST_COLUMNS).round().long().tolist()
    return {
        "mean": values.mean(1),
        "spread": values.std(1),
        **{f"input {column}": values[:, column] for column in spaced},
    }


def image_numbers(images: Tensor) -> dict[str, Tensor]:
    """Of images (N, C, H, W), for each channel: how bright (mean), how rich in contrast (spread), how sharp (the mean
    step between neighbouring pixels)."""
    pixels = images.float()
    numbers = {"mean": pixels.mean((2, 3)), "spread": pixels.std((2, 3), correction=0)}
    steps = [pixels.diff(dim=dimension).abs() for dimension in (2, 3)]
    numbers["sharpness"] = sum((step.mean((2, 3)) for step in steps if step.numel()), torch.zeros(pixels.shape[:2]))
    channels = CHANNELS.get(images.shape[1], tuple(f"channel {number} " for number in range(images.shape[1])))
    return {f"{called}{name}": found[:, row] for row, called in enumerate(channels) for name, found in numbers.items()}
