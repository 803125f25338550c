"""Files that are wholly old or wholly new, whenever the power goes out: written beside, fsynced, renamed.

Knows nothing of what is in them, and imports no torch.
"""

from __future__ import annotations

import os
from pathlib import Path

BESIDE = ".part"


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole: a reader, or a crash, sees the old text or the new one."""
    beside = path.with_name(path.name + BESIDE)
    try:
        write_synced(beside, text)
    except BaseException:  # half a file is of no use, and the disk may be full
        beside.unlink(missing_ok=True)
        raise
    os.replace(beside, path)
    sync_folder(path.parent)


def write_synced(path: Path, text: str) -> None:
    """Write, and come back once it is on the disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make a rename durable; file systems that cannot sync a folder do not need it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
