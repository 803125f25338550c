"""Signals, and drivers that die: trials save, the driver leaves in time, nothing it started is alive afterwards.

The drivers are processes of their own. Times are the promised ones: 10 s after the first signal, 2 s after the
second, 15 s until no process is left, 60 s after a SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sweeps.record.store import Folder
from sweeps.running.signals import Interruption
from tests.helpers.drivers import ROOT, driver, result_of, run_command, wait_until
from trainable.marks import FileMarks

HELD = f"{ROOT / 'tests/helpers/held.py'}:Held"
STEPS = 40
ARGUMENTS = ("--name", "told", "--task", HELD, "--lrs", "3e-3", "1e-3", "--trials-at-once", "2")
SLOW = ("--set", "task.sleep_s=0.1", "--set", "task.step_log=steps.log")
LOADED = ("--set", "task.loaded=true", "--set", "num_workers=2")


class Marked:
    """Finds everything that a driver has started, by its environment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._mark = f"STARTED_BY_TEST={uuid.uuid4().hex}".encode()
        monkeypatch.setenv(*self._mark.decode().split("="))

    def _processes(self) -> Iterator[Path]:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if int(process.name) != os.getpid() and self._mark in (process / "environ").read_bytes().split(b"\0"):
                    yield process

    def alive(self) -> list[str]:
        found = []
        for process in self._processes():
            with contextlib.suppress(OSError):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        return found

    def tell(self, number: int) -> None:
        """Send a signal to all of them, as Slurm does to every process of a job step."""
        for process in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), number)

    def gone_within(self, seconds: float) -> list[str]:
        """Who is still there after so many seconds."""
        until = time.monotonic() + seconds
        while (alive := self.alive()) and time.monotonic() < until:
            time.sleep(0.2)
        return alive


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> Marked:
    return Marked(monkeypatch)


def num_steps(place: Path) -> int:
    log = place / "steps.log"
    return len(log.read_text().split()) if log.exists() else 0


