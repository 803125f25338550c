"""The folder of a sweep: names, places, and one driver at a time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sweeps.record.ledger import Ledger
from sweeps.record.store import Busy, Folder, attempt_folder, checked_name, checked_results, sweeps_in
from sweeps.record.stored import stored_of
from sweeps.sweep import Sweep
from tests.helpers.drivers import environment
from trainable.config import TrainConfig


@pytest.mark.parametrize("name", ["a", "lr_scan-digits-20260101-120000", "0", "A.b-c_d", "x" * 100])
def test_names_that_are_allowed(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "-flag", "_x", "a/b", "../up", "a..b", "a b", "a\n", "é", "a\\b", "a%b", "x" * 101],
)
def test_names_that_are_not(name: str) -> None:
    """A name becomes a folder: none may leave the results, be hidden, or look like a flag."""
    with pytest.raises(ValueError, match="may only have letters"):
        checked_name(name)


def test_the_results_folder_is_absolute(launch_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B19: relative to the launch folder, and ~ to the home of whoever asks; nothing is created."""
    monkeypatch.setenv("HOME", str(launch_folder / "home"))
    assert checked_results(Path("./out")) == launch_folder / "out"
    assert checked_results(Path("a b/deep/er")) == launch_folder / "a b/deep/er"
    assert checked_results(Path("~/out")) == launch_folder / "home/out"
    assert checked_results(Path("x/../out")) == launch_folder / "out"
    assert list(launch_folder.iterdir()) == []
    (launch_folder / "file").touch()
    with pytest.raises(ValueError, match=r"file is a file; choose another with --results DIR"):
        checked_results(Path("file/out"))


def test_checkpoints_of_one_trial_only(tmp_path: Path) -> None:
    """A pattern must not take brackets in a path for a choice, nor trial 1 for trial 11."""
    folder = Folder(tmp_path / "a[b]c*")
    wanted = [folder.trials / attempt_folder(1, attempt) / "checkpoint_000000" for attempt in (1, 2, 10)]
    others = [folder.trials / attempt_folder(11, 1) / "checkpoint_000000", folder.trials / attempt_folder(1, 1) / "x"]
    for path in (*wanted, *others):
        path.mkdir(parents=True)
    assert sorted(stored_of(folder).checkpoints(SimpleNamespace(number=1, attempts=10))) == sorted(wanted)


HOLD = """
import sys
from pathlib import Path
from sweeps.record.store import Folder
with Folder(Path(sys.argv[1])).owned():
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def another_driver(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that owns the sweep until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_driver_is_refused(tmp_path: Path) -> None:
    """Two drivers on one ledger run every trial twice; the second is told who the first is."""
    folder = Folder(tmp_path)
    with another_driver(tmp_path) as process:
        with pytest.raises(Busy) as error, folder.owned():
            pytest.fail("both own it")
        assert f"process {process.pid} on {socket.gethostname()}" in str(error.value)
        process.communicate("")  # it ends in order
    with folder.owned():
        assert json.loads((tmp_path / "owner.json").read_text())["pid"] == os.getpid()
    assert not (tmp_path / "owner.json").exists()


def test_the_lock_of_a_killed_driver_is_free(tmp_path: Path) -> None:
    """B11: a lock that outlives its owner would need a human before every resume."""
    with another_driver(tmp_path) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert (tmp_path / "owner.json").exists()
        with Folder(tmp_path).owned():
            assert json.loads((tmp_path / "owner.json").read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("text", [None, "", '{"host": "no'])
def test_an_owner_that_is_not_written_yet(tmp_path: Path, text: str | None) -> None:
    """The second driver may look in the moment between the lock and the name: refused in words all the same."""
    with another_driver(tmp_path):
        owner = tmp_path / "owner.json"
        owner.unlink() if text is None else owner.write_text(text)
        with pytest.raises(Busy, match="process unknown on unknown"), Folder(tmp_path).owned():
            pytest.fail("both own it")


def create(folder: Path, *lrs: float) -> Ledger:
    folder.mkdir(parents=True)
    sweep = Sweep(
        name=folder.name,
        question="lr_scan",
        task="digits",
        train=TrainConfig(threads=1),
        points=tuple({"lr": lr} for lr in lrs),
    )
    return Ledger.create(folder / "ledger.db", sweep, {"sweep_id": "x", "tracking_uri": "sqlite:///mlflow.db"})


def test_the_command_of_a_second_driver(
    local_ray: None, launch_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One message, exit code 2, and the sweep is as it was."""
    from sweeps import lr_scan

    folder = launch_folder / "results/held"
    create(folder, 1e-3).close()
    with another_driver(folder) as process:
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        with pytest.raises(SystemExit) as left:
            lr_scan.main(["--resume", "held"])
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert left.value.code == 2
    assert f"error: sweep 'held' is being run by process {process.pid}" in capsys.readouterr().err


def test_a_driver_killed_before_its_ledger_leaves_the_name_free(tmp_path: Path) -> None:
    """B11: there was nothing to resume, and the name was taken: each message pointed at the other."""
    folder = Folder(tmp_path / "early")
    assert not folder.is_taken()
    with another_driver_in_new(folder.path):
        assert not folder.is_taken()
    (folder.path / "ledger.db.part").write_bytes(b"half")
    assert not folder.is_taken()
    (folder.path / "mine.txt").touch()
    assert folder.is_taken()  # somebody else's file: not ours to write beside
    (folder.path / "mine.txt").unlink()
    (folder.path / "ledger.db").touch()
    assert folder.is_taken()
    (tmp_path / "file").touch()
    assert Folder(tmp_path / "file").is_taken()
    (tmp_path / "empty").mkdir()
    assert Folder(tmp_path / "empty").is_taken()


@contextlib.contextmanager
def another_driver_in_new(folder: Path) -> Iterator[Any]:
    folder.mkdir()
    with another_driver(folder) as process:
        yield process


def test_sweeps_are_listed_the_newest_first(tmp_path: Path) -> None:
    """`--resume` without a name takes the latest; folders that are no sweep are none."""
    for age, name in enumerate(["b", "c", "a"]):
        create(tmp_path / name, 1e-3).close()
        os.utime(tmp_path / name / "ledger.db", (1e9 - age, 1e9 - age))
    (tmp_path / "other").mkdir()
    (tmp_path / "ledger.db").touch()
    assert [folder.name for folder in sweeps_in(tmp_path)] == ["b", "c", "a"]
    os.utime(tmp_path / "a/ledger.db", (1e9 + 1, 1e9 + 1))
    assert [folder.name for folder in sweeps_in(tmp_path)] == ["a", "b", "c"]
    assert sweeps_in(tmp_path / "nowhere") == []
