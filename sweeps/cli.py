"""Flags, configuration file and errors in words, shared by all commands of `sweeps`.

Knows how a sweep is written down by a user, and nothing of how it runs.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from sweeps.sweep import split_params
from trainable.config import TrainConfig, unknown_name

BAD_INPUT = 2
BOUND = re.compile(r"\s*(?P<name>[^<>=\s]+)\s*(?P<sign><=|>=)\s*(?P<limit>\S+)\s*")


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one message on stderr and exit code 2."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        # Without the exponent here, argparse takes -1e-3 for a flag.
        self._negative_number_matcher = re.compile(r"-(\d+|\d*\.\d+)([eE][-+]?\d+)?$")

    def error(self, message: str) -> NoReturn:
        fail(f"{message}; see `{self.prog} --help`")


def fail(message: str, code: int = BAD_INPUT) -> NoReturn:
    """Say what is wrong, and leave."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(code)


def read_config(path: Path, flags: list[str]) -> dict[str, Any]:
    """A YAML file whose keys are flags (`lrs: [1e-3, 3e-4]`) and `set: {KEY: VALUE}`.

    Raises ValueError for a file that is missing, is not YAML, or has other keys.
    """
    try:
        loaded = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"config file {path} cannot be read: {error.strerror}") from error
    except (YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"config file {path} is not YAML: {_first_line(error)}") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, Mapping):
        raise ValueError(f"config file {path} must hold `flag: value` lines, e.g. `lrs: [3e-3, 1e-3]`")
    known = [flag for flag in flags if flag != "config"]
    for key in loaded:
        name = str(key).replace("-", "_")
        if name not in known:
            hint = f"; {key} is a training setting: put it under `set:`" if name in TrainConfig.names() else ""
            raise ValueError(f"config file {path}: {unknown_name('key', str(key), known)}{hint}")
    if not isinstance(loaded.get("set", {}), Mapping):
        raise ValueError(f"config file {path}: `set` must hold KEY: VALUE lines")
    return {str(key).replace("-", "_"): value for key, value in loaded.items()}


def shared_settings(asked: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the training and of the task, --epochs and --seed among them. ValueError for what is said twice."""
    train, task_settings = split_params(asked["set"])
    for flag in ("epochs", "seed"):
        if flag in asked:
            if flag in train:
                raise ValueError(f"--{flag} {asked[flag]} and --set {flag}={train[flag]} say it twice; keep one")
            train[flag] = number_of(asked, flag, int)
    return train, task_settings


def number_of(asked: Mapping[str, Any], flag: str, kind: type[int] | type[float]) -> Any:
    """The value of a flag as a number, None where it was not given. ValueError in words."""
    if flag not in asked:
        return None
    try:
        return kind(str(asked[flag]))
    except ValueError:
        words = "a whole number" if kind is int else "a number"
        raise ValueError(f"--{flag.replace('_', '-')} {asked[flag]!r} must be {words}") from None


def bound_of(flag: str, text: Any) -> tuple[str, str, float]:
    """`peak_mem_gib<=2` as ("peak_mem_gib", "at_most", 2.0). Raises ValueError in words."""
    found = BOUND.fullmatch(str(text))
    try:
        limit = float(found["limit"]) if found else math.nan
    except ValueError:
        limit = math.nan
    if found is None or not math.isfinite(limit):
        raise ValueError(f"{flag} {text!r} must be METRIC<=NUMBER or METRIC>=NUMBER, e.g. peak_mem_gib<=2")
    return found["name"], "at_most" if found["sign"] == "<=" else "at_least", limit


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
