"""What a process prints while it trains a trial, in a file: logs, warnings, prints, and what code in C says.

Append-only and bounded. Knows nothing of trials.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from pathlib import Path

LIMIT_BYTES = 2**20  # of one attempt; looked at now and then, so that a flood may go somewhat beyond it


class Output:
    """This process's stdout and stderr go to the end of a file until `close`.

    By their descriptors, so that loader processes and code in C write there too, and nothing has to pass them on.
    A file that cannot be had fails no trial: then they stay where they were. Mutable.
    """

    def __init__(self, path: Path, heading: str) -> None:
        self._saved: list[int] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError:
            return
        self._began_at = os.fstat(self._file).st_size
        self._write(f"--- {heading}\n")
        _flush()
        self._saved = [os.dup(1), os.dup(2)]
        os.dup2(self._file, 1)
        os.dup2(self._file, 2)
        with warnings.catch_warnings():
            pass  # Python warns once a process: what it knows to have said is forgotten here, for a trial of its own

    def check(self) -> None:
        """Stop where the file has become too large."""
        if self._saved and os.fstat(self._file).st_size - self._began_at > LIMIT_BYTES:
            self._write(f"\n--- more than {LIMIT_BYTES} bytes: the rest is not kept\n")
            self.close()

    def close(self) -> None:
        """Put stdout and stderr back; a second time does nothing."""
        if not self._saved:
            return
        _flush()
        for number, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, number)
            os.close(saved)
        self._saved = []
        os.close(self._file)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a full disk
            os.write(self._file, text.encode(errors="replace"))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # full, closed, or none at all
            stream.flush()
