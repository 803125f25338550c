"""One entry of a space as text: `lr=log:1e-5..1e-1`.

Knows how values are written on a command line; what a space may say is in grammar.py.
"""

from __future__ import annotations

import re
from typing import Any

from sweeps.spaces.grammar import describe_entry, parse_entry
from trainable.settings import parse_value

FORMS = (
    "NAME=log:LOW..HIGH, NAME=float:LOW..HIGH, NAME=int:LOW..HIGH, with /STEP at the end if wanted, "
    "NAME=int:LOW..HIGH/log, NAME=choice:A,B,C or NAME=VALUE"
)
RANGE = re.compile(r"(?P<low>[^/]+?)\.\.(?P<high>[^/]+)(/(?P<step>.+))?")


def parse_space_text(entry: str) -> tuple[str, Any]:
    """`batch_size=choice:32,64` as `("batch_size", {"choice": [32, 64]})`. Raises ValueError in words."""
    name, equals, text = (part.strip() for part in entry.partition("="))
    if not equals or not name or not text:
        raise ValueError(f"--space {entry!r} must be one of {FORMS}")
    kind, colon, rest = text.partition(":")
    if colon and kind == "choice":
        spec: Any = {"choice": parse_value(name, f"[{rest}]")}
    elif colon and kind in ("float", "log", "int"):
        spec = _range(entry, name, kind, rest.strip())
    elif colon and re.fullmatch(r"[a-z_]+", kind) and ".." in rest:
        raise ValueError(f"--space {entry!r}: there is no {kind!r}; it must be one of {FORMS}")
    else:
        spec = parse_value(name, text)
        if isinstance(spec, dict) and not set(spec) & {"float", "log", "int", "choice", "fixed"}:
            spec = {"fixed": spec}
    return name, describe_entry(parse_entry(name, spec))


def _range(entry: str, name: str, kind: str, text: str) -> dict[str, Any]:
    found = RANGE.fullmatch(text)
    if found is None:
        raise ValueError(f"--space {entry!r} must be one of {FORMS}")
    spec: dict[str, Any] = {kind: [parse_value(name, found[part]) for part in ("low", "high")]}
    if found["step"] == "log":
        spec["log"] = True
    elif found["step"]:
        spec["step"] = parse_value(name, found["step"])
    return spec
