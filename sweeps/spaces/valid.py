"""Whether what a space names exists, and whether each of its values can be a trial's.

Asks `accepts`, which is the sweep's; knows no sampler. All of it comes before the first trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from sweeps.spaces.grammar import Choice, Entries, Entry, Fixed, Range, names_in
from trainable.config import unknown_name

Accepts = Callable[[Mapping[str, Any]], object]
Pick = Literal["low", "middle", "high"]
SHARE = 0.381966  # of a range: a place that no round number hits, so that whole numbers are not met by chance


def check_values(entries: Entries, known: Sequence[str], accepts: Accepts) -> None:
    """Raises ValueError for a name that neither config nor task has, and for a value that no trial could have.

    Whether a value is accepted may depend on others (nesterov on the optimizer): it is refused when it is with
    none of the others that are tried beside it.
    """
    for name in names_in(entries):
        if name not in known:
            raise ValueError(unknown_name("parameter", name, list(known)))
    for name, path, value in _leaves(entries, {}):
        contexts = [path, *(_filled(entries, path, pick) for pick in ("middle", "low", "high"))]
        refused = [_refusal({**context, name: value}, accepts) for context in contexts]
        if all(refused):
            hint = ""
            if isinstance(value, list) and isinstance(entries.get(name), Fixed):
                hint = f"; to choose from the list write {{choice: {value}}}"
            raise ValueError(f"space of {name}: {refused[0]}{hint}")


def check_conflicts(names: Sequence[str], fixed: Mapping[str, Any], flag: str = "--set") -> None:
    """Raises ValueError for a name that is searched and fixed at once."""
    for name in names:
        if name in fixed:
            raise ValueError(f"{flag} {name}={fixed[name]} fixes what the space searches; leave one of them out")


def _refusal(params: Mapping[str, Any], accepts: Accepts) -> str | None:
    try:
        accepts(params)
    except ValueError as error:
        return str(error)
    return None


def _leaves(entries: Entries, path: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Each name with the choices that lead to it, and values that stand for all it can have."""
    for name, entry in entries.items():
        for value in _samples(entry):
            yield name, path, value
        for option in entry.options if isinstance(entry, Choice) else ():
            value = option.value if option.drawn is None else next(_samples(option.drawn))
            yield from _leaves(option.brings, {**path, name: value})


def _samples(entry: Entry) -> Iterator[Any]:
    if isinstance(entry, Fixed):
        yield entry.value
    elif isinstance(entry, Range):
        yield entry.low
        yield _inside(entry)
        yield entry.high
    else:
        for option in entry.options:
            if option.drawn is not None:
                yield from _samples(option.drawn)
            else:
                yield option.value


def _inside(entry: Range) -> float:
    count = entry.count()
    return entry.low + (entry.high - entry.low) * SHARE if count is None else entry.at(min(1, count - 1))


def _filled(entries: Entries, path: Mapping[str, Any], pick: Pick) -> dict[str, Any]:
    """A whole configuration on a path: each other name has its lowest, a middle or its highest value."""
    found: dict[str, Any] = {}
    for name, entry in entries.items():
        if isinstance(entry, Choice):
            index = {"low": 0, "middle": len(entry.options) // 2, "high": len(entry.options) - 1}[pick]
            on_path = [option for option in entry.options if name in path and option.value == path[name]]
            option = on_path[0] if on_path else entry.options[index]
            found |= {name: path.get(name, option.value if option.drawn is None else _picked(option.drawn, pick))}
            found |= _filled(option.brings, path, pick)
        else:
            found[name] = _picked(entry, pick)
    return found


def _picked(entry: Entry, pick: Pick) -> Any:
    if isinstance(entry, Range):
        return {"low": entry.low, "middle": _inside(entry), "high": entry.high}[pick]
    samples = list(_samples(entry))
    return samples[{"low": 0, "middle": len(samples) // 2, "high": -1}[pick]]
