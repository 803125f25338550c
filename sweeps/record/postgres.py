"""A ledger's study in PostgreSQL: Optuna's tables over one connection, which holds the lock of whoever writes.

The lock is the database's own, so it holds between machines, and a dead owner's is free again. A server that goes
away is waited for. Knows no meaning of what is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import optuna
from optuna.storages import RDBStorage

from sweeps.record.address import PASSWORDS, LedgerLost, Pointer, connector, driver, first_line
from sweeps.record.store import Busy

WAIT_S = 300.0  # how long a driver waits for a server that went away in the middle of a sweep
RETRY_S = 1.0
_TABLES = 7_338_442_016  # the lock of whoever makes Optuna's tables: two at once would be in each other's way
_DIALECT = "postgresql+psycopg://"
_OWNER = "steadysweep_owner"  # who writes, as an attribute of the study
_OTHERS = "SELECT to_regclass('alembic_version') IS NOT NULL AND to_regclass('version_info') IS NULL"
_AWAY = ("08", "57P01", "57P02", "57P03", "53300")  # what a server says that stops, starts or is full; or nothing
# A dead machine says nothing: the server asks after its clients, so that their locks are free within a minute.
_KEEPALIVE = (
    "SELECT set_config('tcp_keepalives_idle', '20', false), set_config('tcp_keepalives_interval', '10', false), "
    "set_config('tcp_keepalives_count', '3', false)"
)

T = TypeVar("T")


class PostgresHome:
    """Optuna's storage of one study, with patience. Reading needs no lock; the first write takes it, to the end."""

    def __init__(self, pointer: Pointer, path: Path | None = None) -> None:
        self.study_name = pointer.study
        self._path = path  # touched when something is written: its time is when the sweep was last at work
        self._address = pointer.database
        self._connect = connector(pointer.database)
        self._token: str | None = None  # of the owner, once this is it
        self._patience_s = WAIT_S
        self.storage = storage_in(self._address, self._connected)

    def delete(self) -> None:
        """Take the study away, if it is there."""
        with contextlib.suppress(KeyError):
            self.storage.delete_study(self.storage.get_study_id_from_name(self.study_name))

    def check(self) -> None:
        """Raises ValueError where there is no such study."""
        try:
            self.storage.get_study_id_from_name(self.study_name)
        except KeyError:
            self.close()
            raise ValueError(
                f"the ledger at {self._address} has no study {self.study_name!r}: is this the database that the sweep "
                "was begun with? Name the right one with --ledger"
            ) from None

    def reading(self, act: Callable[[], T]) -> T:
        """What `act` returns; it is done again where the server went away meanwhile, so it must bear that."""
        return self._patiently(act, owning=False)

    def writing(self, act: Callable[[], T]) -> T:
        """The same as the study's only writer. Raises Busy while another process is that."""
        found = self._patiently(act, owning=True)
        if self._path is not None:
            os.utime(self._path)
        return found

    def close(self) -> None:
        self.storage.remove_session()
        self.storage.engine.dispose()

    def _patiently(self, act: Callable[[], T], *, owning: bool) -> T:
        began: float | None = None
        while True:
            try:
                if owning and self._token is None:
                    self._own()
                found = act()
            except Exception as error:
                problem = why_away(error)
                if problem is None:
                    raise
                if began is None:
                    began = time.monotonic()
                    if self._patience_s:
                        print(
                            f"the ledger's database does not answer ({problem}); waiting for it, for at most "
                            f"{WAIT_S:g} s; trials train on to their next reports",
                            file=sys.stderr,
                        )
                if time.monotonic() - began >= self._patience_s:
                    waited, self._patience_s = self._patience_s, 0.0  # who ends the sweep now shall not wait again
                    raise LedgerLost(
                        f"its ledger at {self._address} did not answer for {waited:g} s ({problem})"
                    ) from error
                time.sleep(RETRY_S)
            else:
                if began is not None:
                    print("the ledger's database is back; nothing was lost", file=sys.stderr)
                return found

    def _own(self) -> None:
        """Take the lock, and write down whose it is."""
        token = uuid.uuid4().hex
        pooled = self.storage.engine.raw_connection()
        try:
            cursor = pooled.cursor()
            if not self._try_lock(cursor):
                who = self._owner(cursor)
                raise Busy(
                    f"sweep {self.study_name.rpartition('.')[0]!r} is being run by process {who.get('pid', 'unknown')} "
                    f"on {who.get('host', 'unknown')}, says its ledger; wait for it, or stop it and resume"
                )
            said = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "token": token})
            cursor.execute(
                "INSERT INTO study_user_attributes (study_id, key, value_json) "
                "SELECT study_id, %s, %s FROM studies WHERE study_name = %s "
                "ON CONFLICT (study_id, key) DO UPDATE SET value_json = excluded.value_json",
                (_OWNER, said, self.study_name),
            )
            pooled.commit()
        except BaseException as error:
            pooled.invalidate(error)  # and with it the lock
            raise
        pooled.close()
        self._token = token

    def _connected(self) -> Any:
        """A new connection; that of an owner is one only when it has the lock again, and nobody wrote meanwhile."""
        connection = self._connect()
        try:
            connection.execute(_KEEPALIVE)
            if self._token is not None:
                cursor = connection.cursor()
                if not self._try_lock(cursor):
                    raise driver().OperationalError("the sweep's lock in it is held by another connection")
                if self._owner(cursor).get("token") != self._token:
                    raise Busy(
                        f"another process has gone on with sweep {self.study_name.rpartition('.')[0]!r} while its "
                        "ledger's database was out of reach of this one; this one ends"
                    )
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection

    def _try_lock(self, cursor: Any) -> bool:
        key = int.from_bytes(hashlib.sha256(self.study_name.encode()).digest()[:8], signed=True)
        return bool(cursor.execute("SELECT pg_try_advisory_lock(%s)", (key,)).fetchone()[0])

    def _owner(self, cursor: Any) -> dict[str, Any]:
        found = cursor.execute(
            "SELECT value_json FROM study_user_attributes JOIN studies USING (study_id) "
            "WHERE study_name = %s AND key = %s",
            (self.study_name, _OWNER),
        ).fetchone()
        return dict(json.loads(found[0])) if found else {}


