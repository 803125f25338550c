"""Command lines for people to copy: what goes on with a sweep, or begins one like it.

Knows how flags are written, and not why one would be.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeps.reporting.facts import Facts
from sweeps.running.resume import resume_command
from sweeps.spaces.grammar import Choice, Entry, Fixed, Range, describe_entry
from sweeps.spaces.text import parse_space_text
from trainable.config import TrainConfig
from trainable.settings import TASK_PREFIX, parse_value

# What a new sweep works out for itself.
OWN = ("threads", "measure_latency", "split_seed")


def going_on(facts: Facts, *flags: str) -> str:
    """The same sweep, with these flags."""
    return " ".join([resume_command(facts.folder, facts.sweep.question), *flags])


def beginning(facts: Facts, question: str, fixed: Mapping[str, Any], *flags: str, without: tuple[str, ...] = ()) -> str:
    """A new sweep of the same task and settings. fixed: parameters that all its trials get; without: names that are
    left to the flags."""
    sweep, defaults = facts.sweep, TrainConfig().to_dict()
    settings = {
        name: value for name, value in sweep.train.to_dict().items() if value != defaults[name] and name not in OWN
    }
    if sweep.train.split_seed not in (None, sweep.train.seed):
        settings["split_seed"] = sweep.train.split_seed
    settings |= {f"{TASK_PREFIX}{name}": value for name, value in sweep.task_settings.items()}
    settings |= fixed
    words = [f"python -m sweeps.{question}", "--task", shlex.quote(sweep.task)]
    for name, value in settings.items():
        if name not in without:
            words += ["--set", shlex.quote(f"{name}={value_text(name, value)}")]
    results = facts.folder.path.parent
    if results != Path.cwd() / "results":
        words += ["--results", shlex.quote(str(results))]
    if facts.tracking_uri != f"sqlite:///{Path.cwd() / 'mlflow.db'}" and "MLFLOW_TRACKING_URI" not in os.environ:
        words += ["--tracking-uri", shlex.quote(facts.tracking_uri)]
    return " ".join([*words, *flags])


def value_text(name: str, value: Any) -> str:
    """A value as --set reads it back: bare where that means the same, else as JSON."""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, str):
        try:
            if value and parse_value(name, value) == value:
                return value
        except ValueError:
            pass
    return json.dumps(value)


def space_flag(name: str, entry: Entry) -> str | None:
    """`--space lr=log:1e-05..0.1`; None for a choice with branches, which only a file can say."""
    said: str | None = None
    if isinstance(entry, Range):
        kind = "log" if entry.log and not entry.whole else "int" if entry.whole else "float"
        said = f"{kind}:{value_text(name, entry.low)}..{value_text(name, entry.high)}"
        if entry.step is not None:
            said += f"/{value_text(name, entry.step)}"
        elif entry.log and entry.whole:
            said += "/log"
    elif isinstance(entry, Fixed):
        said = value_text(name, entry.value)
    elif isinstance(entry, Choice) and not any(option.brings or option.drawn for option in entry.options):
        said = "choice:" + ",".join(json.dumps(option.value) if _needs_quotes(name, option.value) else
                                    value_text(name, option.value) for option in entry.options)  # fmt: skip
    if said is None:
        return None
    try:
        if parse_space_text(f"{name}={said}") != (name, describe_entry(entry)):
            return None
    except ValueError:
        return None
    return f"--space {shlex.quote(f'{name}={said}')}"


def _needs_quotes(name: str, value: Any) -> bool:
    return isinstance(value, str) and not value.replace("_", "").replace("-", "").isalnum()
