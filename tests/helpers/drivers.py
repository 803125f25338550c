"""Drivers as a user starts them: a process of their own, in a process group that can be ended as a whole."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240


def environment() -> dict[str, str]:
    """This process's, less what a user's shell may say about MLflow; the project importable from anywhere."""
    dropped = ("MLFLOW_", "RAY_", "TUNE_")
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(dropped) or key.startswith("RAY_AUTH")  # of a cluster that was started here
    }
    return {**kept, "PYTHONPATH": str(ROOT)}


def run_command(
    *arguments: str, cwd: Path, module: str = "sweeps.lr_scan", **extra: str
) -> subprocess.CompletedProcess[str]:
    """`python -m module arguments`, to its end."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env={**environment(), **extra},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@contextlib.contextmanager
def driver(*arguments: str, cwd: Path, module: str = "sweeps.lr_scan", **extra: str) -> Iterator[subprocess.Popen[str]]:
    """`python -m module arguments` under way; its process group is ended with the context."""
    with (cwd / "driver.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=cwd,
            env={**environment(), **extra},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the driver and everything in its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_until(holds: Callable[[], bool], what: str, process: subprocess.Popen[str] | None = None) -> None:
    """Poll until `holds()`; a test that waits in vain, or whose driver ends early, fails with `what`."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < TIMEOUT_S, f"waited in vain until {what}"
        assert process is None or process.poll() is None, f"the driver ended before {what}"
        time.sleep(0.02)


def result_of(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "result.json").read_text())
    assert isinstance(found, dict)
    return found


def without_circumstances(result: dict[str, Any]) -> dict[str, Any]:
    """A result less what may differ between an unbroken and a resumed sweep: runs, attempts, places."""
    trials = [
        {key: trial[key] for key in trial if key not in ("attempts", "mlflow_run_id")} for trial in result["trials"]
    ]
    kept = {key: result[key] for key in result if key not in ("tracking_uri", "mlflow_run_id")}
    return {**kept, "trials": trials}
