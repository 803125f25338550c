"""The ledger of a sweep that is run: a new one, or one that is gone on with; and no trace of one that was refused.

The caller owns the folder. Knows nothing of how trials run.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sweeps.record.drift import identity
from sweeps.record.elsewhere import note_storage
from sweeps.record.home import remove
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.record.stored import stored_of
from sweeps.running.failures import Refused
from sweeps.sweep import Sweep
from sweeps.tracking.moved import settle


@contextlib.contextmanager
def free_if_refused(folder: Folder) -> Iterator[None]:
    """A new sweep that cannot be trained leaves no folder: its name is free for the next try."""
    is_new = not folder.ledger.is_file()
    try:
        yield
    except Refused:
        if is_new:
            stored_of(folder).remove()
            remove(folder.pointer)
            shutil.rmtree(folder.path, ignore_errors=True)
        raise


def open_ledger(
    folder: Folder,
    sweep: Sweep,
    tracking_uri: str,
    drift: Sequence[str],
    noted: Mapping[str, Any],
    database: str | None,
    storage: str | None,
) -> Ledger:
    """The ledger of a sweep that is run now. database: PostgreSQL's address, of a new one; None: in the folder.
    storage: the address of a new sweep's folder in an object store, or None."""
    noted = {**noted, "identity": identity(sweep)}
    if not folder.ledger.is_file():
        where = {"tracking_uri": tracking_uri, "folder": str(folder.path)}
        path = folder.ledger if database is None else folder.pointer
        if storage is not None:
            note_storage(folder, storage)
        return Ledger.create(path, sweep, {"sweep_id": uuid.uuid4().hex, **where, **noted}, database)
    ledger = Ledger(folder.ledger)
    ledger.note_drift(drift)
    for name, value in noted.items():
        ledger.note(name, value)
    ledger.extend(sweep)
    settle(folder, ledger, tracking_uri)
    return ledger
