"""A checkpoint is a folder: `state.pt`, then `manifest.json`, written last. No manifest, no checkpoint.

Files are written beside, fsynced and renamed; loading verifies size and sha256 first and never unpickles
anything but tensors and plain values. Knows nothing of what the state holds.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

FORMAT = 1
STATE = "state.pt"
MANIFEST = "manifest.json"


class CheckpointError(Exception):
    """A checkpoint that cannot be used: what is wrong with which file."""


def write(folder: Path, state: dict[str, Any], *, step: int, config: dict[str, Any]) -> dict[str, Any]:
    """Write `state` (tensors and plain values only) as a checkpoint into `folder`; the manifest is returned.

    An OSError (disk full) leaves no manifest behind, so nothing half-written is ever taken for a checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state_file = folder / STATE
    beside = folder / (STATE + ".part")
    with beside.open("wb") as file:
        hashing = _HashingFile(file)
        torch.save(state, hashing)  # type: ignore[arg-type]  # it needs write() only
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, state_file)
    manifest = {
        "format": FORMAT,
        "step": step,
        "files": {STATE: {"sha256": hashing.digest.hexdigest(), "size": hashing.size}},
        "config": config,
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
    }
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1))
    return manifest


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole: a reader, or a crash, sees the old text or the new one."""
    beside = path.with_name(path.name + ".part")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    _sync_folder(path.parent)


def verify(folder: Path) -> dict[str, Any]:
    """The manifest of a complete checkpoint; CheckpointError says what is wrong otherwise."""
    manifest_file = folder / MANIFEST
    try:
        manifest = json.loads(manifest_file.read_text(encoding="utf-8"))
        files = {str(name): (str(entry["sha256"]), int(entry["size"])) for name, entry in manifest["files"].items()}
        manifest_format, _ = int(manifest["format"]), int(manifest["step"])
    except FileNotFoundError:
        raise CheckpointError(f"{manifest_file} is missing: the checkpoint was never finished") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{manifest_file} cannot be read: {type(error).__name__}: {error}") from error
    if manifest_format > FORMAT:
        raise CheckpointError(f"{manifest_file} has format {manifest_format}; this version reads up to {FORMAT}")
    if set(files) != {STATE}:
        raise CheckpointError(f"{manifest_file} lists {sorted(files)}; expected {STATE}")
    for name, (sha256, size) in files.items():
        path = folder / name
        try:
            found_size = path.stat().st_size
            if found_size != size:
                raise CheckpointError(f"{path} has {found_size} bytes, its manifest says {size}")
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        if found != sha256:
            raise CheckpointError(f"{path} is damaged: its sha256 differs from its manifest's")
    assert isinstance(manifest, dict)
    return manifest


def read(folder: Path) -> dict[str, Any]:
    """The state in `folder`, verified, its tensors on the CPU: whoever takes them moves them on."""
    verify(folder)
    try:
        state = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises whatever the damaged bytes lead it into
        raise CheckpointError(f"{folder / STATE} cannot be loaded: {type(error).__name__}: {error}") from error
    assert isinstance(state, dict)
    return state


def newest_valid(folders: Iterable[Path]) -> Path | None:
    """The complete checkpoint with the highest step among `folders`; each bad one is named in a warning."""
    good: list[tuple[int, Path]] = []
    for folder in folders:
        try:
            good.append((int(verify(folder)["step"]), folder))
        except CheckpointError as error:
            warnings.warn(f"a checkpoint is passed over: {error}", stacklevel=2)
    return max(good, key=lambda pair: (pair[0], str(pair[1])))[1] if good else None


def delete(folder: Path) -> None:
    """Remove a checkpoint, its manifest first, so that a crash in between leaves no half one behind."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; file systems that cannot sync a folder do not need it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


class _HashingFile(io.RawIOBase):
    """A file that hashes what is written to it, so that writing and hashing are one pass."""

    def __init__(self, file: Any) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self._file = file

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.size += len(data) if isinstance(data, bytes) else memoryview(data).nbytes
        written: int = self._file.write(data)
        return written

    def flush(self) -> None:
        self._file.flush()
