"""What a process prints is in the trial's file, whoever printed it, once, and not for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.helpers.drivers import ROOT, environment

PRELUDE = """
import ctypes, logging, multiprocessing, os, sys, warnings
from pathlib import Path
from trainable import output
from trainable.output import Output
"""


def run(code: str, tmp_path: Path) -> tuple[str, str]:
    """What such a process says itself on stdout, and what is in its file."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code], cwd=tmp_path, env={**environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    log = tmp_path / "logs" / "0.txt"
    return done.stdout, log.read_text(errors="replace") if log.exists() else ""


def test_everything_that_is_printed_is_in_it_once(tmp_path: Path) -> None:
    """Prints, logs of a handler that was there before, warnings, a forked process, and C; of a reused process each
    trial has its own, also a warning that Python would not repeat."""
    said, log = run(
        """
logging.basicConfig(level=logging.INFO)
def speak():
    print("by print")
    logging.getLogger("mine").info("by logging")
    warnings.warn("by warning")
    ctypes.CDLL(None).puts(b"by C"); ctypes.CDLL(None).fflush(None)
    worker = multiprocessing.get_context("fork").Process(target=print, args=("by a worker",), kwargs={"flush": True})
    worker.start(); worker.join()
print("before")
for trial in (1, 2):
    found = Output(Path("logs/0.txt"), f"attempt {trial}")
    speak()
    found.close(); found.close()
print("after")
""",
        tmp_path,
    )
    assert said == "before\nafter\n"
    first, second = log.split("--- attempt 2\n")
    for part in (first.removeprefix("--- attempt 1\n"), second):
        for word in ("by print", "by logging", "UserWarning: by warning", "by C", "by a worker"):
            assert part.count(word) == 1, (word, part)


def test_a_flood_is_cut(tmp_path: Path) -> None:
    """A task that prints at every step must not fill the disk; another attempt has room of its own."""
    said, log = run(
        """
output.LIMIT_BYTES = 1000
for attempt in (1, 2):
    found = Output(Path("logs/0.txt"), f"attempt {attempt}")
    for step in range(200):
        print(f"step {step:03d}")
        found.check()
    found.close()
""",
        tmp_path,
    )
    assert len(log) < 2 * 1200
    assert log.count("more than 1000 bytes: the rest is not kept") == 2
    assert log.startswith("--- attempt 1\nstep 000\nstep 001\n")
    assert said.count("step 199") == 2  # where it would have gone without a file


def test_a_file_that_cannot_be_had(tmp_path: Path) -> None:
    """Fails no trial."""
    (tmp_path / "logs").write_text("a file where the folder should be")
    said, _ = run("found = Output(Path('logs/0.txt'), 'x'); print('on'); found.check(); found.close()", tmp_path)
    assert said == "on\n"