def storage_in(address: str, connect: Callable[[], Any]) -> RDBStorage:
    """Optuna's storage over one connection. Raises ValueError, in a sentence, where the database refuses."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with contextlib.closing(connect()) as alone:
            alone.execute("SELECT pg_advisory_lock(%s)", (_TABLES,))
            if alone.execute(_OTHERS).fetchone()[0]:
                raise ValueError(
                    f"the ledger at {address} cannot be opened: this database has another program's tables (MLflow's, "
                    "for one), which are called as Optuna's are; give the ledger a database of its own: createdb NAME"
                )
            tables = RDBStorage(_DIALECT, engine_kwargs={"creator": connect})
            tables.engine.dispose()
        # Optuna's look at its tables needs two connections at once, and the work on them shall have one.
        one = {"creator": connect, "pool_size": 1, "max_overflow": 0}
        return RDBStorage(_DIALECT, engine_kwargs=one, skip_compatibility_check=True, skip_table_creation=True)
    except Exception as error:
        refused = _refusal(error)
        if refused is None:
            raise
        raise ValueError(f"the ledger at {address} cannot be opened: {refused}") from error


def check_database(address: str) -> None:
    """Raises ValueError, in a sentence, for a database that a new ledger could not be written to. It is tried, and
    taken back."""
    connect = connector(address)
    storage = storage_in(address, connect)
    storage.engine.dispose()
    try:
        with contextlib.closing(connect()) as connection:
            connection.execute("INSERT INTO studies (study_name) VALUES (%s)", (f"try.{uuid.uuid4().hex}",))
            connection.execute("SELECT 1 FROM trials LIMIT 1")
            connection.rollback()
    except driver().Error as error:
        raise ValueError(f"the ledger at {address} cannot be written: {_refusal(error)}") from error


def why_away(error: BaseException) -> str | None:
    """What became of the server, where an error goes back to that; None for any other error."""
    found = _database_error(error)
    if not isinstance(found, driver().OperationalError):
        return None
    if found.sqlstate is None or found.sqlstate.startswith(_AWAY):
        return first_line(found)
    return None


def _refusal(error: BaseException) -> str | None:
    found = _database_error(error)
    if found is None:
        return None
    said = first_line(found)
    if "password" in said:
        return f"{said}; {PASSWORDS}"
    if isinstance(found, driver().errors.InsufficientPrivilege):
        return f"{said}; its user needs the right to create tables there, or to write to Optuna's"
    return said


def _database_error(error: BaseException) -> Any:
    """psycopg's own error, which SQLAlchemy and Optuna wrap in theirs."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, driver().Error):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None
