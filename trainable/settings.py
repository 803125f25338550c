"""`--set KEY=VALUE`: values as YAML 1.2 reads them, keys told apart into the config's and the task's.

Also where only torch is installed: without ruamel.yaml, plain values and JSON are understood.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

TASK_PREFIX = "task."
# YAML 1.2 core schema; JSON alone has neither 1. nor .5 nor +1
NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
WORDS: dict[str, Any] = {"~": None, "null": None, "true": True, "false": False, ".inf": math.inf, ".nan": math.nan}


def parse_settings(assignments: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`["lr=1e-3", "task.width=32"]` as the config's values and the task's: `({"lr": 0.001}, {"width": 32})`.

    Raises ValueError for an entry that is not KEY=VALUE, a key given twice, and a value that YAML cannot read.
    Whether the keys exist is for `TrainConfig.from_dict` and `load_task` to say.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ValueError(f"--set {assignment!r} must be KEY=VALUE, e.g. lr=1e-3 or task.width=32")
        if key in values:
            raise ValueError(f"--set {key} is given twice; keep one of them")
        values[key] = parse_value(key, text)
    config = {key: value for key, value in values.items() if not key.startswith(TASK_PREFIX)}
    task = {key[len(TASK_PREFIX) :]: value for key, value in values.items() if key.startswith(TASK_PREFIX)}
    return config, task


def parse_value(key: str, text: str) -> Any:
    """`text` as YAML 1.2 understands it: 1e-3 is a number, no is a word, [a, b] is a list, null means off."""
    if not text.strip():
        raise ValueError(f"{key}= has no value; to switch it off write {key}=null")
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError
    except ImportError:
        return _by_hand(key, text)
    try:
        value = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        reason = getattr(error, "problem", None) or "see YAML 1.2"
        raise ValueError(f"{key}={text!r} cannot be read ({reason}); put quotes around a plain text") from error
    # YAML also knows dates; nothing here wants one
    return value if value is None or isinstance(value, bool | int | float | str | list | dict) else text


def _by_hand(key: str, text: str) -> Any:
    text = text.strip()
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if NUMBER.fullmatch(text):
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    if text[0] in "[{\"'":
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{key}={text!r} cannot be read as JSON ({error.msg}); "
                'write lists as ["a", "b"], or install ruamel.yaml to write YAML'
            ) from error
    return text
