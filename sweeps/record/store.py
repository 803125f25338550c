"""The folder of a sweep, `results/<name>/`: where everything is, and who may write there.

Knows nothing of what the files say.
"""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import filelock

POINTER = "ledger.json"  # says where the ledger is that is not in the folder
STORAGE = "storage.json"  # says in which object store is what trials leave, if it is not in the folder
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Busy(ValueError):
    """Another driver works on this sweep."""


@dataclass(frozen=True)
class Folder:
    """The files of one sweep."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def ledger(self) -> Path:
        """The ledger, or the file that says in which database it is."""
        return self.pointer if self.pointer.is_file() else self.path / "ledger.db"

    @property
    def pointer(self) -> Path:
        return self.path / POINTER

    @property
    def storage(self) -> str | None:
        """The address of the sweep's folder in an object store; None: all of it is here."""
        path = self.path / STORAGE
        try:
            return str(json.loads(path.read_text(encoding="utf-8"))["storage"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} does not say where the sweep's files are ({type(error).__name__}: {error})"
            ) from error

    @property
    def history(self) -> Path:
        return self.path / "history"

    @property
    def trials(self) -> Path:
        """Tune's folder: one in it for each attempt of each trial, with its checkpoints."""
        return self.path / "trials"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def splits(self) -> Path:
        return self.path / "splits.json"

    @property
    def checks(self) -> Path:
        """What was asked and answered before the first trial."""
        return self.path / "checks.json"

    @property
    def phases(self) -> Path:
        return self.path / "phases.json"

    @property
    def stop_file(self) -> Path:
        return self.path / "stop"

    def is_taken(self) -> bool:
        """Whether anything is here. What a driver leaves that was killed before it had a ledger does not count:
        there is nothing in it to go on with."""
        unborn = {"lock", "owner.json", "ledger.db.part", "ledger.db.part-journal", f"{POINTER}.part"}
        unborn |= {STORAGE, f"{STORAGE}.part"}
        if not self.path.is_dir():
            return self.path.exists()
        present = {path.name for path in self.path.iterdir()}
        return "lock" not in present or not present <= unborn

    def log(self, number: int) -> Path:
        """What the processes of a trial printed while they trained it, in all attempts."""
        return self.path / "logs" / f"{number:05d}.txt"

    def stacks(self, number: int, attempt: int) -> Path:
        """What every thread of an attempt did when it was ended for making no progress."""
        return self.trials / attempt_folder(number, attempt) / "stacks.txt"

    def name_of(self, path: Path) -> str:
        """What a file is called in the folder, wherever that is."""
        return path.relative_to(self.path).as_posix()

    def attempts(self, number: int, count: int) -> list[str]:
        """The names of the folders of a trial's first `count` attempts, which have its checkpoints."""
        return [f"{self.trials.name}/{attempt_folder(number, attempt)}" for attempt in range(1, count + 1)]

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Be the only driver of this sweep. Raises Busy, naming the owner's host and process.

        The lock is the operating system's: a dead owner's is free again.
        """
        owner = self.path / "owner.json"
        lock = filelock.FileLock(self.path / "lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            try:
                who = json.loads(owner.read_text())
            except (OSError, ValueError):  # it is being written or removed at this moment
                who = {"host": "unknown", "pid": "unknown"}
            raise Busy(
                f"sweep {self.name!r} is being run by process {who['pid']} on {who['host']}; "
                "wait for it, or stop it and resume"
            ) from None
        try:
            owner.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
            yield
        finally:
            owner.unlink(missing_ok=True)
            lock.release()


def attempt_folder(number: int, attempt: int | str) -> str:
    """The folder name of an attempt: no two share one, so no checkpoint overwrites one that it went on from. A `*`
    stands for any attempt."""
    return f"{number:05d}-attempt-{attempt}"


def checked_name(name: str) -> str:
    """A sweep's name that is safe as a folder and in a database; ValueError says what is allowed."""
    if not NAME.fullmatch(name) or ".." in name:
        raise ValueError(
            f"name {name!r} may only have letters, digits, '.', '_' and '-', begin with a letter or digit, "
            "and be at most 100 characters long"
        )
    return name


def checked_results(path: Path) -> Path:
    """The results folder as an absolute path that can be written to; nothing is created.

    Raises ValueError naming the folder that stands in the way.
    """
    path = path.expanduser().resolve()
    existing = nearest_existing(path)
    if not existing.is_dir():
        raise ValueError(f"results folder {path}: {existing} is a file; choose another with --results DIR")
    problem = why_not_writable(existing)
    if problem:
        raise ValueError(f"results folder {path}: {existing} cannot be written ({problem}); use --results DIR")
    return path


def nearest_existing(path: Path) -> Path:
    """The path itself if it exists, or else the first above it that does."""
    while not path.exists():
        path = path.parent
    return path


def why_not_writable(folder: Path) -> str | None:
    """Why nothing can be created in a folder, or None. It is tried: permission bits do not tell of read-only
    disks, nor of the superuser."""
    try:
        Path(tempfile.mkdtemp(prefix=".steadysweep-", dir=folder)).rmdir()
    except OSError as error:
        return error.strerror or str(error)
    return None


def existing_sweep(results: Path, name: str, asked_by: str = "") -> Folder:
    """The folder of the sweep with this name. Raises ValueError that names those there are.

    asked_by: the flag that gave the name, for the message.
    """
    folder = Folder(results / checked_name(name))
    if not folder.ledger.is_file():
        names = ", ".join(found.name for found in sweeps_in(results)[:10]) or "none"
        said = f"{asked_by} {name}".strip()
        raise ValueError(f"{said}: there is no such sweep in {results}; there are: {names}")
    return folder


def sweeps_in(results: Path) -> list[Folder]:
    """All sweeps below a results folder, the newest first."""
    found = [*results.glob("*/ledger.db"), *results.glob(f"*/{POINTER}")]
    folders = [Folder(path) for path in {path.parent: None for path in found}]
    return sorted(folders, key=lambda folder: folder.ledger.stat().st_mtime, reverse=True)
