"""What a driver asks of trials while they run: to stop, or to leave a node. They look for it before their steps.

Beside the sweep's files where all nodes share a disk; else in Ray's own table, which every process of a cluster can
ask. Knows nothing of trials.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Protocol

IN_RAY = "ray:"


class Marks(Protocol):
    """every_s: how often a trial may look."""

    every_s: float

    def stop(self) -> None:
        """Ask all trials to save at their current step, and to stop."""
        ...

    def leave(self, node_id: str) -> None:
        """Ask those on a node (Ray's id) to save at their current step, and to go on elsewhere."""
        ...

    def is_stopping(self) -> bool: ...

    def is_leaving(self, node_id: str) -> bool: ...

    def clear(self) -> None:
        """Take back all that was asked."""
        ...


class FileMarks:
    """Files: one to stop, and one beside it for each node that is to be left."""

    every_s = 0.2

    def __init__(self, path: Path) -> None:
        self._path = path

    def stop(self) -> None:
        self._path.touch()

    def leave(self, node_id: str) -> None:
        self._node(node_id).touch()

    def is_stopping(self) -> bool:
        return os.path.exists(self._path)

    def is_leaving(self, node_id: str) -> bool:
        return os.path.exists(self._node(node_id))

    def clear(self) -> None:
        for path in (self._path, *self._path.parent.glob(f"{self._path.name}.*")):
            path.unlink(missing_ok=True)

    def _node(self, node_id: str) -> Path:
        return self._path.with_name(f"{self._path.name}.{node_id}")


class RayMarks:
    """Entries of Ray's table, under a key that no other driver has. A cluster that is going down fails nobody here:
    its trials end with it."""

    every_s = 1.0  # a question takes a millisecond

    def __init__(self, key: str) -> None:
        self._key = key

    def stop(self) -> None:
        self._put("stop")

    def leave(self, node_id: str) -> None:
        self._put(f"leave.{node_id}")

    def is_stopping(self) -> bool:
        return self._is_there("stop")

    def is_leaving(self, node_id: str) -> bool:
        return self._is_there(f"leave.{node_id}")

    def clear(self) -> None:
        from ray.experimental.internal_kv import _internal_kv_del

        with contextlib.suppress(Exception):  # each version of Ray raises its own
            _internal_kv_del(f"{self._key}/", del_by_prefix=True)

    def _put(self, name: str) -> None:
        from ray.experimental.internal_kv import _internal_kv_put

        with contextlib.suppress(Exception):
            _internal_kv_put(f"{self._key}/{name}", b"1")

    def _is_there(self, name: str) -> bool:
        from ray.experimental.internal_kv import _internal_kv_exists

        with contextlib.suppress(Exception):
            return bool(_internal_kv_exists(f"{self._key}/{name}"))
        return False


def marks_at(place: str) -> Marks:
    """`ray:` and a key, or the path of a file."""
    return RayMarks(place) if place.startswith(IN_RAY) else FileMarks(Path(place))
