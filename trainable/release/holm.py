"""Holm's correction: many tests at once, and a false claim among all of them no likelier than of one.

Knows numbers only; imports nothing.
"""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values, each raised so that, compared with a level, a false claim among all of them together is no
    likelier than that level (Holm 1979, "A simple sequentially rejective multiple test procedure"; it assumes no
    independence)."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for position, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - position) * p_values[index]))
        adjusted[index] = largest
    return adjusted
