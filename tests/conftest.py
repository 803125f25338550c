"""Fixtures of all tests: one local Ray for those that run sweeps in this process, and an empty place to be."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# A loaded machine is slow, not wrong.
hypothesis.settings.register_profile(
    "steady", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("steady")

# A user's settings must not reach the tests, nor the tests a user's store.
for name in [key for key in os.environ if key.startswith(("MLFLOW_", "OMP_NUM_THREADS"))]:
    del os.environ[name]


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """Ray on this machine; sweeps run in this process use it instead of starting their own."""
    from cluster.connect import connected

    with connected(None):
        yield


@pytest.fixture
def launch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def scan(local_ray: None, launch_folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """`python -m sweeps.lr_scan ARGUMENTS --json` in this process: its exit code and its result."""
    from sweeps import lr_scan

    def run(*arguments: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = lr_scan.main([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run
