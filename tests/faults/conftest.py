"""The sweep that nothing happened to, and one that was killed half-way, each made once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.helper import Facts, arguments, facts, folder_in, log_of, run


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """One at a time; that two at a time change nothing is seen wherever such a sweep is compared with it."""
    place = tmp_path_factory.mktemp("unbroken")
    assert run(place, *arguments(place, 1, sleep_s=0)) == 0, log_of(place)
    return facts(folder_in(place))


@pytest.fixture(scope="session")
def half_done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep whose driver was killed: three trials are complete, the fourth has two checkpoints, two reports in the
    ledger and a third in its history."""
    place = tmp_path_factory.mktemp("half-done")
    assert run(place, *arguments(place, 1, sleep_s=0), crash="report:12:kill") == -9, log_of(place)
    return place


@pytest.fixture
def stopped(half_done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """A copy of it to damage and to go on with, in an empty working directory."""

    def copy() -> Path:
        for name in ("results", "mlflow.db", "mlartifacts", "steps.log"):
            source = half_done / name
            if source.is_dir():
                shutil.copytree(source, tmp_path / name)
            elif source.exists():
                shutil.copy(source, tmp_path / name)
        monkeypatch.chdir(tmp_path)
        return tmp_path

    return copy
