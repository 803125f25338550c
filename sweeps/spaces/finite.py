"""The configurations of a space, where they can be counted.

Knows nothing of trials: of what was drawn already others keep account.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from sweeps.spaces.grammar import Choice, Entries, Entry, Fixed, Option, Range


def num_configurations(entries: Entries) -> int | None:
    """How many different configurations there are; None where some range has no step."""
    counts = [_count(entry) for entry in entries.values()]
    return None if any(count is None for count in counts) else math.prod(count for count in counts if count is not None)


def configurations(entries: Entries) -> Iterator[dict[str, Any]]:
    """All of them, the last name changing fastest. For spaces that `num_configurations` can count."""
    yield from _product(list(entries.items()))


def _product(items: list[tuple[str, Entry]]) -> Iterator[dict[str, Any]]:
    if not items:
        yield {}
        return
    (name, entry), *others = items
    for first in _parts(name, entry):
        for rest in _product(others):
            yield {**first, **rest}


def _parts(name: str, entry: Entry) -> Iterator[dict[str, Any]]:
    if isinstance(entry, Fixed):
        yield {name: entry.value}
    elif isinstance(entry, Range):
        count = entry.count()
        assert count is not None, "only spaces that can be counted are listed"
        yield from ({name: entry.at(index)} for index in range(count))
    else:
        for option in entry.options:
            own = [{name: option.value}] if option.drawn is None else _parts(name, option.drawn)
            for first in own:
                for rest in _product(list(option.brings.items())):
                    yield {**first, **rest}


def _count(entry: Entry) -> int | None:
    if isinstance(entry, Fixed):
        return 1
    if isinstance(entry, Range):
        return entry.count()
    counts = [_count_of_option(option) for option in entry.options]
    return None if any(count is None for count in counts) else sum(count for count in counts if count is not None)


def _count_of_option(option: Option) -> int | None:
    own = 1 if option.drawn is None else _count(option.drawn)
    brought = num_configurations(option.brings)
    return None if own is None or brought is None else own * brought


def is_continuous(entry: Entry) -> bool:
    return _count(entry) is None


def is_conditional(entries: Entries) -> bool:
    """Whether some names exist in some trials only."""
    return any(
        isinstance(entry, Choice) and any(option.brings or option.drawn for option in entry.options)
        for entry in entries.values()
    )
