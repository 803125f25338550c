"""A value as a dataclass field declares it: from YAML, JSON or the command line, or an error in words.

Knows no task and no configuration, and imports no torch.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin


def as_declared(name: str, value: Any, hint: Any) -> Any:
    """`value` as the type that `hint` names: YAML has lists where a dataclass has tuples, and texts for paths.

    Understands int, float, bool, str, Path, Literal, Optional and other unions, tuples, lists and mappings; a value
    of any other type is left as it is. Raises ValueError with the name, what was given and what is allowed.
    """
    origin = get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _one_of(name, value, get_args(hint))
    if origin is Literal:
        if not any(value == allowed and type(value) is type(allowed) for allowed in get_args(hint)):
            raise ValueError(f"{name}={value!r} must be one of {', '.join(map(str, get_args(hint)))}")
        return value
    if (origin or hint) in (tuple, list):
        return _sequence(name, value, hint)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ValueError(f"{name}={value!r} must be a mapping, e.g. {{'head.*': 10}}")
        return {str(key): as_declared(f"{name}[{key!r}]", entry, get_args(hint)[1]) for key, entry in value.items()}
    return _single(name, value, hint)


def _single(name: str, value: Any, hint: Any) -> Any:
    if hint is bool:
        if not isinstance(value, bool):
            raise ValueError(f"{name}={value!r} must be true or false")
    elif hint is int:
        if isinstance(value, float) and value.is_integer():  # 1e3 in YAML is a float
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{name}={value!r} must be a whole number")
    elif hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name}={value!r} must be a number")
        value = float(value)
    elif hint is str:
        if not isinstance(value, str):
            raise ValueError(f"{name}={value!r} must be a text; in quotes, e.g. '\"{value}\"', it is one")
    elif hint is Path:
        if not isinstance(value, str | Path) or not str(value):
            raise ValueError(f"{name}={value!r} must be a path")
        value = Path(value).expanduser()
    elif hint is type(None) and value is not None:
        raise ValueError(f"{name}={value!r} must be null")
    return value


def _one_of(name: str, value: Any, hints: tuple[Any, ...]) -> Any:
    """The first type of a union that takes the value; its very own type before one that converts it."""
    if value is None and type(None) in hints:
        return None
    others = sorted((hint for hint in hints if hint is not type(None)), key=lambda hint: type(value) is not hint)
    said = []
    for hint in others:
        try:
            return as_declared(name, value, hint)
        except ValueError as error:
            said.append(str(error).removeprefix(f"{name}={value!r} "))
    off = ", or null to switch it off" if type(None) in hints else ""
    raise ValueError(f"{name}={value!r} {', or '.join(said)}{off}")


def _sequence(name: str, value: Any, hint: Any) -> Any:
    kind = get_origin(hint) or hint
    entries = get_args(hint)
    names = entries[:1] == (str,)
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise ValueError(
            f"{name}={value!r} must be a list{' of names, e.g. [backbone.*]' if names else ', e.g. [1, 2]'}"
        )
    if not entries:
        return kind(value)
    if kind is tuple and Ellipsis not in entries:
        if len(value) != len(entries):
            raise ValueError(f"{name}={value!r} must have {len(entries)} entries")
        hints = entries
    else:
        hints = (entries[0],) * len(value)
    return kind(as_declared(f"{name}[{index}]", v, h) for index, (v, h) in enumerate(zip(value, hints, strict=True)))
