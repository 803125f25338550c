"""Whether a newly accepted model beats the one that is champion: on the same test samples, sample by sample.

Knows no MLflow: both sides are what their acceptances say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainable.release.outcomes import Outcomes

CHAMPION, CHALLENGER = "champion", "challenger"


@dataclass(frozen=True)
class Side:
    """A model as its acceptance says: what was told, and its outcomes on the test samples, None where they are gone."""

    told: Mapping[str, Any]
    outcomes: Outcomes | None


@dataclass(frozen=True)
class Standing:
    """The alias that a model gets, and why."""

    alias: str
    why: str


def standing(ours: Side, theirs: Side | None, champion: str) -> Standing:
    """champion: how the present one is called, in words; theirs: None where it says nothing of its test.

    By the metric of our sweep. Better by however little is better: what is within the noise is said to be.
    """
    if theirs is None:
        return Standing(CHALLENGER, f"{champion} does not say on which test samples it was tested, so nothing is known")
    ours_test, theirs_test = ours.told["test"], theirs.told.get("test", {})
    if ours_test["fingerprint"] != theirs_test.get("fingerprint"):
        return Standing(CHALLENGER, f"{champion} was tested on other samples, so the two cannot be compared")
    name, mode = ours.told["metric"]["name"], ours.told["metric"]["mode"]
    if name not in theirs_test["metrics"]:
        return Standing(CHALLENGER, f"{champion} has no test {name}, so the two cannot be compared by it")
    mean, other = ours_test["metrics"][name]["mean"], theirs_test["metrics"][name]["mean"]
    words = f"test {name} {mean:.4g} against {other:.4g} of {champion}, on the same samples"
    noise = _noise(ours, theirs, name)
    if mean == other:
        return Standing(CHALLENGER, f"{words}: no better")
    if (mean < other) == (mode == "min"):
        return Standing(CHAMPION, f"{words}: better{noise}")
    return Standing(CHALLENGER, f"{words}: worse{noise}")


def _noise(ours: Side, theirs: Side, name: str) -> str:
    """How sure the difference is, as the end of a sentence."""
    from trainable.release.intervals import paired_difference

    if ours.outcomes is None or theirs.outcomes is None or name not in theirs.outcomes.sums:
        return ", by how much more than noise is not known: the outcomes of each sample are gone"
    one, other = ours.outcomes, theirs.outcomes
    if one.weight.shape != other.weight.shape or bool((one.weight != other.weight).any()):
        return ", by how much more than noise is not known: they were measured in other units"
    _, ends = paired_difference(one.sums[name], other.sums[name], one.weight)
    if ends is None:
        return ""
    low, high = ends
    within = low <= 0 <= high
    sure = "which is within the noise" if within else "which is more than noise"
    return f", {sure} (95 % interval of the paired difference: {low:.3g} to {high:.3g})"
