"""A sweep's folder in an object store, and what of it has been brought into a folder here, under the same names.

Of a checkpoint the manifest comes at once, the state only where it is asked for. Knows nothing of what a state holds.
"""

from __future__ import annotations

import posixpath
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainable import manifest
from trainable.objects import Objects

CHECKPOINT = "checkpoint_"  # Tune's own name for the folder of each


class Mirror:
    """`here` is the folder, `objects` what it is a part of."""

    def __init__(self, objects: Objects, here: Path) -> None:
        self.objects = objects
        self.here = here
        self._sizes: dict[str, int] = {}

    def checkpoints(self, attempts: Iterable[str]) -> list[Path]:
        """The folders here of all checkpoints of these attempts, as they are in the store now, in order. Each has its
        manifest, unless its writer was killed before that was there."""
        self._sizes = {}
        folders: set[str] = set()
        for attempt in attempts:
            for name, size in self.objects.sizes(attempt).items():
                folder = posixpath.dirname(name)
                if posixpath.basename(folder).startswith(CHECKPOINT):
                    folders.add(folder)
                    self._sizes[name] = size
            for old in (self.here / attempt).glob(f"{CHECKPOINT}*"):
                if self.name_of(old) not in folders:
                    shutil.rmtree(old, ignore_errors=True)
        for folder in folders:
            (self.here / folder).mkdir(parents=True, exist_ok=True)
            name = f"{folder}/{manifest.MANIFEST}"
            if name in self._sizes and not (self.here / name).is_file():
                self.objects.fetch(name, self.here / name)
        return [self.here / folder for folder in sorted(folders)]

    def name_of(self, folder: Path) -> str:
        return folder.relative_to(self.here).as_posix()

    def is_whole(self, folder: Path) -> bool:
        """Whether the state is as long as its manifest says. Not read back: stores compare a checksum at the upload,
        and a download would cost as much again; whoever loads it compares its sha256."""
        try:
            said = manifest.read_manifest(folder)
        except manifest.CheckpointError:
            return False
        found = self._sizes.get(f"{self.name_of(folder)}/{manifest.STATE}")
        return found is not None and found == said["files"][manifest.STATE]["size"]

    def bring(self, folder: Path) -> Path:
        """The folder, with its state."""
        for name in (manifest.MANIFEST, manifest.STATE):
            if not (folder / name).is_file():
                try:
                    self.objects.fetch(f"{self.name_of(folder)}/{name}", folder / name)
                except FileNotFoundError as error:
                    raise manifest.CheckpointError(
                        f"{self.objects.address}: {self.name_of(folder)} has no {name}"
                    ) from error
        return folder

    def read(self, folder: Path) -> dict[str, Any]:
        """The state, verified; it does not stay here."""
        from trainable import checkpoint  # here: it imports torch

        try:
            return checkpoint.read(self.bring(folder))
        finally:
            (folder / checkpoint.STATE).unlink(missing_ok=True)

    def delete(self, folder: Path) -> None:
        """Remove a checkpoint from the store, its manifest first, and from here."""
        name = self.name_of(folder)
        self.objects.delete(f"{name}/{manifest.MANIFEST}")
        for other in [found for found in self._sizes if posixpath.dirname(found) == name]:
            self.objects.delete(other)
        manifest.delete(folder)
