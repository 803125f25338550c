"""What the curves of training and of validation say together: overfitting, underfitting, too early to say.

The tutorial's fifth anti-pattern, mended: no verdict from one number. Reads the reports of one trial, and knows no
other trial.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The first four are shares of what a loss has fallen, so that its unit and its zero do not matter.
STILL_FALLING = 0.05  # over the last third: an exponential descent that has run three of its time constants has 0.09
ROSE_AGAIN = 0.05  # of what validation had gained; less is the wobble of a loss that has levelled off
GAP = 0.2  # training gained this much more than validation did: a fifth of it is memory, and not of use elsewhere
UNSTABLE = 0.1  # training itself rose by so much of its fall: no rate at which it should learn does that
HARDLY = 0.02  # of the untrained model's loss: what falls less has not begun to learn
LEFT = 0.7  # of the untrained model's loss: a model that knows only the frequencies of ten classes leaves all of it
JITTER = 2.0  # times the usual wobble from one report to the next; what is smaller is noise

ADVICE = {
    "diverged": "lower lr, look at the inputs, clip gradients (clip_norm)",
    "unstable": "lower lr, and clip gradients (clip_norm)",
    "overfit": "more data or augmentation, more dropout or weight_decay, or stop early (patience)",
    "too_short": "train longer: more epochs",
    "underfit": "a larger model, longer training, or another lr",
    "fits": "more epochs will not help; what is left lies in the model, its settings or the data",
}
STILL_LEARNS = "more epochs may help a little, or begin to overfit: patience ends a run in time"


@dataclass(frozen=True)
class Diagnosis:
    """kind: diverged, unstable, overfit, too_short, underfit or fits; words: why, in a sentence with the numbers;
    advice: the tutorials' for it."""

    kind: str
    words: str
    advice: str


def diagnose(reports: Sequence[Mapping[str, Any]]) -> Diagnosis | None:
    """What the reports of a trial say together; None where there is nothing to say yet: fewer than two of them have
    both a train_loss and a val_loss.

    reports: as the history keeps them, in order: `epoch`, `metrics`, and where there are any `curves`.
    """
    if reports and (what := _not_finite(reports[-1])):
        return _found("diverged", f"{what} at epoch {reports[-1].get('epoch', len(reports)):g}")
    both = [report for report in reports if _has_both(report["metrics"])]
    if len(both) < 2:
        return None
    train = [float(report["metrics"]["train_loss"]) for report in both]
    val = [float(report["metrics"]["val_loss"]) for report in both]
    epochs = [float(report.get("epoch", index)) for index, report in enumerate(both, start=1)]
    start = _untrained(reports, train)
    low_train, low_val = _smooth(train), _smooth(val)
    best = min(range(len(val)), key=lambda index: (low_val[index], index))
    train_end, val_end = _level(train), _level(val)
    fall, gain = start - min(low_train), start - low_val[best]
    numbers = f"(train_loss {train[-1]:.3g} and val_loss {val[-1]:.3g} at epoch {epochs[-1]:g})"
    if fall <= HARDLY * abs(start):
        return _found(
            "underfit", f"the training loss has hardly moved from the untrained model's {start:.3g} {numbers}"
        )
    if train_end - min(low_train) > max(UNSTABLE * fall, JITTER * _jitter(train)):
        return _found("unstable", f"the training loss rose again, from {min(low_train):.3g} to about {train_end:.3g}")
    rise = val_end - low_val[best]
    if rise > max(ROSE_AGAIN * max(gain, 0.0), JITTER * _jitter(val)) and train_end < low_train[best]:
        lowest = min(range(max(best - 1, 0), min(best + 2, len(val))), key=lambda index: val[index])
        words = f"val_loss rose from {val[lowest]:.3g} at epoch {epochs[lowest]:g} to about {val_end:.3g}, "
        return _found("overfit", words + f"while train_loss fell on, to {train_end:.3g}")
    if _falls_on(train, fall) and _falls_on(val, max(gain, 0.0)):
        return _found("too_short", f"both losses still fall {numbers}")
    if val_end - train_end > GAP * fall:
        return _found("overfit", f"train_loss is far below val_loss, which falls no more {numbers}")
    if start > 0 and train_end > LEFT * start:
        left = f"{train_end / start:.0%} of the untrained model's loss ({start:.3g}) is left"
        return _found("underfit", f"neither loss is low, and neither falls on {numbers}; {left}")
    if _falls_on(train, fall):
        return Diagnosis("fits", f"val_loss has levelled off, while train_loss still falls {numbers}", STILL_LEARNS)
    return _found("fits", f"val_loss has levelled off, not far from train_loss {numbers}")


def _found(kind: str, words: str) -> Diagnosis:
    return Diagnosis(kind, words, ADVICE[kind])


def _not_finite(report: Mapping[str, Any]) -> str | None:
    """What of a report is no number any more; a trial says so in its curves where its metrics are left out."""
    for name, words in (("train_loss", "the training loss"), ("val_loss", "the validation loss")):
        value = report["metrics"].get(name)
        if value is not None and not math.isfinite(value):
            return f"{words} became {value}"
    losses = report.get("curves", {}).get("loss") or ()
    wrong = next((value for value in losses if not math.isfinite(value)), None)
    return None if wrong is None else f"the training loss became {wrong}"


def _has_both(metrics: Mapping[str, float]) -> bool:
    return all(name in metrics and math.isfinite(metrics[name]) for name in ("train_loss", "val_loss"))


def _untrained(reports: Sequence[Mapping[str, Any]], train: Sequence[float]) -> float:
    """The loss before the first step, from which everything falls; of reports without curves the first one's."""
    first = reports[0].get("curves", {}).get("loss") or ()
    return float(first[0]) if first and math.isfinite(first[0]) else train[0]


def _smooth(values: Sequence[float]) -> list[float]:
    """Medians of three neighbours: one lucky or unlucky report is no best and no end. Few reports are as they are."""
    if len(values) < 5:
        return list(values)
    firsts = [min(max(index - 1, 0), len(values) - 3) for index in range(len(values))]
    return [statistics.median(values[first : first + 3]) for first in firsts]


def _level(values: Sequence[float]) -> float:
    """Where a curve has got to: the median of its last third, of two the lower, so that one bad report is none."""
    return float(statistics.median_low(values[-max(2, len(values) // 3) :]))


def _jitter(values: Sequence[float]) -> float:
    """How far a report usually lies from the middle of its neighbours: of a smooth curve nearly nothing."""
    off = [abs(own - (left + right) / 2) for left, own, right in zip(values, values[1:], values[2:], strict=False)]
    return statistics.median(off) if len(off) >= 3 else 0.0


def _falls_on(values: Sequence[float], fall: float) -> bool:
    """Whether the last third took the curve down by a noteworthy share of its fall. Of few reports one may be chance:
    then what the last two did counts, unless the very last one rose."""
    if len(values) == 2:
        last = values[0] - values[1]
    elif len(values) < 5:
        last = (values[-3] - values[-1]) / 2 if values[-1] < values[-2] else 0.0
    else:  # the median of the last three stands in their middle
        smooth = _smooth(values)
        last = smooth[-2 - len(values) // 3] - smooth[-2]
    return last > STILL_FALLING * fall
