"""What trials depend on and a sweep's definition does not say: torch, the task's code, the data.

Trials that differ in these are not comparable; a resume that would mix them is refused, or recorded.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import inspect
import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from sweeps.sweep import Sweep
from trainable.task import Task, load_task

TAG = "steadysweep.drift"
_PACKAGES = ("trainable", "sweeps", "cluster")
# In a process of its own: only this may import torch, and the samples do not stay in the driver's memory.
_FINGERPRINT = """
import json, sys
from trainable.task import load_task
task, settings, seed = json.loads(sys.argv[1])
print("fingerprint", load_task(task, settings).splits(seed).fingerprint())
"""


def identity(sweep: Sweep) -> dict[str, str]:
    """The version of torch, and the sha256 of each source file of the task's class and its bases."""
    return {"torch": metadata.version("torch"), **_code(type(load_task(sweep.task, sweep.task_settings)))}


def _code(task_class: type[Task]) -> dict[str, str]:
    found = {}
    for base in task_class.__mro__:
        own = base is task_class or base.__module__.partition(".")[0] not in _PACKAGES
        if not own or not issubclass(base, Task):
            continue
        try:
            path = Path(inspect.getsourcefile(base) or "")
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except (OSError, TypeError):  # made at run time, or from a file that is gone
            continue
        found[f"code of {base.__qualname__} ({path.name})"] = digest
    return found


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """What changed, a line each: `torch: 2.14.1 -> 2.15.0`. Hashes are shortened."""
    return [
        f"{name}: {_short(old.get(name))} -> {_short(new.get(name))}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def _short(value: str | None) -> str:
    return "none" if value is None else value[:8] if len(value) == 64 else value


def drift_tags(changes: Sequence[str] | None) -> dict[str, str]:
    """What stands in MLflow of the changes that were allowed."""
    return {TAG: "; ".join(changes)[:5000]} if changes else {}


def environment_tags(question: str) -> dict[str, str]:
    """What stands in MLflow of all this, whether it changed or not, and of whose command it was."""
    packages = ("steadysweep", "torch", "ray", "optuna", "mlflow")
    tags = {f"steadysweep.version.{name}": metadata.version(name) for name in packages}
    tags["steadysweep.version.python"] = platform.python_version()
    tags |= {"mlflow.source.name": f"python -m sweeps.{question}", "mlflow.source.type": "LOCAL"}
    with contextlib.suppress(ImportError, KeyError, OSError):  # in a container, a user may have no name
        tags["mlflow.user"] = getpass.getuser()
    with contextlib.suppress(OSError):  # there may be no git here
        git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        if git.returncode == 0:
            tags["mlflow.source.git.commit"] = git.stdout.strip()
    return tags


def data_key(settings: Mapping[str, Any], seed: int) -> str:
    """What decides which samples a trial sees, as a name for their fingerprint."""
    return json.dumps([dict(settings), seed], sort_keys=True, default=str)


def data_fingerprint(task: str, key: str) -> str | None:
    """The fingerprint of the data as they are now; None where they cannot be had here (they may be on a
    cluster's disks): then a trial's first report tells."""
    settings, seed = json.loads(key)
    done = subprocess.run(
        [sys.executable, "-c", _FINGERPRINT, json.dumps([task, settings, seed])],
        capture_output=True,
        text=True,
        check=False,
    )
    last = (done.stdout.splitlines() or [""])[-1].split()
    return last[1] if done.returncode == 0 and last[:1] == ["fingerprint"] else None
