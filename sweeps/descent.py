"""The speed of loss descent, which decides a learning-rate scan (tutorial, fourth anti-pattern), and its words.

Pure functions of curves and records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FIRST_SHARE = 0.05  # of the steps: where the descent starts
LAST_SHARE = 0.20  # of the steps: where it has got to
CLOSE = 0.10  # two speeds that differ by less than this share are called close


def descent_speed(losses: Sequence[float]) -> float | None:
    """Loss lost per step: (mean of the first 5 % of steps - mean of the last 20 %) / steps between.

    losses: one a step. The steps between are counted from the middle of the one stretch to the middle of
    the other. None where there is no speed: fewer than two steps, or a loss that is not finite.
    """
    num_steps = len(losses)
    num_first = max(1, round(FIRST_SHARE * num_steps))
    num_last = _num_last(num_steps)
    if num_first + num_last > num_steps or not all(map(math.isfinite, losses)):
        return None
    first, last = losses[:num_first], losses[num_steps - num_last :]
    between = (num_steps - (num_last + 1) / 2) - (num_first - 1) / 2
    return (math.fsum(first) / num_first - math.fsum(last) / num_last) / between


def _num_last(num_steps: int) -> int:
    return max(1, round(LAST_SHARE * num_steps))


@dataclass(frozen=True)
class Speed:
    """How fast a trial's loss fell, and where it got to."""

    number: int
    lr: float
    per_step: float
    final_loss: float


def measure(number: int, lr: float, losses: Sequence[float]) -> Speed | None:
    """The speed of one trial, or None where it has none (see `descent_speed`)."""
    per_step = descent_speed(losses)
    if per_step is None:
        return None
    last = losses[len(losses) - _num_last(len(losses)) :]
    return Speed(number, lr, per_step, math.fsum(last) / len(last))


def rank(speeds: Iterable[Speed | None]) -> list[Speed]:
    """The trials that have a speed, the fastest first; of equals the lower number first."""
    return sorted(filter(None, speeds), key=lambda speed: (-speed.per_step, speed.number))


def verdict(ranked: Sequence[Speed], tried: Sequence[float]) -> str:
    """One sentence: which learning rate, by how much, and what to try next where it is at the edge."""
    if not ranked:
        return "No learning rate has an answer: no trial finished with a finite loss; try smaller ones."
    best = ranked[0]
    if best.per_step <= 0:
        lower = next_value(min(tried), larger=False)
        return f"No learning rate made the loss fall; lr={best.lr:g} came closest; try {lower:g}, or more epochs."
    words = f"lr={best.lr:g} makes the loss fall fastest: {best.per_step:.3g} per step"
    if len(ranked) > 1:
        second = ranked[1]
        if second.per_step <= 0:
            words += f", while the next, lr={second.lr:g}, does not make it fall"
        elif best.per_step < second.per_step * (1 + CLOSE):
            words += f", but lr={second.lr:g} is close ({best.per_step / second.per_step:.2f}x): more epochs would tell"
        else:
            words += f", {best.per_step / second.per_step:.2f}x as fast as the next (lr={second.lr:g})"
    lowest = min(ranked, key=lambda speed: speed.final_loss)
    if lowest.final_loss < best.final_loss and lowest is not best:
        # A loss that is down before the first 5 % are over has no descent left to measure.
        words += f", but lr={lowest.lr:g} ends lower ({lowest.final_loss:.3g} against {best.final_loss:.3g})"
        words += ": the scan is too long to tell speeds apart, use fewer epochs"
    if len(tried) == 1:
        return f"{words}; it is the only value tried: try {next_value(best.lr, larger=True):g} next."
    if best.lr == max(tried):
        return f"{words}; it is the largest value tried: try {next_value(best.lr, larger=True):g} next."
    if best.lr == min(tried):
        return f"{words}; it is the smallest value tried: try {next_value(best.lr, larger=False):g} next."
    return words + "."


def next_value(lr: float, *, larger: bool) -> float:
    """The next learning rate on the ladder 1, 3, 10, 30, ... that is at least twice as large, or as small."""
    exponent = math.floor(math.log10(lr))
    ladder = [float(f"{digit}e{power}") for power in range(exponent - 2, exponent + 3) for digit in (1, 3)]
    # Half and double with a margin, so that 3e-3 -> 1e-2 and 1e-3 -> 3e-3 are not lost to rounding.
    if larger:
        return min(value for value in ladder if value >= lr * 1.999)
    return max(value for value in ladder if value <= lr / 1.999)
