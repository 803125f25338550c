"""What a trial's process leaves: checkpoints, log, stacks, and which samples are for what. In the sweep's folder, on a
disk that all nodes share, or in an object store.

Knows nothing of how a trial is trained.
"""

from __future__ import annotations

import posixpath
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from trainable import checkpoint, saving
from trainable.files import write_text
from trainable.mirror import CHECKPOINT, Mirror
from trainable.objects import Objects, StoreLost, StoreRefuses, is_address

LAST_WORDS_S = 10.0  # for what a process sends at its end: a log, stacks

T = TypeVar("T")


class Kept(Protocol):
    """log, stacks: files to write to, here. Names are those in the sweep's folder."""

    log: Path
    stacks: Path

    def read_newest(self) -> tuple[str, dict[str, Any]] | None:
        """The name of the newest good checkpoint of all attempts, and its state; as `checkpoint.read_newest`."""
        ...

    def read(self, name: str) -> dict[str, Any]:
        """The state of a checkpoint, verified."""
        ...

    def thin_out(self) -> None:
        """Delete checkpoints that are neither among the newest nor the best."""
        ...

    def has(self, name: str) -> bool: ...

    def write(self, name: str, text: str) -> None: ...

    def saved(self, act: Callable[[], T]) -> T:
        """What `act` returns, which writes a checkpoint to where Tune keeps them; again, where that was away."""
        ...

    def send_stacks(self) -> None:
        """Called when this process is about to be ended for making no progress."""
        ...

    def close(self) -> None: ...


def kept_of(config: Mapping[str, Any], rank: int = 0) -> Kept:
    """As a Trial's config says. rank: which of a trial's workers this is."""
    return InStore(config, rank) if is_address(config["folder"]) else OnDisk(config)


class OnDisk:
    """In a folder that the driver and all nodes see under one path."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._folder = Path(config["folder"])
        self._attempts: list[str] = config["attempts"]
        self._verified: set[Path] = set()
        self.log = self._folder / config["log"]
        self.stacks = self._folder / config["stacks"]

    def read_newest(self) -> tuple[str, dict[str, Any]] | None:
        found = checkpoint.read_newest(self._checkpoints())
        return None if found is None else (found[0].relative_to(self._folder).as_posix(), found[1])

    def read(self, name: str) -> dict[str, Any]:
        return checkpoint.read(self._folder / name)

    def thin_out(self) -> None:
        saving.thin_out(self._checkpoints(), saving.NUM_NEWEST, self._verified)

    def has(self, name: str) -> bool:
        return (self._folder / name).exists()

    def write(self, name: str, text: str) -> None:
        write_text(self._folder / name, text)

    def saved(self, act: Callable[[], T]) -> T:
        return act()

    def send_stacks(self) -> None:
        pass  # where they are written, they are seen

    def close(self) -> None:
        pass

    def _checkpoints(self) -> list[Path]:
        return [path for attempt in self._attempts for path in sorted((self._folder / attempt).glob(f"{CHECKPOINT}*"))]


class InStore:
    """In an object store, by way of a folder of this process alone, which goes with it."""

    def __init__(self, config: Mapping[str, Any], rank: int) -> None:
        self._objects = Objects(config["folder"])
        self._here = Path(tempfile.mkdtemp(prefix="steadysweep-trial-"))
        self._mirror = Mirror(self._objects, self._here)
        self._attempts: list[str] = config["attempts"]
        self._good: set[Path] = set()
        self._sent = -1  # bytes of the log
        stem, ending = posixpath.splitext(config["log"])
        # An object cannot be added to: each attempt, and each worker in it, has its own.
        worker = f"-worker-{rank}" if rank else ""
        self._log_name = f"{stem}/attempt-{config['attempt']:03d}{worker}{ending}"
        self._stacks_name: str = config["stacks"]
        self.log = self._here / "log.txt"
        self.stacks = self._here / "stacks.txt"

    def read_newest(self) -> tuple[str, dict[str, Any]] | None:
        found = checkpoint.read_newest(self._mirror.checkpoints(self._attempts), self._mirror.read)
        return None if found is None else (self._mirror.name_of(found[0]), found[1])

    def read(self, name: str) -> dict[str, Any]:
        return self._mirror.read(self._here / name)

    def thin_out(self) -> None:
        saving.thin_out(
            self._mirror.checkpoints(self._attempts),
            saving.NUM_NEWEST,
            self._good,
            is_good=self._mirror.is_whole,
            delete=self._mirror.delete,
        )

    def has(self, name: str) -> bool:
        return self._objects.exists(name)

    def write(self, name: str, text: str) -> None:
        self._objects.write(name, text.encode(errors="replace"))

    def saved(self, act: Callable[[], T]) -> T:
        found = self._objects.patiently(act)
        self._send_log(self._objects)
        return found

    def send_stacks(self) -> None:
        # In a thread: what hangs here may be the very connection that this needs.
        sending = threading.Thread(target=self._send, args=(self._stacks_name, self.stacks), daemon=True)
        sending.start()
        sending.join(LAST_WORDS_S)

    def close(self) -> None:
        self._send_log(Objects(self._objects.address, wait_s=LAST_WORDS_S))
        shutil.rmtree(self._here, ignore_errors=True)

    def _send_log(self, objects: Objects) -> None:
        """Where it has grown. A log fails no trial."""
        if self.log.is_file() and (size := self.log.stat().st_size) != self._sent:
            try:
                objects.write(self._log_name, self.log.read_bytes())
                self._sent = size
            except (StoreLost, StoreRefuses):
                pass

    def _send(self, name: str, path: Path) -> None:
        Objects(self._objects.address, wait_s=0.0).write(name, path.read_bytes())
