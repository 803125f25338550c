"""What a checkpoint says of itself: the file that is put in place last, and without which there is no checkpoint.

Imports no torch: whoever lists checkpoints needs none. Knows nothing of what the state holds.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

FORMAT = 1
STATE = "state.pt"
MANIFEST = "manifest.json"


class CheckpointError(Exception):
    """A checkpoint that cannot be used: what is wrong with which file."""


class Unfinished(CheckpointError):
    """A folder whose manifest was never put in place: its writer was killed. It never was a checkpoint."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a checkpoint says of itself; its state is not looked at. Raises CheckpointError, Unfinished."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        manifest_format, _ = int(manifest["format"]), int(manifest["step"])
        files = {str(name): (str(entry["sha256"]), int(entry["size"])) for name, entry in manifest["files"].items()}
    except FileNotFoundError:
        raise Unfinished(f"{path} is missing: the checkpoint was never finished") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    if manifest_format > FORMAT:
        raise CheckpointError(f"{path} has format {manifest_format}; this version reads up to {FORMAT}")
    if set(files) != {STATE}:
        raise CheckpointError(f"{path} lists {sorted(files)}; expected {STATE}")
    assert isinstance(manifest, dict)
    return manifest


def delete(folder: Path) -> None:
    """Remove a checkpoint, its manifest first, so that a crash in between leaves no half one behind."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
