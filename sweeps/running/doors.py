"""Asking a module of `trainable` in a process of its own: a driver does not import torch.

Knows nothing of what is asked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def ask(module: str, asked: Mapping[str, Any], task: str, words: str) -> dict[str, Any]:
    """What `python -m module JSON` says in its last line. words: what it is asked for, for whom it fails.

    Raises ValueError in words where the module says that it cannot, or its process dies.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, json.dumps(asked)], capture_output=True, text=True, check=False
    )
    try:
        said = json.loads((done.stdout.splitlines() or [""])[-1])
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        said = {"error": f"its process ended with code {done.returncode}: {last}"}
    if "error" in said:
        # What was asked for needs no second diagnosis; what the task's own code raised does.
        more = "" if done.returncode == 2 else f"; python -m trainable.checks --task {task} says more"
        raise ValueError(f"{words}, and that failed: {said['error']}{more}")
    assert isinstance(said, dict)
    return said
