"""What a search reads from files: its space, points to try first, the trials of another sweep.

Knows how they are written down, and nothing of what becomes of them.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder, existing_sweep
from sweeps.spaces.text import parse_space_text
from sweeps.sweep import Sweep, same_text
from trainable.settings import parse_value
from trainable.task import absolute_spec

FILES = (".yaml", ".yml", ".json")


def space_of(given: Any, own: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The space that was asked for, and whether it is the task's own. Raises ValueError in words.

    given: one or several of FILE.yaml, NAME=..., a mapping and a function (then nothing beside it); None: `own`.
    """
    if given is None:
        return dict(own), True
    if isinstance(given, Mapping):
        return dict(given), False
    space: dict[str, Any] = {}
    entries = [given] if isinstance(given, str) else list(given)
    for entry in entries:
        found = _space_entry(entry)
        if "function" in found and len(entries) > 1:
            raise ValueError(f"--space {entry} is a function, which is a space of its own; leave the others out")
        for name, spec in found.items():
            if name in space:
                raise ValueError(f"--space says {name} twice; keep one of the two")
            space[name] = spec
    return space, False


def _space_entry(entry: Any) -> dict[str, Any]:
    if isinstance(entry, Mapping):
        return dict(entry)
    text = str(entry)
    if "=" in text and not Path(text).exists():
        name, spec = parse_space_text(text)
        return {name: spec}
    if text.lower().endswith(FILES):
        found = read_plain(Path(text), "--space")
        if not isinstance(found, Mapping):
            raise ValueError(
                f"--space {text}: it must hold `name: what it is drawn from` lines, e.g. lr: {{log: [1e-5, 1e-1]}}"
            )
        return {str(name): spec for name, spec in found.items()}
    location, colon, function = text.rpartition(":")
    if colon and location and function.isidentifier():
        return {"function": absolute_spec(text)}
    raise ValueError(
        f"--space {text!r} must be a file (space.yaml), an entry (lr=log:1e-5..1e-1) or a function (space.py:function)"
    )


def points_of(given: Any) -> tuple[dict[str, Any], ...]:
    """Points of a YAML, JSON or CSV file, or as they are. Raises ValueError in words."""
    found = given
    if isinstance(given, str | Path):
        path = Path(given)
        found = _csv(path) if path.suffix.lower() == ".csv" else read_plain(path, "--points")
    if not isinstance(found, list | tuple) or not all(isinstance(point, Mapping) and point for point in found):
        raise ValueError(f"--points {given}: it must be a list of points, e.g. [{{lr: 1e-3}}, {{lr: 1e-2}}]")
    if not found:
        raise ValueError(f"--points {given}: there are no points in it")
    points = [{str(name): value for name, value in point.items()} for point in found]
    texts = [same_text(point) for point in points]
    return tuple(point for index, point in enumerate(points) if texts[index] not in texts[:index])


def _csv(path: Path) -> list[dict[str, Any]]:
    """The first line has the names; an empty cell leaves its name to the sampler."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"--points {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if any(None in row or None in row.values() for row in rows):
        raise ValueError(f"--points {path}: a row has more or fewer cells than the first line has names")
    return [{name: parse_value(name, text) for name, text in row.items() if text.strip()} for row in rows]


def read_plain(path: Path, flag: str) -> Any:
    """What a YAML or JSON file holds. Raises ValueError in words."""
    try:
        return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{flag} {path} cannot be read: {error.strerror}") from error
    except (YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{flag} {path} is not YAML: {' '.join(str(error).split())[:200]}") from error


def observations_of(given: Any, asked: Mapping[str, Any], sweep: Sweep) -> list[dict[str, Any]]:
    """What the ended trials of another sweep teach. Raises ValueError where there is nothing to learn.

    given: its name in the results folder, or its folder.
    """
    path = Path(str(given)).expanduser()
    if Folder(path).ledger.is_file():
        folder = Folder(path.resolve())
    else:
        folder = existing_sweep(
            Path(asked.get("results", "results")).expanduser().resolve(), str(given), "--warm-start"
        )
    ledger = Ledger(folder.ledger)
    try:
        other, found = ledger.sweep, ledger.observations()
    finally:
        ledger.close()
    if other.task.rpartition(":")[2] != sweep.task.rpartition(":")[2]:
        raise ValueError(f"--warm-start {given}: it is about task {other.task}, this one about {sweep.task}")
    names = set(sweep.named_metrics)
    useful = [one for one in found if one["kind"] == "bad" or names & set(one["metrics"])]
    if not useful:
        raise ValueError(
            f"--warm-start {given}: none of its {len(found)} ended trials says anything of {', '.join(sorted(names))}"
        )
    return useful
