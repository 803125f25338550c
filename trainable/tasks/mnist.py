"""mnist: 70,000 handwritten digits of 28x28 grey pixels (12 MB to download), and a small CNN."""

from __future__ import annotations

from dataclasses import dataclass

from trainable.vision.small_images import SmallImages


@dataclass(frozen=True)
class Mnist(SmallImages):
    """Which digit is it? A mirrored digit is none, so nothing is flipped."""

    name = "MNIST"
    side = 28
    mean = (0.1307,)
    deviation = (0.3081,)
