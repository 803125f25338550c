"""Random moves of whole batches of images, on the device they are on. Every draw is from the generator given."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def flipped(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each of images (B, C, H, W) mirrored left to right, or not, with equal chances."""
    mirrored = torch.rand(len(images), device=images.device, generator=generator) < 0.5
    return torch.where(mirrored[:, None, None, None], images.flip(-1), images)


def shifted(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Each of images (B, C, H, W) moved by up to `share` of its height and width; what comes in is black."""
    height, width = images.shape[-2:]
    reach = round(share * height), round(share * width)
    padded = functional.pad(images, (reach[1], reach[1], reach[0], reach[0]))
    size = (len(images), 1)
    top = torch.randint(0, 2 * reach[0] + 1, size, device=images.device, generator=generator)
    left = torch.randint(0, 2 * reach[1] + 1, size, device=images.device, generator=generator)
    rows = (top + torch.arange(height, device=images.device))[:, :, None]
    columns = (left + torch.arange(width, device=images.device))[:, None, :]
    each = torch.arange(len(images), device=images.device)[:, None, None]
    return padded.movedim(1, -1)[each, rows, columns].movedim(-1, 1)


def moved(images: Tensor, flip: bool, shift: float, generator: torch.Generator) -> Tensor:
    """`flipped` and `shifted`, as far as they are wanted."""
    if flip:
        images = flipped(images, generator)
    return shifted(images, shift, generator) if shift else images
