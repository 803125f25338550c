"""Where a ledger lives: a file of SQLite in the sweep's folder, or a study in PostgreSQL that a file there names.

The one place that tells them apart by name. Both appear under their name when they are whole.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

import optuna
from optuna.storages import RDBStorage

from sweeps.record.address import Pointer, as_sqlalchemy, checked_address
from sweeps.record.store import POINTER
from sweeps.record.writes import storage_at
from trainable.files import BESIDE, sync_folder, write_synced

T = TypeVar("T")


class Home(Protocol):
    """Optuna's storage, what the study in it is called, and how it is read and written."""

    storage: RDBStorage
    study_name: str

    def reading(self, act: Callable[[], T]) -> T: ...

    def writing(self, act: Callable[[], T]) -> T: ...

    def close(self) -> None: ...


class SqliteHome:
    """A file has no server to wait for, and its owner has locked the folder."""

    def __init__(self, path: Path) -> None:
        self.storage = storage_at(path)
        (self.study_name,) = optuna.get_all_study_names(self.storage)

    def reading(self, act: Callable[[], T]) -> T:
        return act()

    writing = reading

    def close(self) -> None:
        _close(self.storage)


def home_at(path: Path) -> Home:
    """Where the ledger is that this file is, or names. Raises ValueError for one that is not there."""
    if path.name != POINTER:
        return SqliteHome(path)
    from sweeps.record.postgres import PostgresHome  # here: most ledgers need no driver

    home = PostgresHome(Pointer.read(path), path)
    home.check()
    return home


@contextlib.contextmanager
def born(path: Path, name: str, address: str | None) -> Iterator[tuple[RDBStorage, str]]:
    """A storage to fill, and what its study shall be called. What was left half is taken away; a new one is there
    when all went well.

    address: of PostgreSQL; then `path` is the file that says so.
    """
    beside, half = _beside(path), _beside(path.with_name(POINTER))
    if half.is_file():
        remove(half.with_name(POINTER))
    if address is None:
        beside.unlink(missing_ok=True)
        storage = storage_at(beside)
        yield storage, name
        _close(storage)
    else:
        pointer = Pointer(address, f"{name}.{uuid.uuid4().hex[:8]}")
        write_synced(beside, pointer.text())  # before the study: who comes after a kill finds what to take away
        from sweeps.record.postgres import PostgresHome

        home = PostgresHome(pointer)
        try:
            yield home.storage, pointer.study
        finally:
            home.close()
    os.replace(beside, path)
    if address is not None:
        sync_folder(path.parent)


def remove(path: Path) -> None:
    """Take away the study in PostgreSQL that a folder's ledger.json names, and that which was left half there."""
    for place in (path, _beside(path)):
        if place.is_file():
            from sweeps.record.postgres import PostgresHome

            home = PostgresHome(Pointer.read(place))
            try:
                home.delete()
            finally:
                home.close()
            place.unlink()


def checked_database(given: str) -> str:
    """The address of a database that a ledger can be written to, without secrets. Raises ValueError, in a sentence,
    for any other; a password in it is refused."""
    address = checked_address(given)
    from sweeps.record.postgres import check_database

    check_database(address)
    return address


def move(path: Path, given: str) -> None:
    """Have the file say that its study is at another address: the server has another name, or the database was moved.

    Raises ValueError where there is no such study.
    """
    address = checked_address(given)
    if path.name != POINTER:
        raise ValueError(
            f"--ledger {address}: the ledger of {path.parent.name} is {path}, and stays there; leave --ledger out"
        )
    from sweeps.record.postgres import PostgresHome

    pointer = Pointer(address, Pointer.read(path).study)
    home = PostgresHome(pointer)
    home.check()
    home.close()
    beside = _beside(path)
    write_synced(beside, pointer.text())
    os.replace(beside, path)
    sync_folder(path.parent)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + BESIDE)


def is_same_study(path: Path, other: Path) -> bool:
    """Whether two files name one study of one database."""
    both = [place.name == POINTER and place.is_file() for place in (path, other)]
    return path != other and all(both) and Pointer.read(path) == Pointer.read(other)


def dashboard_address(path: Path) -> str:
    """The address of the ledger as Optuna's own tools are told it."""
    return as_sqlalchemy(Pointer.read(path).database) if path.name == POINTER else f"sqlite:///{path}"


def _close(storage: RDBStorage) -> None:
    storage.remove_session()
    storage.engine.dispose()
