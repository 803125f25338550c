"""A checkpoint is a folder: `state.pt`, then `manifest.json`, put in place last. No manifest, no checkpoint.

Files are written beside, fsynced and renamed; loading verifies size and sha256 and never unpickles
anything but tensors and plain values. Knows nothing of what the state holds.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import platform
import shutil
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from trainable.crashpoint import crash_point
from trainable.files import BESIDE, sync_folder, write_synced
from trainable.manifest import FORMAT, MANIFEST, STATE, CheckpointError, Unfinished, delete, read_manifest
from trainable.plain import plain

__all__ = [
    "MANIFEST",
    "STATE",
    "CheckpointError",
    "Unfinished",
    "delete",
    "newest_valid",
    "read",
    "read_manifest",
    "read_newest",
    "verify",
    "write",
]


def write(
    folder: Path, state: dict[str, Any], *, step: int, config: dict[str, Any], score: float | None = None
) -> dict[str, Any]:
    """Write `state` (tensors and plain values only) as a checkpoint into `folder`; the manifest is returned.

    score: how good the run was here, less is better; it decides which checkpoint is the best one.
    An OSError (disk full) leaves nothing behind, and a checkpoint that stood in the folder as it was.
    Raises TypeError for a state that could not be loaded safely.
    """
    state, config = plain(state), plain(config, name="config")
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    state_file, manifest_file = folder / STATE, folder / MANIFEST
    state_beside, manifest_beside = (file.with_name(file.name + BESIDE) for file in (state_file, manifest_file))
    try:
        sha256, size = _write_state(state_beside, state)
        manifest = {
            "format": FORMAT,
            "step": int(step),
            "score": float(score) if score is not None and math.isfinite(score) else None,
            "files": {STATE: {"sha256": sha256, "size": size}},
            "config": config,
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
        }
        write_synced(manifest_beside, json.dumps(manifest, indent=1))
    except BaseException:  # whatever ended it: the rest of a checkpoint is of no use, and the disk may be full
        state_beside.unlink(missing_ok=True)
        manifest_beside.unlink(missing_ok=True)
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    # Every byte is on the disk by now. An old manifest must never stand beside a new state.
    manifest_file.unlink(missing_ok=True)
    os.replace(state_beside, state_file)
    crash_point("checkpoint-before-manifest", state_file)
    os.replace(manifest_beside, manifest_file)
    crash_point("checkpoint-after-manifest", manifest_file)
    sync_folder(folder)
    sync_folder(folder.parent)
    return manifest


def verify(folder: Path) -> dict[str, Any]:
    """The manifest of a complete and undamaged checkpoint; CheckpointError says what is wrong otherwise."""
    manifest = read_manifest(folder)
    path = folder / STATE
    try:
        _check_size(path, manifest)
        found = _sha256(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    _check_sha256(path, manifest, found)
    return manifest


def read(folder: Path) -> dict[str, Any]:
    """The state in `folder`, verified, its tensors on the CPU: whoever takes them moves them on.

    The file is hashed in a second thread while it is loaded; what was loaded is given out only if the hash is right.
    """
    manifest = read_manifest(folder)
    path = folder / STATE
    state, failure = None, None
    try:
        _check_size(path, manifest)
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="verify") as beside:
            hashing = beside.submit(_sha256, path)
            try:
                state = torch.load(path, map_location="cpu", weights_only=True)
            except Exception as error:  # torch.load raises whatever the damaged bytes lead it into
                failure = error
        found = hashing.result()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    _check_sha256(path, manifest, found)
    if failure is not None:
        raise CheckpointError(f"{path} cannot be loaded: {type(failure).__name__}: {failure}") from failure
    assert isinstance(state, dict)
    return state


def newest_valid(folders: Iterable[Path]) -> Path | None:
    """The undamaged checkpoint with the highest step; each bad one that was newer is named in a warning.

    None where there is no checkpoint yet. Raises CheckpointError where there are some and all are bad:
    whether to begin again from nothing is not decided here.
    """
    found = _first_good(folders, verify)
    return None if found is None else found[0]


def read_newest(
    folders: Iterable[Path], read: Callable[[Path], dict[str, Any]] = read
) -> tuple[Path, dict[str, Any]] | None:
    """The newest undamaged checkpoint and its state, in one pass over its file; otherwise as `newest_valid`."""
    return _first_good(folders, read)


def _first_good(folders: Iterable[Path], look: Any) -> tuple[Path, Any] | None:
    """The first folder, from the highest step down, that `look` finds nothing wrong with; and what it gave."""
    steps: list[tuple[int, str, Path]] = []
    bad: list[str] = []
    for folder in folders:
        try:
            steps.append((int(read_manifest(folder)["step"]), str(folder), folder))
        except Unfinished as error:
            warnings.warn(f"passed over: {error}", stacklevel=3)
        except CheckpointError as error:
            bad.append(str(error))
            warnings.warn(f"a checkpoint is passed over: {error}", stacklevel=3)
    for _, _, folder in sorted(steps, reverse=True):
        try:
            return folder, look(folder)
        except CheckpointError as error:
            bad.append(str(error))
            warnings.warn(f"a checkpoint is passed over: {error}", stacklevel=3)
    if bad:
        raise CheckpointError(f"all {len(bad)} checkpoints are bad, there is nothing to go on from: {'; '.join(bad)}")
    return None


def _write_state(path: Path, state: dict[str, Any]) -> tuple[str, int]:
    """Write and fsync; the sha256 and the size of what was written."""
    with path.open("wb") as file:
        hashing = _HashingFile(file)
        try:
            torch.save(state, hashing)  # type: ignore[arg-type]  # it needs write() only
        except RuntimeError:
            # torch turns an error of the disk into one about positions in its archive.
            if hashing.error is not None:
                raise hashing.error from None
            raise
        file.flush()
        os.fsync(file.fileno())
    return hashing.digest.hexdigest(), hashing.size


def _check_size(path: Path, manifest: dict[str, Any]) -> None:
    found, expected = path.stat().st_size, manifest["files"][STATE]["size"]
    if found != expected:
        raise CheckpointError(f"{path} has {found} bytes, its manifest says {expected}")


def _check_sha256(path: Path, manifest: dict[str, Any], found: str) -> None:
    if found != manifest["files"][STATE]["sha256"]:
        raise CheckpointError(f"{path} is damaged: its sha256 differs from its manifest's")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:  # read, not mapped: an unreadable sector is then an error and not a crash
        return hashlib.file_digest(file, "sha256").hexdigest()


class _HashingFile(io.RawIOBase):
    """A file that hashes what is written to it, so that writing and hashing are one pass."""

    def __init__(self, file: Any) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None
        self._file = file

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.size += len(data) if isinstance(data, bytes) else memoryview(data).nbytes
        try:
            written: int = self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        return written

    def flush(self) -> None:
        self._file.flush()
