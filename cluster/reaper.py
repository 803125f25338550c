"""Ends what a driver leaves behind, once it is gone: its Ray and whatever ran in it, loader processes too.

A process of its own, in a session of its own, that waits at a pipe whose other end only the driver holds. It ends
processes that bear the driver's mark in their environment, and no other. Linux only; elsewhere Ray is relied on.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

MARK = "STEADYSWEEP_DRIVER"
# Ray's processes write their titles over where the kernel shows their environment, and the mark in it, unless this is
# set: two of its agents then outlived a killed driver by a minute, unseen.
KEEP_READABLE = "SPT_NOENV"
GRACE_S = 2.0  # for whoever is leaving already
QUIET_S = 3.0  # without any of them in sight, they are gone
GIVE_UP_S = 60.0  # on a process that not even SIGKILL ends
WATCH_EVERY_S = 0.2


@contextlib.contextmanager
def reaping() -> Iterator[None]:
    """What is started inside ends with the context, or with this process, however that ends.

    Only for processes that are started before `unmarked` is called: see there.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    mark = uuid.uuid4().hex
    reaper = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, f"{MARK}={mark}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    os.environ[MARK] = mark
    os.environ[KEEP_READABLE] = "1"
    try:
        yield
    finally:
        unmarked()
        assert reaper.stdin is not None
        reaper.stdin.close()


def unmarked() -> None:
    """What this process starts from now on is not Ray's, and is left alone."""
    os.environ.pop(MARK, None)
    os.environ.pop(KEEP_READABLE, None)


def _marked(mark: bytes) -> Iterator[int]:
    """Descriptors of the processes with the mark: a number could be another's by the time it is used."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            descriptor = os.pidfd_open(int(entry))
        except OSError:
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    yield descriptor
        except OSError:  # it has just ended, or is another user's
            pass
        finally:
            os.close(descriptor)


def _reap(mark: bytes) -> None:
    import signal

    # Slurm and others send their signals to every process of a job; this one must be the last to go.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()  # until the driver closes its end, or dies
    began = seen = time.monotonic()
    while time.monotonic() - began < GIVE_UP_S:
        for descriptor in _marked(mark):
            seen = time.monotonic()
            if seen - began > GRACE_S:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        # A process that is just being started shows no environment for a moment; one empty look proves nothing.
        if time.monotonic() - seen > QUIET_S:
            return
        time.sleep(WATCH_EVERY_S)


if __name__ == "__main__":
    _reap(sys.argv[1].encode())
