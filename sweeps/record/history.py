"""What every trial said, in append-only files, one per trial: the curves that no database should hold.

A report is on the disk before anyone acts on it. Knows nothing of what is done with it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


class History:
    """`<folder>/<number>.jsonl`: one line a report. A torn last line (a crash) counts as never written."""

    def __init__(self, folder: Path, also: Callable[[int, dict[str, Any]], None] | None = None) -> None:
        """also: who else keeps each report, before it counts."""
        self._folder = folder
        self._also = also

    def path(self, number: int) -> Path:
        return self._folder / f"{number:05d}.jsonl"

    def append(self, number: int, record: dict[str, Any]) -> None:
        """Add a report and wait until it is on the disk."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self.path(number)
        with path.open("ab+") as file:
            # A crash may have left half a line; what is added after it must stand on its own.
            if file.tell() and not _ends_with_newline(file):
                file.write(b"\n")
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if self._also is not None:
            self._also(number, record)

    def reports(self, number: int) -> list[dict[str, Any]]:
        """The reports of a trial in order, each once: a report that was made again is the same report."""
        path = self.path(number)
        if not path.is_file():
            return []
        found: dict[int, dict[str, Any]] = {}
        for line in path.read_bytes().splitlines():
            try:
                record = json.loads(line)
                found.setdefault(int(record["report"]), record)
            except (ValueError, KeyError, TypeError):
                continue  # torn by a crash
        return [found[key] for key in sorted(found)]

    def curve(self, number: int, name: str) -> list[float]:
        """One value a step, over all reports of a trial."""
        return joined_curve(self.reports(number), name)


class Follower:
    """Reads one trial's file on from where it last was: whoever follows a long trial does not read it all each time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._seen: set[int] = set()

    def fresh(self) -> list[dict[str, Any]]:
        """The reports that came since it was last asked, each once."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                text = file.read()
        except FileNotFoundError:
            return []
        whole, newline, _torn = text.rpartition(b"\n")
        self._position += len(whole) + len(newline)  # what is left may be half a line, under way
        found = []
        for line in whole.splitlines():
            try:
                record = json.loads(line)
                number = int(record["report"])
            except (ValueError, KeyError, TypeError):
                continue  # torn by a crash
            if number not in self._seen:
                self._seen.add(number)
                found.append(record)
        return found


def joined_curve(reports: Iterable[dict[str, Any]], name: str) -> list[float]:
    return [value for report in reports for value in report["curves"][name]]


def _ends_with_newline(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    last = file.read(1)
    file.seek(0, os.SEEK_END)
    return bool(last == b"\n")
