"""fashion_mnist: 70,000 pieces of clothing in 28x28 grey pixels (31 MB to download), and a small CNN."""

from __future__ import annotations

from dataclasses import dataclass

from trainable.vision.small_images import SmallImages


@dataclass(frozen=True)
class FashionMnist(SmallImages):
    """Which piece of clothing is it?"""

    flip: bool = True

    name = "FashionMNIST"
    side = 28
    mean = (0.2860,)
    deviation = (0.3530,)
