"""cifar10: 60,000 photographs of 32x32 coloured pixels in ten classes (170 MB to download), and a small CNN."""

from __future__ import annotations

from dataclasses import dataclass

from trainable.vision.small_images import SmallImages


@dataclass(frozen=True)
class Cifar10(SmallImages):
    """What is in the picture? Flips and shifts of 4 pixels are the usual augmentation."""

    depth: int = 3
    flip: bool = True
    shift: float = 0.125

    name = "CIFAR10"
    side = 32
    mean = (0.4914, 0.4822, 0.4465)
    deviation = (0.2470, 0.2435, 0.2616)