def leaves(process: subprocess.Popen[str], seconds: float) -> int:
    """Its exit code, within so many seconds."""
    began = time.monotonic()
    code = process.wait(timeout=60)
    assert time.monotonic() - began < seconds
    return code


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("SIGINT", 130),
        pytest.param("SIGTERM", 143, marks=pytest.mark.slow),
        pytest.param("SIGUSR1", 138, marks=pytest.mark.soak),
    ],
)
def test_a_signal_while_trials_run(name: str, code: int, tmp_path: Path, marked: Marked) -> None:
    """B51 a, c: with loader workers. Nothing is left, and a resume takes no step twice."""
    with driver(*ARGUMENTS, *SLOW, *LOADED, cwd=tmp_path) as process:
        wait_until(lambda: num_steps(tmp_path) >= 10, "10 steps are taken", process)
        if name == "SIGINT":
            process.send_signal(signal.SIGINT)
        else:
            marked.tell(getattr(signal, name))
        assert leaves(process, 10) == code
        assert marked.gone_within(15) == []
    result = result_of(tmp_path / "results/told")
    assert result["status"] == "interrupted"
    assert "Interrupted: 0 of 2" in result["verdict"]
    assert not (tmp_path / "results/told/stop").exists()
    if name != "SIGINT":
        done = run_command("--resume", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert [trial["state"] for trial in result_of(tmp_path / "results/told")["trials"]] == ["complete"] * 2
        assert num_steps(tmp_path) == 2 * STEPS


@pytest.mark.slow
def test_a_second_signal_leaves_at_once(tmp_path: Path, marked: Marked) -> None:
    """B51 b: the first is in vain, because the steps are held; after the second the sweep can still go on."""
    gate = tmp_path / "gate"
    gate.touch()
    held = ("--set", f"task.gate={gate}", "--set", "task.from_step=5", "--set", "task.step_log=steps.log")
    with driver(*ARGUMENTS, *held, cwd=tmp_path) as process:
        wait_until(lambda: num_steps(tmp_path) >= 10, "both trials are held", process)
        process.send_signal(signal.SIGINT)
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert leaves(process, 2) == 130
        assert marked.gone_within(15) == []
    gate.unlink()
    done = run_command("--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [trial["epochs"] for trial in result_of(tmp_path / "results/told")["trials"]] == [1.0, 1.0]


@pytest.mark.soak
def test_steps_that_hang_do_not_keep_a_driver(tmp_path: Path, marked: Marked) -> None:
    """One signal, and trials that cannot save: the driver leaves in time all the same."""
    gate = tmp_path / "gate"
    gate.touch()
    held = ("--set", f"task.gate={gate}", "--set", "task.from_step=5", "--set", "task.step_log=steps.log")
    with driver(*ARGUMENTS, *held, cwd=tmp_path) as process:
        wait_until(lambda: num_steps(tmp_path) >= 10, "both trials are held", process)
        process.send_signal(signal.SIGTERM)
        assert leaves(process, 10) == 143
        assert marked.gone_within(15) == []


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_ray_starts(name: str, code: int, tmp_path: Path, marked: Marked) -> None:
    log = tmp_path / "driver.log"
    with driver(*ARGUMENTS, cwd=tmp_path) as process:
        wait_until(lambda: any("gcs_server" in alive for alive in marked.alive()), "Ray starts", process)
        process.send_signal(getattr(signal, name))
        assert leaves(process, 10) == code
        assert marked.gone_within(15) == []
    assert "interrupted before any trial ran" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert not Folder(tmp_path / "results/told").is_taken()


@pytest.mark.soak
def test_a_signal_during_the_final_answer(tmp_path: Path, marked: Marked) -> None:
    folder = tmp_path / "results/told"
    with driver(*ARGUMENTS, cwd=tmp_path) as process:
        wait_until(lambda: (folder / "result.json").exists(), "the answer is being written", process)
        process.send_signal(signal.SIGINT)
        assert leaves(process, 10) == 130
        assert marked.gone_within(15) == []
    assert result_of(folder)["status"] == "finished"
    done = run_command("--resume", "told", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [trial["attempts"] for trial in result_of(folder)["trials"]] == [1, 1]


@pytest.mark.slow
def test_a_killed_driver_leaves_nothing(tmp_path: Path, marked: Marked) -> None:
    """B51 d: only the driver is killed, while a loader worker hangs that would never notice."""
    gate = tmp_path / "gate"
    gate.touch()
    held = ("--set", f"task.worker_gate={gate}")
    with driver(*ARGUMENTS, *SLOW, *LOADED, *held, cwd=tmp_path) as process:
        wait_until(lambda: num_steps(tmp_path) >= 10, "10 steps are taken", process)
        alive = marked.alive()
        assert len(alive) > 8  # Ray, two trials, their loader workers
        assert sum("Agent" in command for command in alive) == 2  # which hide in the environment what marks them
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert marked.gone_within(60) == []


@pytest.fixture
def fake_exit(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise SystemExit

    monkeypatch.setattr(os, "_exit", leave)
    return codes


def wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 5
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)
    assert holds()


def test_whoever_has_the_handler_the_signal_arrives(tmp_path: Path, fake_exit: list[int]) -> None:
    """Ray takes SIGTERM in ray.init, Tune takes SIGUSR1: the thread is told all the same, and claims them back."""
    before = signal.getsignal(signal.SIGTERM)
    said: list[str] = []
    with Interruption(said.append) as interruption:
        interruption.trials_run(FileMarks(tmp_path / "stop"))
        theirs: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: theirs.append(number))
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: said != [])
        assert (interruption.signal, interruption.exit_code, theirs) == (signal.SIGTERM, 143, [signal.SIGTERM])
        assert (tmp_path / "stop").exists()
        os.kill(os.getpid(), signal.SIGTERM)  # `timeout` sends each twice
        interruption.claim()
        assert fake_exit == []
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)
        wait_for(lambda: fake_exit == [143])
        assert theirs in ([signal.SIGTERM], [signal.SIGTERM] * 2)
        # Its thread has ended in place of this process; a new one lets the context close.
        interruption._thread = threading.Thread(target=interruption._listen, daemon=True)
        interruption._thread.start()
    assert signal.getsignal(signal.SIGTERM) == before
    assert not (tmp_path / "stop").exists()
