"""SIGINT, SIGTERM and Slurm's SIGUSR1: the first asks all trials to save at their current step, the second leaves.

Knows nothing of trials. Libraries install handlers of their own and a main thread may be deep in one of them, so
all is done by a thread that Python tells of every signal, whoever handles it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from trainable.marks import Marks

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
LEAVE_S = 9.0  # after the first signal the driver is gone, whatever hangs
SAME_S = 0.3  # `timeout` and some shells send one signal twice
SHOW_CURSOR = b"\x1b[?25h"  # a live table hides it


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Interruption:
    """Which signal has come. As a context: signals are ours inside.

    Until `trials_run` is called a signal ends the process at once: there is nothing to save.
    exits: False where the process is not ours to end (a notebook): then only Ctrl-C is ours, and where a command
    would leave, KeyboardInterrupt is raised.
    """

    def __init__(self, say: Callable[[str], None] = _to_stderr, *, exits: bool = True) -> None:
        self._exits = exits
        self._ours = SIGNALS if exits else [signal.SIGINT]
        self.signal: int | None = None
        self.stopping_since: float | None = None
        self.say = say
        self._marks: Marks | None = None
        self._at = 0.0
        self._before: dict[int, Any] = {}
        self._deadline: threading.Timer | None = None

    def __enter__(self) -> Interruption:
        if threading.current_thread() is not threading.main_thread():
            return self  # signals are another's business
        self._before = {number: signal.getsignal(number) for number in self._ours}
        if not self._exits:  # its event loop may want to be woken by signals itself
            self.claim()
            return self
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._wakeup_before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        self.claim()
        return self

    def __exit__(self, *error: object) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._marks is not None:
            self._marks.clear()
        if not self._before:
            return
        if self._exits:
            signal.set_wakeup_fd(self._wakeup_before)
            os.write(self._writing, b"\0")
            self._thread.join()
            os.close(self._reading)
            os.close(self._writing)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def claim(self) -> None:
        """Take the signals back from whatever library has installed its own handlers meanwhile."""
        if self._before:
            for number in self._ours:
                signal.signal(number, _told_elsewhere if self._exits else self._in_the_main_thread)

    def trials_run(self, marks: Marks) -> None:
        """From now on the first signal asks trials, by these marks, to save and to stop."""
        marks.clear()
        self._marks = marks

    def stop_trials(self) -> None:
        """Have all trials save and stop, as a signal would."""
        assert self._marks is not None
        self.stopping_since = time.monotonic()
        self._marks.stop()

    @property
    def exit_code(self) -> int | None:
        """128 plus the signal, as shells have it."""
        return None if self.signal is None else 128 + self.signal

    def _listen(self) -> None:
        while True:
            for number in os.read(self._reading, 16):
                if number == 0:
                    return
                if number in SIGNALS:
                    self._receive(number)

    def _in_the_main_thread(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-C in a process that goes on: the first one, once trials run, has them save and stop."""
        if self.signal is not None or self._marks is None:
            raise KeyboardInterrupt
        self.signal = number
        self.stop_trials()
        self.say("interrupted: trials save at their current step and stop; once more to leave them")

    def _receive(self, number: int) -> None:
        now = time.monotonic()
        if self.signal is None:
            self.signal, self._at = number, now
            if self._marks is None:
                self._leave("interrupted before any trial ran")
            self._deadline = threading.Timer(LEAVE_S, self._leave, ["interrupted; something did not stop in time"])
            self._deadline.daemon = True
            self._deadline.start()
            self.stop_trials()
            self.say("interrupted: trials save at their current step and stop; once more to leave at once")
        elif now - self._at > SAME_S:
            self._leave("interrupted twice; trials go on from their last checkpoint")

    def _leave(self, why: str) -> NoReturn:
        """End this process now. The ledger is whole at every moment, and what Ray leaves is reaped."""
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"\n{why}\n".encode())
        if os.isatty(2):
            os.write(2, SHOW_CURSOR)
        os._exit(self.exit_code or 1)


def _told_elsewhere(number: int, frame: FrameType | None) -> None:
    """Python wakes the listening thread by itself; this is here so that nothing else happens."""
