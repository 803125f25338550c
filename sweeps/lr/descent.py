"""The speed of loss descent, which decides a learning-rate scan (tutorial, fourth anti-pattern), and its words.

Pure functions of curves and records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sweeps.answers.statistics import MOST_SEEDS, Comparison, Estimate
from sweeps.lr.ranges import beyond, next_value

FIRST_SHARE = 0.05  # of the steps: where the descent starts
LAST_SHARE = 0.20  # of the steps: where it has got to
CLOSE = 0.10  # two speeds that differ by less than this share are called close


def descent_speed(losses: Sequence[float], ceiling: float = math.inf) -> float | None:
    """Loss lost per step: (mean of the first 5 % of steps - mean of the last 20 %) / steps between.

    losses: one a step. The steps between are counted from the middle of the one stretch to the middle of
    the other. None where there is no speed: fewer than two steps, or a loss that is not finite.
    ceiling: what the first mean counts at most. A learning rate that is far too large throws the loss up in its very
    first steps, and what it comes down from there is no descent (see `starting_loss`).
    """
    num_steps = len(losses)
    num_first = _num_first(num_steps)
    num_last = _num_last(num_steps)
    if num_first + num_last > num_steps or not all(map(math.isfinite, losses)):
        return None
    first, last = losses[:num_first], losses[num_steps - num_last :]
    between = (num_steps - (num_last + 1) / 2) - (num_first - 1) / 2
    return (min(math.fsum(first) / num_first, ceiling) - math.fsum(last) / num_last) / between


def starting_loss(losses: Sequence[float]) -> float:
    """The mean of the first 5 % of steps; infinite without any, or where one is not finite.

    That of the smallest learning rate, which has moved least, is the ceiling for all others of the same seed: they saw
    the same samples and began with the same weights.
    """
    first = losses[: _num_first(len(losses))]
    return math.fsum(first) / len(first) if first and all(map(math.isfinite, first)) else math.inf


def _num_first(num_steps: int) -> int:
    return max(1, round(FIRST_SHARE * num_steps))


def _num_last(num_steps: int) -> int:
    return max(1, round(LAST_SHARE * num_steps))


@dataclass(frozen=True)
class Speed:
    """How fast a trial's loss fell, and where it got to; of a configuration over seeds: both as means."""

    number: int
    lr: float
    per_step: float
    final_loss: float
    over_seeds: Estimate | None = None  # of per_step
    beside: Comparison | None = None  # the fastest against this one


def measure(number: int, lr: float, losses: Sequence[float], ceiling: float = math.inf) -> Speed | None:
    """The speed of one trial, or None where it has none (see `descent_speed`)."""
    per_step = descent_speed(losses, ceiling)
    if per_step is None:
        return None
    last = losses[len(losses) - _num_last(len(losses)) :]
    return Speed(number, lr, per_step, math.fsum(last) / len(last))


def verdict(ranked: Sequence[Speed], tried: Sequence[float]) -> str:
    """One sentence: which learning rate, by how much, and what to try next where it is at the edge.

    Over several seeds it calls a tie what is within the noise; of one seed it says nothing that it cannot know.
    """
    if not ranked:
        return "No learning rate has an answer: no trial finished with a finite loss; try smaller ones."
    best = ranked[0]
    if best.per_step <= 0:
        lower = next_value(min(tried), larger=False)
        return f"No learning rate made the loss fall; lr={best.lr:g} came closest; try {lower:g}, or more epochs."
    over_seeds = best.over_seeds is not None and best.over_seeds.num > 1
    words = _lead_over_seeds(ranked) if over_seeds else _lead(ranked)
    lowest = min(ranked, key=lambda speed: speed.final_loss)
    if lowest.final_loss < best.final_loss and lowest is not best:
        # A loss that is down before the first 5 % are over has no descent left to measure.
        words += f", but lr={lowest.lr:g} ends lower ({lowest.final_loss:.3g} against {best.final_loss:.3g})"
        words += ": the scan is too long to tell speeds apart, use fewer epochs"
    if len(tried) == 1:
        return f"{words}; it is the only value tried: try {next_value(best.lr, larger=True):g} next."
    which = f"lr={best.lr:g}" if words.startswith("Tie") else "it"
    if best.lr == max(tried):
        return f"{words}; {which} is the largest value tried: try {beyond(tried, larger=True):g} next."
    if best.lr == min(tried):
        return f"{words}; {which} is the smallest value tried: try {beyond(tried, larger=False):g} next."
    return words + "."


def _lead(ranked: Sequence[Speed]) -> str:
    """How far one seed's fastest is ahead."""
    best = ranked[0]
    words = f"lr={best.lr:g} makes the loss fall fastest: {best.per_step:.3g} per step"
    if len(ranked) == 1:
        return words
    second = ranked[1]
    if second.per_step <= 0:
        return words + f", while the next, lr={second.lr:g}, does not make it fall"
    if best.per_step < second.per_step * (1 + CLOSE):
        return (
            words + f", but lr={second.lr:g} is close ({best.per_step / second.per_step:.2f}x): more epochs would tell"
        )
    return words + f", {best.per_step / second.per_step:.2f}x as fast as the next (lr={second.lr:g})"


def _lead_over_seeds(ranked: Sequence[Speed]) -> str:
    """How far the fastest is ahead beyond the noise between seeds, or with whom it ties."""
    best = ranked[0]
    assert best.over_seeds is not None
    told = [(speed, speed.beside) for speed in ranked[1:] if speed.beside is not None]
    tied = [(speed, beside) for speed, beside in told if beside.tied]
    if not tied:
        words = (
            f"lr={best.lr:g} makes the loss fall fastest: {best.over_seeds} per step over {best.over_seeds.num} seeds"
        )
        if not told:
            return words
        second = told[0][0]
        if second.per_step <= 0:
            return words + f", while the next, lr={second.lr:g}, does not make it fall"
        ahead = f"{best.per_step / second.per_step:.2f}x as fast as the next (lr={second.lr:g})"
        return words + f", {ahead}, which is more than noise (95 % sure)"
    others = " and ".join(f"lr={speed.lr:g} ({speed.over_seeds})" for speed, _ in tied)
    words = f"Tie: lr={best.lr:g} ({best.over_seeds} per step over {best.over_seeds.num} seeds) "
    words += f"and {others} are within the noise (95 %)"
    needed = [beside.seeds for _, beside in tied]
    if not all(beside.is_known for _, beside in tied):
        return words + ": too few seeds are done to tell"
    if None in needed:
        some, either = ("", "either") if len(tied) == 1 else (" all of", "any")
        return words + f"; more than {MOST_SEEDS} more seeds would be needed to tell{some} them apart: take {either}"
    most = max(number for number in needed if number is not None)
    more = most - best.over_seeds.num
    return words + f"; about {more} more seed{'s' if more > 1 else ''} would tell them apart (--seeds {most})"
