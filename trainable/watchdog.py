"""A run that makes no progress is ended, after the stacks of all its threads and loader processes are written down.

How long it may take between two steps follows from its pace so far. Knows nothing of steps, and no Ray.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

FIRST_S = 1800.0  # before anything is known of the pace: data are read, kernels compiled
FLOOR_S = 120.0  # no limit is shorter than this, however fast the steps are
TIMES_SLOWEST = 20.0  # the limit, in units of the longest time between two signs of progress so far
WORKER_WRITES_S = 0.5  # how long a loader process has for writing down its stack


class Watchdog:
    """Ends this process, by SIGKILL, when nothing has moved for too long inside `watching`.

    stacks: the file that then says why and where; it begins with `no progress for`.
    stall_s: the limit in seconds; None: from the pace. at_the_end: called when all is written down.
    """

    def __init__(self, stacks: Path, stall_s: float | None, at_the_end: Callable[[], None] = lambda: None) -> None:
        self._stacks = stacks
        self._stall_s = stall_s
        self._at_the_end = at_the_end
        self._slowest: float | None = None  # seconds; None until a first stretch is through
        self._longest = 0.0
        self._at_least_s = 0.0
        self._moved_at: float | None = None  # None: nothing is to be watched
        self._step = 0
        self._closed = threading.Event()
        self._file: IO[str] | None = None
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def limit_s(self) -> float:
        if self._stall_s is not None:
            return max(self._stall_s, self._at_least_s)
        return FIRST_S if self._slowest is None else max(FLOOR_S, TIMES_SLOWEST * self._slowest)

    @contextlib.contextmanager
    def watching(self, at_least_s: float = 0.0) -> Iterator[None]:
        """One stretch of work, from one report to the next. at_least_s: however short stall_s is; for work that makes
        no steps to be seen, whose pace says nothing of theirs."""
        if self._file is None:
            self._file = self._listening_file()
        self._at_least_s = at_least_s
        self._moved_at = time.monotonic()
        try:
            yield
            if not at_least_s:
                self.moved(self._step, time.monotonic())
                self._slowest = self._longest
        finally:
            self._moved_at = None

    def moved(self, step: int, now: float) -> None:
        """A sign of progress; called at every step."""
        if self._moved_at is not None:
            self._longest = max(self._longest, now - self._moved_at)
            self._moved_at = now
        self._step = step

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        if self._file is not None:
            if hasattr(signal, "SIGUSR2"):
                faulthandler.unregister(signal.SIGUSR2)
            self._file.close()
            self._stacks.unlink(missing_ok=True)

    def _listening_file(self) -> IO[str]:
        """The file, to which loader processes that are forked from now on write their stacks at a signal."""
        self._stacks.parent.mkdir(parents=True, exist_ok=True)
        file = self._stacks.open("w")
        if hasattr(signal, "SIGUSR2"):
            faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
        return file

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self.limit_s() / 4)):
            moved_at = self._moved_at
            if moved_at is not None and time.monotonic() - moved_at > self.limit_s():
                self._end(time.monotonic() - moved_at)

    def _end(self, seconds: float) -> None:
        file = self._file
        assert file is not None
        print(
            f"no progress for {seconds:.0f} s after step {self._step} (the limit is {self.limit_s():.0f} s)", file=file
        )
        file.flush()
        faulthandler.dump_traceback(file, all_threads=True)
        for child in multiprocessing.active_children():
            print(f"\nloader process {child.pid}:", file=file, flush=True)
            if child.pid is not None and hasattr(signal, "SIGUSR2"):
                os.kill(child.pid, signal.SIGUSR2)
                time.sleep(WORKER_WRITES_S)
            child.kill()  # it would never notice that nobody waits for it any more
        file.flush()
        os.fsync(file.fileno())
        self._at_the_end()
        os.kill(os.getpid(), signal.SIGKILL)  # no clean-up: it would wait for what hangs
