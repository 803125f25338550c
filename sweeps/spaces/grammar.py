"""The grammar of search spaces: plain values (YAML, JSON) as objects, and the way back.

Knows no sampler, and not which names exist: a space that is read here makes sense in itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

KINDS = ("float", "log", "int", "choice", "fixed")
MODIFIERS = {"float": ("step",), "int": ("step", "log")}
FORMS = (
    "{float: [low, high]}, {float: [low, high], step: s}, {log: [low, high]}, {int: [low, high]}, "
    "{int: [low, high], step: s}, {int: [low, high], log: true}, {choice: [values]}, "
    "{choice: {value: {further names}}} or a plain value, which is the same for all trials"
)
LARGEST = 2**53  # whole numbers beyond it are not whole in the ledger's database


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included; with a step, only low + k * step."""

    low: float
    high: float
    whole: bool = False
    log: bool = False
    step: float | None = None

    def count(self) -> int | None:
        """How many values there are; None where they have no gaps between them."""
        step = self.step if self.step is not None else 1 if self.whole else None
        return None if step is None else int((_exact(self.high) - _exact(self.low)) / _exact(step)) + 1

    def at(self, index: int) -> float:
        """The value with this index, of those that `count` counts: 0.3 and not 0.30000000000000004."""
        value = _exact(self.low) + index * _exact(self.step or 1)
        return int(value) if self.whole else float(value)

    def snapped(self, value: float) -> float:
        """A drawn value as it is meant: arithmetic on steps is not exact in binary."""
        if self.whole:
            return int(value)
        if self.step is None:
            return float(value)
        return self.at(round((_exact(value) - _exact(self.low)) / _exact(self.step)))

    def holds(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return False
        if self.whole and value != int(value):
            return False
        return self.step is None or self.snapped(value) == value


@dataclass(frozen=True)
class Fixed:
    """One value for all trials."""

    value: Any


@dataclass(frozen=True)
class Option:
    """One of a choice: its value, or what its value is drawn from, and the further names that it brings along."""

    value: Any = None
    drawn: Range | Choice | None = None
    brings: Mapping[str, Entry] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Tells it apart from the others, with its type: True is not 1, and 1 is not 1.0."""
        return text_of(describe_entry(self.drawn) if self.drawn is not None else self.value)


@dataclass(frozen=True)
class Choice:
    options: tuple[Option, ...]


Entry = Range | Fixed | Choice
Entries = Mapping[str, Entry]


def parse_space(plain: Mapping[str, Any]) -> dict[str, Entry]:
    """The entries of a space by name. Raises ValueError in words for what makes no sense."""
    return _entries(plain, "space")


def describe(entries: Entries) -> dict[str, Any]:
    """Plain values (JSON) that `parse_space` reads as these entries."""
    return {name: describe_entry(entry) for name, entry in entries.items()}


def describe_entry(entry: Entry) -> Any:
    if isinstance(entry, Fixed):
        return {"fixed": entry.value} if isinstance(entry.value, Mapping) else entry.value
    if isinstance(entry, Range):
        if entry.log and not entry.whole:
            return {"log": [entry.low, entry.high]}
        extra = {} if entry.step is None else {"step": entry.step}
        return {
            "int" if entry.whole else "float": [entry.low, entry.high],
            **extra,
            **({"log": True} if entry.log else {}),
        }
    options = entry.options
    if any(option.brings for option in options) and all(isinstance(option.value, str) for option in options):
        return {"choice": {option.value: describe(option.brings) for option in options}}
    return {"choice": [_describe_option(option) for option in options]}


def names_in(entries: Entries) -> Iterator[str]:
    """Every name, once for each place where it stands."""
    for name, entry in entries.items():
        yield name
        for option in entry.options if isinstance(entry, Choice) else ():
            yield from names_in(option.brings)


def largest(entries: Entries, name: str) -> list[float]:
    """The largest numbers that this name can have, one for each place where it stands."""
    found: list[float] = []
    for key, entry in entries.items():
        if key == name:
            found += _tops(entry)
        for option in entry.options if isinstance(entry, Choice) else ():
            found += largest(option.brings, name)
    return found


def _tops(entry: Entry) -> list[float]:
    if isinstance(entry, Range):
        return [entry.high]
    if isinstance(entry, Fixed):
        return [entry.value] if _is_number(entry.value) else []
    return [top for option in entry.options for top in _tops(option.drawn or Fixed(option.value))]


def text_of(value: Any) -> str:
    """A plain value as text that keeps its type."""
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _describe_option(option: Option) -> Any:
    plain = describe_entry(option.drawn if option.drawn is not None else Fixed(option.value))
    if option.brings:
        return {"value": plain, "with": describe(option.brings)}
    return plain


def _entries(plain: Any, where: str) -> dict[str, Entry]:
    if not isinstance(plain, Mapping):
        raise ValueError(f"{where}: {plain!r} must be a mapping of names, e.g. {{lr: {{log: [1e-5, 1e-1]}}}}")
    found: dict[str, Entry] = {}
    taken: dict[str, str] = {}
    for name, spec in plain.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"{where}: the name {name!r} must be text")
        entry = found[name] = parse_entry(name, spec)
        for inner in {name, *(names_in({name: entry}))}:
            if inner in taken:
                raise ValueError(
                    f"{where}: {inner} stands in {taken[inner]} and in {name}, so a trial could get it twice; "
                    "keep one of them"
                )
            taken[inner] = name
    return found


def parse_entry(name: str, spec: Any) -> Entry:
    """What one name is drawn from. Raises ValueError in words."""
    where = f"space of {name}"
    if not isinstance(spec, Mapping):
        return Fixed(_plain(spec, where))
    kinds = [kind for kind in KINDS if kind in spec]
    # log is a kind of its own, and says of whole numbers how they are spread
    if "int" in kinds and "log" in kinds:
        kinds.remove("log")
    allowed = {*kinds, *(MODIFIERS.get(kinds[0], ()) if kinds else ())}
    if len(kinds) != 1 or not set(spec) <= allowed:
        raise ValueError(f"{where}: {dict(spec)} must be one of {FORMS}; a fixed mapping is {{fixed: {{...}}}}")
    kind = kinds[0]
    if kind == "fixed":
        return Fixed(_plain(spec["fixed"], where))
    if kind == "choice":
        return _choice(name, spec["choice"], where)
    return _range(kind, spec, where)


def _range(kind: str, spec: Mapping[str, Any], where: str) -> Range:
    shown, values = dict(spec), spec[kind]
    if not isinstance(values, list | tuple) or len(values) != 2 or not all(map(_is_number, values)):
        raise ValueError(f"{where}: {shown} must have two finite numbers, [low, high]")
    whole, step, log = kind == "int", spec.get("step"), kind == "log" or spec.get("log", False)
    if not isinstance(log, bool):
        raise ValueError(f"{where}: {shown}: log must be true or false")
    if step is not None and (not _is_number(step) or step <= 0):
        raise ValueError(f"{where}: {shown}: the step must be a finite number above 0")
    if whole:
        numbers = (*values, *(() if step is None else (step,)))
        if any(number != int(number) or abs(number) > LARGEST for number in numbers):
            raise ValueError(f"{where}: {shown} must have whole numbers up to {LARGEST}; for others write float")
        values, step = [int(number) for number in values], None if step is None else int(step)
    else:
        values, step = [float(number) for number in values], None if step is None else float(step)
    low, high = values
    if low == high:
        raise ValueError(f"{where}: {shown} is empty: low and high are both {low}; a fixed value is written without []")
    if low > high or not math.isfinite(high - low):
        raise ValueError(f"{where}: {shown} must go from low to high, as finite numbers; did you mean {[high, low]}?")
    if log and low <= 0:
        raise ValueError(f"{where}: {shown}: a logarithmic range must lie above 0; low is {low}")
    if step is not None and log:
        raise ValueError(
            f"{where}: {shown} has a step and is logarithmic; keep one of them, or list the values: choice"
        )
    if step is not None and (_exact(high) - _exact(low)) % _exact(step) != 0:
        raise ValueError(
            f"{where}: {shown}: the step {step} does not divide the range: {high} would never be reached; "
            "change high or the step"
        )
    return Range(low, high, whole, log, step)


def _choice(name: str, given: Any, where: str) -> Choice:
    if isinstance(given, Mapping):
        wrong = [key for key in given if not isinstance(key, str)]
        if wrong:
            raise ValueError(
                f"{where}: the value {wrong[0]!r} is no text; write its branch as "
                f"[{{value: {wrong[0]}, with: {{...}}}}, ...]"
            )
        options = [Option(key, brings=_brings(name, key, inner, where)) for key, inner in given.items()]
    elif isinstance(given, list | tuple):
        options = [_option(name, item, where) for item in given]
    else:
        raise ValueError(f"{where}: {{choice: {given!r}}} must list values: {{choice: [a, b]}}")
    if len(options) < 2:
        raise ValueError(
            f"{where}: {{choice: {given}}} leaves nothing to choose: it needs at least 2 values and has {len(options)}"
        )
    labels = [option.label for option in options]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"{where}: the choice has the value {label} twice; each stands there once")
    return Choice(tuple(options))


def _option(name: str, item: Any, where: str) -> Option:
    if isinstance(item, Mapping) and set(item) == {"value", "with"}:
        inner = _option(name, item["value"], where)
        if inner.brings:
            raise ValueError(f"{where}: {dict(item)} says twice what it brings along; keep one `with`")
        return Option(inner.value, inner.drawn, _brings(name, inner.label, item["with"], where))
    if isinstance(item, Mapping) and any(kind in item for kind in KINDS):
        drawn = parse_entry(name, item)
        if isinstance(drawn, Fixed):
            return Option(drawn.value)
        return Option(drawn=drawn)
    return Option(_plain(item, where))


def _brings(name: str, label: str, plain: Any, where: str) -> dict[str, Entry]:
    brings = _entries({} if plain is None else plain, f"{where}={label}")
    if name in names_in(brings):
        raise ValueError(f"{where}={label} brings {name} itself along; leave it out there")
    return brings


def _plain(value: Any, where: str) -> Any:
    """A value that JSON keeps as it is, tuples as lists."""
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise ValueError(f"{where}: {dict(value)!r}: the keys of a mapping must be text")
        return {key: _plain(item, where) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: {value} must be a finite number")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{where}: {value!r} must be a number, a text, true, false, null, a list or a mapping")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _exact(value: float) -> Decimal:
    """A number as it is written down: 0.1 divides 1."""
    return Decimal(repr(value))
