"""A real PostgreSQL on a port that was free, in a folder of its own, which tests start, kill and start again."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

BIN = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
if BIN is None and (found := shutil.which("pg_ctl")):
    BIN = Path(found).resolve().parent
ADMIN, PASSWORD = "keeper", "not:a/se@cret"


class Postgres:
    """One server, whose users need a password over TCP."""

    def __init__(self) -> None:
        if BIN is None:
            pytest.skip("there is no PostgreSQL here")
        self.folder = Path(tempfile.mkdtemp(prefix="steadysweep-pg-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._as: dict[str, int] = {}
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            user = pwd.getpwnam("postgres" if _known("postgres") else "nobody")
            self._as = {"user": user.pw_uid, "group": user.pw_gid}
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        word = self.folder / "word"
        word.write_text(PASSWORD)
        word.chmod(0o644)
        self._run(
            "initdb",
            "-D",
            str(self._data),
            "-U",
            ADMIN,
            "-A",
            "scram-sha-256",
            "-E",
            "UTF8",
            f"--pwfile={word}",
            "--no-sync",
        )
        word.unlink()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def address(self, database: str = "postgres", user: str = ADMIN) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        settings = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=30"
        self._run("pg_ctl", "-D", str(self._data), "-w", "-l", str(self.folder / "log"), "-o", settings, "start")

    def kill(self) -> None:
        """As in a crash: nothing is finished, nothing is written down."""
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "stop")

    def sql(self, *statements: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """What the last of these returns."""
        import psycopg

        with psycopg.connect(self.address(database), password=PASSWORD, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        if (self._data / "postmaster.pid").exists():
            self.kill()
        shutil.rmtree(self.folder)

    def _run(self, program: str, *arguments: str) -> None:
        assert BIN is not None
        done = subprocess.run(
            [str(BIN / program), *arguments],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=(out := (self.folder / "out").open("w+")),
            stderr=subprocess.STDOUT,
            check=False,
            **self._as,
        )
        out.seek(0)
        assert done.returncode == 0, out.read()
        out.close()


def _known(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
