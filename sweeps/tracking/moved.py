"""A sweep whose folder is not where it was: which tracking store is its own now, and what in it must change.

The folder that is resumed is the sweep; nothing is written to where it was before.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

from sweeps.record.home import is_same_study
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.tracking.client import SQLITE


def present_store(folder: Folder, ledger: Ledger) -> str:
    """The address of the tracking store of a sweep as it is found.

    Only a database file can have moved with the folder. Then the first of these that is there is taken: the file
    in the same place as seen from the folder; the old file, if the sweep is no longer where it was (it was moved
    and not copied); else a new one in the results folder, to which the history is sent again.

    Raises ValueError for the copy of a folder whose ledger is in a database, or whose trials' files are in an object
    store: both would write to one study, or one place.
    """
    uri, old = str(ledger.attribute("tracking_uri")), _old_place(folder, ledger)
    if old is not None and is_same_study(folder.ledger, Folder(old).ledger):
        raise ValueError(
            f"{folder.path} is a copy of {old}, and the ledger of both is one study in a database; go on there, or "
            "remove that folder and go on here"
        )
    if old is not None and folder.storage is not None and _is_copy(old) and Folder(old).storage == folder.storage:
        raise ValueError(
            f"{folder.path} is a copy of {old}, and the trials of both keep their files in {folder.storage}; go on "
            "there, or remove that folder and go on here"
        )
    if old is None or not uri.startswith(SQLITE):
        return uri
    old_file = Path(uri.removeprefix(SQLITE))
    beside = Path(os.path.normpath(folder.path / os.path.relpath(old_file, old)))
    if beside.is_file():
        return f"{SQLITE}{beside}"
    if old_file.is_file() and not _is_copy(old):
        return uri
    return f"{SQLITE}{folder.path.parent / old_file.name}"


def settle(folder: Folder, ledger: Ledger, tracking_uri: str) -> None:
    """Make the folder's present place, and this store, the sweep's own. The caller owns the folder."""
    before, old = str(ledger.attribute("tracking_uri")), _old_place(folder, ledger)
    if old is not None and before == tracking_uri and _is_copy(old):
        # Original and copy write to one store, in which each must have runs of its own.
        ledger.note("sweep_id", uuid.uuid4().hex)
        ledger.note("mlflow_runs", {})
        ledger.note("mlflow_run_id", None)
    if old is not None and before.startswith(SQLITE) and tracking_uri.startswith(SQLITE) and before != tracking_uri:
        _move_artifacts(Path(before.removeprefix(SQLITE)), Path(tracking_uri.removeprefix(SQLITE)))
    ledger.note("tracking_uri", tracking_uri)
    ledger.note("folder", str(folder.path))


def _old_place(folder: Folder, ledger: Ledger) -> Path | None:
    """Where the folder was when it was last written to, if that is elsewhere."""
    noted = ledger.attribute("folder")
    return None if noted is None or noted == str(folder.path) else Path(noted)


def _is_copy(old: Path) -> bool:
    return Folder(old).ledger.is_file()


def _move_artifacts(old_file: Path, new_file: Path) -> None:
    """The artifacts that lie beside a database are written down in it with their absolute place, for which MLflow
    has no command."""
    if not new_file.is_file():
        return
    places = {"old": (old_file.parent / "mlartifacts").as_uri(), "new": (new_file.parent / "mlartifacts").as_uri()}
    with closing(sqlite3.connect(new_file, timeout=30)) as database, database:
        for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
            database.execute(
                f"UPDATE {table} SET {column} = :new || substr({column}, length(:old) + 1) "
                f"WHERE {column} = :old OR substr({column}, 1, length(:old) + 1) = :old || '/'",
                places,
            )
