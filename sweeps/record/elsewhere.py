"""An object store by the address that a user gives: whether a new sweep may begin there, and the folder of one that was
begun elsewhere, made here.

Knows nothing of what trials leave there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from sweeps.record.address import Pointer
from sweeps.record.home import move
from sweeps.record.store import STORAGE, Folder
from sweeps.record.stored import ANSWER, BIRTH, SHORT_S
from trainable.files import sync_folder, write_text
from trainable.objects import Objects, below, checked_address, try_out


def checked_storage(given: str, name: str | None = None) -> str:
    """The address for a new sweep's folder in a store that can be written to. Raises ValueError, in a sentence.

    name: the sweep's, which must be free there; None: only the store is tried.
    """
    address = checked_address(given)
    try_out(address)
    if name is not None and Objects(below(address, name), wait_s=SHORT_S).exists(BIRTH):
        raise ValueError(
            f"name {name!r} exists already in {address}; choose another, or go on with --resume {name} "
            f"--storage {address}"
        )
    return address if name is None else below(address, name)


def note_storage(folder: Folder, address: str) -> None:
    """Have the folder say where the rest is."""
    folder.path.mkdir(parents=True, exist_ok=True)
    write_text(folder.path / STORAGE, json.dumps({"storage": address}, indent=1) + "\n")


def fetched(results: Path, name: str, given: str, database: str | None, asked_by: str = "") -> Folder:
    """The folder of a sweep that was begun elsewhere, made here from an object store; one that is here already is
    told where the store is now.

    given: the address that it was begun with; database: PostgreSQL's, where it has another name now; asked_by: the flag
    that gave the sweep's name. Raises ValueError, in a sentence, where it cannot be had.
    """
    address = checked_storage(given)
    folder = Folder(results / name)
    objects = Objects(below(address, name), wait_s=SHORT_S)
    try:
        said = json.loads(objects.read(BIRTH))
        pointer = None if said["ledger"] is None else Pointer(**said["ledger"])
        where = f"{said['folder']} on {said['host']}"
    except FileNotFoundError:
        there = ", ".join(sorted(_names_in(Objects(address, wait_s=SHORT_S)))[:10]) or "none"
        raise ValueError(
            f"{asked_by} {name}: there is no such sweep in {address}; there are: {there}".strip()
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{objects.address}/{BIRTH} does not say what the sweep is ({error})") from error
    if folder.ledger.is_file():
        if folder.storage is None:
            raise ValueError(
                f"--storage {given}: the files of {name} are all in {folder.path}, and stay there; leave --storage out"
            )
        here = Pointer.read(folder.pointer) if folder.pointer.is_file() else None
        if (here and here.study) != (pointer and pointer.study):
            raise ValueError(
                f"--storage {given}: {name} there is another sweep than {folder.path}; give --results another folder"
            )
        note_storage(folder, objects.address)
        if database is not None:
            move(folder.ledger, database)
        return folder
    if pointer is None:
        raise ValueError(
            f"{name} cannot be gone on with here: its ledger is a file in {where}; go on there, or copy that folder. A "
            "sweep that shall go on from any machine is begun with --ledger postgresql://..."
        )
    note_storage(folder, objects.address)
    write_text(folder.pointer, pointer.text())
    try:
        move(folder.pointer, database or pointer.database)
    except ValueError:
        os.unlink(folder.pointer)  # what has no ledger is no sweep
        (folder.path / STORAGE).unlink()
        folder.path.rmdir()
        raise
    sync_folder(folder.path)
    for file in ANSWER:
        if objects.exists(file):
            objects.fetch(file, folder.path / file)
    return folder


def _names_in(objects: Objects) -> list[str]:
    return [name for name in objects.folders() if objects.exists(f"{name}/{BIRTH}")]
