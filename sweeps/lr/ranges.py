"""Which learning rates a scan tries: values and log grids as they are written, and what lies beyond a range.

Pure functions of texts and numbers; knows nothing of trials.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

AUTO = "auto"
AUTO_VALUES = 6  # learning rates on the range that `--lrs auto` finds, about: one fewer or more makes them rounder
LADDERS = ((1, 2, 5), (1, 3), (1,))  # leading digits of round values, evenly apart as far as one digit can be
MOST_VALUES = 1000  # a grid of more is a slip of the pen
GRID = re.compile(r"(?P<low>[^.]*(?:\.[^.]+)?)\.\.(?P<high>[^:]*)(?::(?P<num>.*))?")
HOW = "write LOW..HIGH:COUNT, such as 1e-5..1e-1:9"


def learning_rates(given: Any) -> list[float] | None:
    """Learning rates from the command line (texts, also joined by commas) or from a file (numbers), each a value or
    a log grid `LOW..HIGH:COUNT`; None for `auto`. Raises ValueError for what is none of these."""
    values = list(given) if isinstance(given, list | tuple) else [given]
    texts = [text.strip() for value in values for text in str(value).split(",") if text.strip()]
    if not texts:
        raise ValueError("--lrs needs at least one learning rate, e.g. --lrs 3e-3 1e-3 3e-4")
    if AUTO in texts:
        if len(texts) > 1:
            others = " ".join(text for text in texts if text != AUTO) or AUTO
            raise ValueError(
                f"--lrs auto finds the range itself, so {others} beside it is too much; give one of the two"
            )
        return None
    found: list[float] = []
    for text in texts:
        if ".." in text:
            found += [lr for lr in _grid_from(text) if lr not in found]
            continue
        lr = _learning_rate(text, "give learning rates such as 3e-3, a grid such as 1e-5..1e-1:9, or auto")
        if lr in found:
            raise ValueError(f"--lrs {text} is given twice; each learning rate is trained once")
        found.append(lr)
    return found


def _learning_rate(text: str, how: str) -> float:
    try:
        lr = float(text)
    except ValueError:
        raise ValueError(f"--lrs {text!r} is not a number; {how}") from None
    if not 0 < lr < math.inf:
        raise ValueError(f"--lrs {text}: a learning rate must be above 0 and finite, such as 1e-3")
    return lr


def _grid_from(text: str) -> list[float]:
    parts = GRID.fullmatch(text)
    if parts is None:
        raise ValueError(f"--lrs {text!r} is no grid; {HOW}")
    ends = [parts["low"], parts["high"]]
    for end in ends:
        try:
            good = 0 < float(end) < math.inf
        except ValueError:
            raise ValueError(f"--lrs {text}: {end!r} is not a number; {HOW}") from None
        if not good:
            raise ValueError(f"--lrs {text}: a log grid cannot have {end}; both ends must be above 0 and finite; {HOW}")
    if not parts["num"]:
        raise ValueError(f"--lrs {text} does not say how many values; {HOW}")
    try:
        num = int(parts["num"])
    except ValueError:
        raise ValueError(f"--lrs {text}: {parts['num']!r} is not a whole number of values; {HOW}") from None
    if not 2 <= num <= MOST_VALUES:
        raise ValueError(
            f"--lrs {text}: a grid has both its ends, so at least 2 values and at most {MOST_VALUES}; {HOW}"
        )
    low, high = map(float, ends)
    if low == high:
        raise ValueError(f"--lrs {text} has the same value at both ends; {HOW}")
    if low > high:
        raise ValueError(f"--lrs {text} goes down; write the smaller end first: {ends[1]}..{ends[0]}:{num}")
    return grid(low, high, num)


def grid(low: float, high: float, num: int) -> list[float]:
    """`num` learning rates from `low` to `high`, both included, evenly apart in their logarithm.

    Those between are rounded to two digits, or to as many more as keep them evenly apart (to a tenth of a step).
    """
    step = math.log(high / low) / (num - 1)
    exact = [low * math.exp(step * index) for index in range(1, num - 1)]
    between = exact
    for digits in range(2, 17):
        between = [rounded(lr, digits) for lr in exact]
        if all(abs(math.log(near / lr)) <= step / 10 for near, lr in zip(between, exact, strict=True)):
            break
    return [low, *between, high]


def rounded(lr: float, digits: int) -> float:
    return float(f"{lr:.{digits - 1}e}")


def round_grid(low: float, high: float) -> list[float]:
    """Round learning rates from about `low` to about `high` (at least a decade apart), at most `AUTO_VALUES` + 1."""
    for digits in LADDERS:
        rungs = _rungs(digits, low, high)
        # The nearest rungs to the two ends: half a rung more or less is within what a range can be known to.
        first, last = (min(rungs, key=lambda rung: abs(math.log(rung / end))) for end in (low, high))
        found = [rung for rung in rungs if first <= rung <= last]
        if len(found) <= AUTO_VALUES + 1:
            return found
    return grid(low, high, AUTO_VALUES)


def _rungs(digits: Sequence[int], low: float, high: float) -> list[float]:
    """All values with these leading digits from below `low` to above `high`."""
    exponents = range(math.floor(math.log10(low)) - 2, math.floor(math.log10(high)) + 3)
    return [float(f"{digit}e{exponent}") for exponent in exponents for digit in digits]


def beyond(tried: Sequence[float], *, larger: bool) -> float:
    """The next learning rate beyond the largest (or the smallest) one tried, as far away as that is from its
    neighbour: on the ladder 1, 3, 10, ... or 1, 2, 5, 10, ... where both stand on it, else to two digits. Needs two."""
    ordered = sorted(tried, reverse=not larger)
    edge, neighbour = ordered[-1], ordered[-2]
    for digits in LADDERS:
        rungs = sorted(_rungs(digits, edge, edge), reverse=not larger)
        if neighbour in rungs and rungs[rungs.index(neighbour) + 1 :][:1] == [edge]:
            return rungs[rungs.index(edge) + 1]
    ratio, digits_kept = edge / neighbour, 2
    even = (edge / ordered[0]) ** (1 / (len(ordered) - 1))  # of a grid, whose values are rounded
    if abs(math.log(ratio / even)) <= abs(math.log(even)) / 10:
        ratio = even
    found = rounded(edge * ratio, digits_kept)
    while abs(math.log(found / (edge * ratio))) > abs(math.log(ratio)) / 10:  # as even as a grid
        digits_kept += 1
        found = rounded(edge * ratio, digits_kept)
    return found


def next_value(lr: float, *, larger: bool) -> float:
    """The next learning rate on the ladder 1, 3, 10, 30, ... that is at least twice as large, or as small."""
    ladder = _rungs((1, 3), lr, lr)
    # Half and double with a margin, so that 3e-3 -> 1e-2 and 1e-3 -> 3e-3 are not lost to rounding.
    if larger:
        return min(value for value in ladder if value >= lr * 1.999)
    return max(value for value in ladder if value <= lr / 1.999)
