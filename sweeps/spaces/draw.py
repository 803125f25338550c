"""How a trial gets its parameters from a space, and what a given configuration is in Optuna's terms.

Optuna gets numbers and texts only; values are given to trials as they stand in the space. Knows no sampler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import BaseTrial

from sweeps.spaces.grammar import Choice, Entries, Entry, Fixed, Option, Range, names_in, text_of


def draw(entries: Entries, trial: BaseTrial) -> dict[str, Any]:
    """The parameters of a trial, in the order of the space; of a choice's branches, only what was chosen."""
    return _Names(entries).draw(entries, trial, "")


def encode(entries: Entries, params: Mapping[str, Any], *, partial: bool = False) -> dict[str, Any]:
    """What Optuna's trial would have been given to get these parameters. Of `partial` ones, some may be left out.

    Raises ValueError in words for parameters that do not lie in the space.
    """
    left = dict(params)
    found = _Names(entries).encode(entries, left, "", partial)
    if left:
        raise ValueError(f"{next(iter(left))} is not in the space, or not beside the other parameters: {dict(params)}")
    return found


def inside(entries: Entries, params: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the parameters whose names stand in the space; a point may fix others beside them."""
    names = set(names_in(entries))
    return {name: value for name, value in params.items() if name in names}


def point_distributions(
    point: Mapping[str, Any], points: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[float, BaseDistribution]]:
    """A point of a sweep that has no space, as Optuna keeps it: for each name its internal value and distribution.

    Numbers get a float or int distribution over the points' range; anything else is a choice.
    """
    return {name: _among(value, [other[name] for other in points if name in other]) for name, value in point.items()}


def _among(value: Any, values: list[Any]) -> tuple[float, BaseDistribution]:
    if all(isinstance(other, float) for other in values):
        return value, FloatDistribution(min(values), max(values))
    if all(isinstance(other, int) and not isinstance(other, bool) for other in values):
        return value, IntDistribution(min(values), max(values))
    texts = list(dict.fromkeys(text_of(other) for other in values))
    plain = {text_of(other): other for other in values}
    simple = all(other is None or isinstance(other, bool | int | float | str) for other in values)
    return texts.index(text_of(value)), CategoricalDistribution([plain[text] if simple else text for text in texts])


class _Names:
    """What a place in the space is called in Optuna: its name, and where that stands in several branches, which one."""

    def __init__(self, entries: Entries) -> None:
        self._ambiguous = {name for name, count in Counter(names_in(entries)).items() if count > 1}

    def _key(self, name: str, path: str) -> str:
        return f"{name} @ {path}" if name in self._ambiguous else name

    def draw(self, entries: Entries, trial: BaseTrial, path: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, entry in entries.items():
            found |= self._draw(name, entry, self._key(name, path), trial)
        return found

    def _draw(self, name: str, entry: Entry, key: str, trial: BaseTrial) -> dict[str, Any]:
        if isinstance(entry, Fixed):
            return {name: entry.value}
        if isinstance(entry, Range):
            if entry.whole:
                low, high, step = int(entry.low), int(entry.high), int(entry.step or 1)
                return {name: trial.suggest_int(key, low, high, step=step, log=entry.log)}
            return {
                name: entry.snapped(trial.suggest_float(key, entry.low, entry.high, step=entry.step, log=entry.log))
            }
        labels = [option.label for option in entry.options]
        option = entry.options[labels.index(trial.suggest_categorical(key, labels))]
        own = {name: option.value}
        if option.drawn is not None:
            own = self._draw(name, option.drawn, f"{key} = {option.label}", trial)
        return {**own, **self.draw(option.brings, trial, f"{key}={option.label}")}

    def encode(self, entries: Entries, left: dict[str, Any], path: str, partial: bool) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, entry in entries.items():
            if name in left:
                found |= self._encode(name, entry, self._key(name, path), left, partial)
            elif not partial:
                raise ValueError(f"{name} is lacking")
        return found

    def _encode(self, name: str, entry: Entry, key: str, left: dict[str, Any], partial: bool) -> dict[str, Any]:
        value = left[name]
        if isinstance(entry, Choice):
            option = _option_of(name, entry, value, left)
            own = {key: option.label}
            if option.drawn is not None:
                own |= self._encode(name, option.drawn, f"{key} = {option.label}", left, partial)
            left.pop(name, None)
            return {**own, **self.encode(option.brings, left, f"{key}={option.label}", partial)}
        if not holds(entry, value):
            raise ValueError(f"{name}={value!r} does not lie in the space")
        del left[name]
        if isinstance(entry, Fixed):
            return {}
        return {key: int(value) if entry.whole else float(value)}


def _option_of(name: str, choice: Choice, value: Any, beside: Mapping[str, Any]) -> Option:
    """The option that a value came from. A value may stand there by itself and lie in a range too: what the options
    bring along tells, and then the type."""

    def unlikeliness(option: Option) -> tuple[bool, int, bool, bool]:
        whole = isinstance(option.drawn, Range) and option.drawn.whole
        return (
            not set(option.brings) <= set(beside),
            -len(option.brings),
            option.drawn is not None,
            isinstance(option.drawn, Range) and whole is not isinstance(value, int),
        )

    held = [option for option in choice.options if holds(option.drawn or Fixed(option.value), value)]
    if not held:
        raise ValueError(f"{name}={value!r} is none of {', '.join(option.label for option in choice.options)}")
    return min(held, key=unlikeliness)


def holds(entry: Entry, value: Any) -> bool:
    """Whether a value can have been drawn from this entry."""
    if isinstance(entry, Range):
        return entry.holds(value)
    if isinstance(entry, Fixed):
        return text_of(entry.value) == text_of(value)
    return any(holds(option.drawn or Fixed(option.value), value) for option in entry.options)
