"""What MLflow is told of a sweep: points and params, under names and with values that it takes.

One rule for what it would refuse, in pure functions. Knows no MLflow.
"""

from __future__ import annotations

import hashlib
import json
import math
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sweeps.sweep import Sweep
from trainable.config import TrainConfig
from trainable.settings import TASK_PREFIX
from trainable.task import load_task

LONGEST_NAME = 200  # MLflow takes 250; the rest is for what goes before it in a tag's name
LONGEST_VALUE = 5000  # characters; MLflow takes 6000 and cuts the rest off without a word
MEASURED = ("num_params", "latency_ms", "weight_norm")  # reports of older sweeps have none
SYSTEM = "system/"  # what MLflow's pages show as system metrics begins with this
REPORT_VALUES = ("samples_per_s", "data_wait_share", "peak_mem_gib", "epoch")  # epoch last: it says all are there


def spelled(names: Iterable[str]) -> dict[str, str]:
    """Each name -> what it is called in MLflow; no two become one.

    A name that MLflow takes stays. In others, whatever is no letter, digit, `_`, `-`, `.`, `:`, `/` or space
    becomes `_`; so do the slashes of what would not be a path (`a//b`, `/a`, `../a`). A name that is too
    long, or would then be another's, is cut to fit and gets `-` and 8 digits of the sha256 of the original.
    """
    found: dict[str, str] = {}
    # Names that stay come first: none of them is changed for the sake of one that cannot stay.
    for name in sorted(set(names), key=lambda name: (_allowed(name) != name, name)):
        text = _allowed(name)
        if len(text) > LONGEST_NAME or text in found.values():
            digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:8]
            text = f"{text[: LONGEST_NAME - 9].rstrip('/')}-{digest}"
        found[name] = text
    return found


def renamed(names: Iterable[str]) -> dict[str, str]:
    """What MLflow has under another name: that name -> the original."""
    return {text: name for name, text in spelled(names).items() if text != name}


def _allowed(name: str) -> str:
    text = re.sub(r"[^\w/.\- :]", "_", name)
    if not text or text.startswith(("/", "..")) or posixpath.normpath(text) != text or text == ".":
        text = re.sub(r"^\.+", lambda dots: "_" * len(dots.group()), text.replace("/", "_")) or "_"
    return text


def value_text(value: Any, whole_in: str = "config.json") -> str:
    """A value as Python writes it, cut where MLflow would cut it, naming the file that has all of it."""
    text = str(value).encode(errors="replace").decode()
    if len(text) > LONGEST_VALUE:
        text = f"{text[:LONGEST_VALUE]}... ({len(text)} characters, whole in {whole_in})"
    return text


def number_of(value: Any) -> float | None:
    """A value as a finite number, or None. MLflow would store inf as 1.8e308 and NaN as 0, and refuses None."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # None, a text, a tensor of many numbers
        return None
    return number if math.isfinite(number) else None


def points(report: Mapping[str, Any]) -> Iterator[tuple[str, float, int, int]]:
    """(name, value, time_ms, step) of a report, less what is no finite number: for that the run has the tag
    `diverged`. The last point is the `epoch`."""
    time_ms = int(report["time_ms"])
    system = {f"{SYSTEM}{name}": value for name, value in report.get("system", {}).items()}
    said = {key: report[key] for key in (*MEASURED, *REPORT_VALUES) if key in report}
    metrics = {**report["metrics"], **system, **said}
    names = spelled([*report["curves"], *metrics])
    for name, values in report["curves"].items():
        for offset, value in enumerate(values):
            if (number := number_of(value)) is not None:
                yield names[name], number, time_ms, report["first_step"] + offset + 1
    for name, value in metrics.items():
        if (number := number_of(value)) is not None:
            yield names[name], number, time_ms, report["step"]


def params_of(task: str, config: TrainConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything a trial is trained with, also what nobody set."""
    settings = load_task(task, settings).settings()
    return {"task": task, **config.to_dict(), **_flat(settings, TASK_PREFIX)}


def _flat(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Mappings in mappings as names with dots: `task.opt.lr`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= _flat({str(key): inner for key, inner in value.items()}, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def shared_params(sweep: Sweep) -> dict[str, Any]:
    """What all trials share, and what was tried of the rest."""
    varied = {name for point in sweep.points for name in point} | set(sweep.space)
    shared = params_of(sweep.task, sweep.train, sweep.task_settings)
    tried = {
        f"tried.{name}": json.dumps(sweep.space.get(name) or [point.get(name) for point in sweep.points])
        for name in sorted(varied)
    }
    return {**{name: value for name, value in shared.items() if name not in varied}, **tried}
