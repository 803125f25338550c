"""Where a ledger is that is not in the sweep's folder: an address in PostgreSQL's words, and the file that says so.

A password never stands in it: it comes from the environment or from libpq's own files. Connects to nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

EXAMPLE = "postgresql://user@host:5432/database"
PASSWORDS = (
    "give it through PGPASSWORD, ~/.pgpass or PGSERVICEFILE, or name the environment variable that has it: "
    "?password_env=NAME"
)
_SECRET = ("password", "sslpassword")
_ENV = "password_env"
_PASSWORD = re.compile(r"(//[^:@]*):.*@")  # also one with characters that an address cannot hold


class LedgerLost(Exception):
    """The ledger's database went away in the middle of a sweep, and did not come back in time."""


@dataclass(frozen=True)
class Pointer:
    """What a folder's ledger.json says: the database, and what the study in it is called.

    Many folders may share a database, and two of them may have a sweep of one name: the study's name is that of the
    sweep and a part of its own. So a folder can be copied or moved, and never meets another's study.
    """

    database: str
    study: str

    @classmethod
    def read(cls, path: Path) -> Pointer:
        """Raises ValueError for a file that says something else."""
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            return cls(str(said["database"]), str(said["study"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} does not say where the ledger is ({type(error).__name__}: {error})") from error

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def checked_address(given: str) -> str:
    """An address without secrets, as it may be printed and stored. Raises ValueError in words for any other."""
    if not given.startswith(("postgresql://", "postgres://")):
        raise ValueError(
            f"--ledger {masked(given)} must be {EXAMPLE}; leave it out to keep the ledger in the sweep's folder"
        )
    given = "postgresql://" + given.partition("://")[2]
    if has_password(given):
        raise ValueError(
            f"--ledger {masked(given)}: a password in the address would be seen by everybody who lists processes, and "
            f"stored; leave it out, and {PASSWORDS}"
        )
    psycopg = driver()
    try:
        psycopg.conninfo.conninfo_to_dict(_without_env(given)[0])
    except psycopg.Error as error:
        raise ValueError(f"--ledger {given} is not an address ({first_line(error)}); it must be {EXAMPLE}") from None
    return given


def connector(address: str) -> Callable[[], Any]:
    """What connects to an address, each time anew. Raises ValueError where the environment lacks what it names."""
    psycopg = driver()
    libpq, name = _without_env(address)
    secret: dict[str, Any] = {}
    if name is not None:
        if name not in os.environ:
            raise ValueError(f"--ledger {address}: the environment has no {name}, which shall have the password")
        secret["password"] = os.environ[name]
    if "connect_timeout=" not in libpq and "PGCONNECT_TIMEOUT" not in os.environ:
        secret["connect_timeout"] = 10
    return lambda: psycopg.connect(libpq, **secret, application_name="steadysweep", client_encoding="utf8")


def driver() -> Any:
    """psycopg, which only those need whose ledger is in PostgreSQL."""
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError as error:
        raise ValueError(
            f"a ledger in PostgreSQL needs psycopg ({error}): pip install -c constraints.txt 'steadysweep[postgres]'"
        ) from error
    return psycopg


def as_sqlalchemy(address: str) -> str:
    """An address as SQLAlchemy is told it."""
    return _without_env(address)[0].replace("postgresql://", "postgresql+psycopg://", 1)


def is_same_database(one: str, other: str) -> bool:
    """Whether two addresses name one database of one server, as far as their words tell."""
    named = []
    for address in (one, other):
        parts = urlsplit(address)
        if not parts.scheme.startswith("postgres"):  # with a driver behind a +, or in short
            return False
        named.append((parts.hostname, parts.port or 5432, parts.path.strip("/")))
    return named[0] == named[1]


def has_password(address: str) -> bool:
    """Whether there is a password in the address of a database or a server."""
    named = {item.partition("=")[0] for item in address.partition("?")[2].split("&")}
    return bool(_PASSWORD.search(address) or named & set(_SECRET))


def masked(address: str) -> str:
    """An address that somebody put a password into, without it."""
    hidden = _PASSWORD.sub(r"\1:...@", address)
    return re.sub(rf"\b({'|'.join(_SECRET)})=[^&]*", r"\1=...", hidden)


def first_line(error: BaseException) -> str:
    """What a server said, in one line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if "failed:" in line or "FATAL" in line), lines[0] if lines else "no answer")
    return " ".join(told.removeprefix("connection failed: ").split())


def _without_env(address: str) -> tuple[str, str | None]:
    """The address as libpq knows it, and the environment variable that it names for the password."""
    place, _, query = address.partition("?")
    said = [item for item in query.split("&") if item]
    kept = "&".join(item for item in said if not item.startswith(f"{_ENV}="))
    named = [item.partition("=")[2] for item in said if item.startswith(f"{_ENV}=")]
    return f"{place}?{kept}" if kept else place, named[-1] if named else None
