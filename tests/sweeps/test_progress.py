"""The live table: lines where nobody can redraw, a table where somebody can, and an honest time left."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import pty
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sweeps import lr_scan
from sweeps.record.history import History
from sweeps.record.trial import TrialRecord
from sweeps.running import progress
from sweeps.running.progress import Progress, progress_console, spoken
from sweeps.running.rays_words import shortened
from sweeps.running.sparkline import ASCII, BLOCKS, MOST, Curve, sparkline
from tests.helpers.drivers import environment


def record(number: int, state: Any = "waiting", epochs: float = 0.0, **changes: Any) -> TrialRecord:
    return TrialRecord(
        number=number,
        params={"lr": 10.0 ** -(number + 1)},
        state=state,
        attempts=1,
        reports=int(epochs),
        epochs=epochs,
        **{
            "metrics": {},
            "samples_per_s": None,
            "notes": {},
            "reason": None,
            "mlflow_run_id": None,
            "weights_sha256": None,
            **changes,
        },
    )


MEASURED = {"metrics": {"train_loss": 1.25, "val_loss": 0.5, "val_accuracy": 0.875}, "samples_per_s": 12345.6}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time, moved by hand."""
    found = Clock()
    monkeypatch.setattr(progress, "time", found)
    return found


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "history")


def plain_console() -> Console:
    return Console(file=io.StringIO(), width=40)


def lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_one_line_a_report_where_there_is_no_terminal(clock: Clock, history: History) -> None:
    """A log file of a batch job: no escape codes, no line cut at 40 columns, no line that says nothing new."""
    console = plain_console()
    with Progress(console, [record(0), record(1)], 2, history) as shown:
        running = record(0, "running")
        shown.update(running)
        shown.update(dataclasses.replace(running, mlflow_run_id="known now"))  # no news for a reader
        clock.now += 3
        shown.update(record(0, "running", 1.0, **MEASURED))
        shown.update(record(0, "complete", 2.0, **MEASURED))
    assert lines(console) == [
        "trial 0  lr=0.1  running  epoch 0/2",
        "trial 0  lr=0.1  running  epoch 1/2  loss 1.2500  val loss 0.5000  accuracy 87.5%  samples/s 12,346  9 s left",
        "trial 0  lr=0.1  complete  epoch 2/2  loss 1.2500  val loss 0.5000  accuracy 87.5%  samples/s 12,346",
    ]


def test_params_with_brackets_are_not_markup(history: History) -> None:
    """Rich would swallow [relu], and raise at [/x]."""
    console = plain_console()
    bracketed = dataclasses.replace(record(0), params={"task.blocks": "[relu][/x]"})
    with Progress(console, [bracketed], 1, history) as shown:
        shown.update(dataclasses.replace(bracketed, state="running"))
    assert lines(console) == ["trial 0  task.blocks=[relu][/x]  running  epoch 0/1"]
    table = Console(file=io.StringIO(), width=120, force_terminal=True, record=True)
    with Progress(table, [bracketed], 1, history):
        pass
    assert "task.blocks=[relu][/x]" in table.export_text()


def test_time_left(clock: Clock, history: History) -> None:
    """What is left, at the pace of this session: 4 trials of 4 epochs are 16 epochs, 3 took 6 s, 13 are left."""
    shown = Progress(plain_console(), [record(number) for number in range(4)], 4, history)
    assert shown.seconds_left() is None
    clock.now += 6
    assert shown.seconds_left() is None  # nothing has been said yet
    shown.update(record(0, "running", 2.0))
    shown.update(record(1, "running", 1.0))
    assert shown.seconds_left() == pytest.approx(26)
    shown.update(record(0, "complete", 4.0))
    clock.now += 4  # 5 epochs took 10 s
    assert shown.seconds_left() == pytest.approx(22)
    shown.update(record(1, "pruned", 2.0))  # a pruned trial is done, whatever it could have trained: 8 in 10 s
    assert shown.seconds_left() == pytest.approx(10)
    for number in range(4):
        shown.update(record(number, "complete", 4.0))
    assert shown.seconds_left() == pytest.approx(0)


def test_time_left_after_a_resume(clock: Clock, history: History) -> None:
    """What an earlier driver did took this one no time; counting it promises an end that does not come."""
    records = [record(0, "complete", 4.0), record(1, "running", 2.0), record(2)]
    shown = Progress(plain_console(), records, 4, history)
    clock.now += 3
    assert shown.seconds_left() is None
    shown.update(record(1, "running", 3.0))  # one epoch in 3 s; five are left
    assert shown.seconds_left() == pytest.approx(15)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (8, "8 s"), (89, "89 s"), (150, "2 min"), (1800, "30 min"), (9000, "2.5 h"), (360000, "100.0 h")],
)
def test_spoken(seconds: float, words: str) -> None:
    assert spoken(seconds) == words


def table_of(history: History, records: list[TrialRecord], width: int, encoding: str = "utf-8") -> list[str]:
    """The last table that was drawn of these, on a screen of so many columns."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    console = Console(file=file, width=width, height=40, force_terminal=True, record=True)
    with Progress(console, records, 4, history, (("val_loss", "min"), ("val_accuracy", "max"))):
        pass
    text = console.export_text()  # of one drawing after the other, without the codes that go back in between
    return [line.rstrip() for line in text[text.rindex("trial", 0, text.rindex("params")) :].splitlines()]


def losses(history: History, number: int, *values: float) -> None:
    history.append(number, {"report": len(history.reports(number)) + 1, "curves": {"loss": list(values)}})


def test_a_table_on_a_terminal(clock: Clock, history: History) -> None:
    """Every trial has a row, with what it said last, in every state; the best and the time left stand below."""
    console = Console(file=io.StringIO(), width=120, force_terminal=True, record=True)
    records = [record(number) for number in range(6)]
    losses(history, 0, 4.0, 3.0)
    with Progress(console, records, 4, history, (("val_loss", "min"),)) as shown:
        clock.now += 6
        losses(history, 0, 2.0, 1.0)
        shown.update(record(0, "complete", 4.0, **MEASURED))
        shown.update(record(1, "running", 1.5, **{**MEASURED, "metrics": {**MEASURED["metrics"], "val_loss": 0.25}}))
        shown.update(record(2, "failed", 1.0, metrics={"val_loss": 0.01}))
        shown.update(record(3, "diverged", 1.0))
        shown.update(record(4, "pruned", 2.0))
    text = console.export_text()
    rows = {line.split()[0]: line.split() for line in text.splitlines() if "lr=" in line}
    assert rows["0"] == ["0", "lr=0.1", "complete", "4/4", "1.2500", "█▆▃▁", "0.5000", "87.5%", "12,346"]
    assert rows["1"] == ["1", "lr=0.01", "running", "1.5/4", "1.2500", "0.2500", "87.5%", "12,346"]
    assert rows["2"] == ["2", "lr=0.001", "failed", "1/4", "0.0100"]
    assert [rows[number][2] for number in ("3", "4", "5")] == ["diverged", "pruned", "waiting"]
    # 4 trials and 1.5 of 4 epochs took 6 s; 1.625 trials are left. What failed is not the best.
    assert f"best val_loss so far 0.25 (trial 1); {6 / 4.375 * 1.625:.0f} s left" in text


@pytest.mark.parametrize("width", [200, 100, 80, 60, 40])
def test_a_screen_of_any_width(history: History, width: int) -> None:
    """No line is longer; 80 columns hold everything; a narrower screen leaves out what matters least."""
    long = {"params": {"lr": 0.00012345, "task.width": 128, "batch_size": 64}, **MEASURED}
    records = [dataclasses.replace(record(number, "running", 3.5), **long) for number in range(3)]
    for number in range(3):
        losses(history, number, *(1 / step for step in range(1, 100)))
    heading, *lines = table_of(history, records, width)
    assert max(map(len, [heading, *lines])) <= width
    named = heading.split("params")[1].split()
    assert ("samples/s" in named, "curve" in named) == (width >= 80, width >= 60)
    (row,) = (line for line in lines if line.split()[0] == "2")
    assert "lr=0" in row
    if width >= 80:
        assert row.split()[-5:] == ["1.2500", row.split()[-4], "0.5000", "87.5%", "12,346"]
        assert set(row.split()[-4]) <= set(BLOCKS)


def test_a_terminal_without_unicode(history: History) -> None:
    """One character that it lacks would end the sweep in a UnicodeEncodeError."""
    losses(history, 0, 3.0, 2.0, 1.0, math.nan)
    lines = table_of(history, [record(0, "running", 1.0, **MEASURED)], 80, "ascii")
    assert "#=_!" in "".join(lines)


@given(values=st.lists(st.floats(-1e6, 1e6), max_size=60), width=st.integers(1, 20))
def test_sparklines(values: list[float], width: int) -> None:
    """As wide as there is room and reason for; falls where the values fall; the same curve in another unit is the
    same picture."""
    line = sparkline(values, width, ascii_only=False)
    assert len(line) == min(width, len(values))
    falling = sparkline(sorted(values, reverse=True), width, ascii_only=False)
    assert list(falling) == sorted(falling, reverse=True)
    assert sparkline(values, width, ascii_only=True) == "".join(ASCII[BLOCKS.index(mark)] for mark in line)
    if len(values) > 1 and max(values) > min(values) and width >= len(values):
        assert (line[values.index(max(values))], line[values.index(min(values))]) == (BLOCKS[-1], BLOCKS[0])


def test_a_curve_of_any_length_is_kept_in_little_room() -> None:
    """A million steps; each mean is of equally many, so the middle of the curve stays in the middle."""
    curve = Curve()
    for start in range(0, 1_000_000, 1000):
        curve.add(float(step) for step in range(start, start + 1000))
    assert MOST / 2 <= len(curve.values) < MOST
    each = 1_000_000 / len(curve.values)
    assert curve.values[0] == pytest.approx(each / 2, rel=0.01)
    assert curve.values[len(curve.values) // 2] == pytest.approx(500_000, rel=0.01)


def test_drawing_takes_a_hundredth_of_the_time(history: History) -> None:
    """Eight trials at work: the thread that draws has had at most 1 % of the time on a CPU, and has drawn often."""
    records = [record(number, "running", 2.0, **MEASURED) for number in range(8)]
    for number in range(8):
        losses(history, number, *(1 / step for step in range(1, 400)))
    console = Console(file=io.StringIO(), width=80, height=40, force_terminal=True)
    with Progress(console, records, 4, history) as shown:
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "progress")
        clock_id = time.pthread_getcpuclockid(thread.ident or 0)
        began, spent = time.perf_counter(), time.clock_gettime(clock_id)
        for _ in range(30):
            shown.update(records[0])
            time.sleep(0.1)
        spent, passed = time.clock_gettime(clock_id) - spent, time.perf_counter() - began
    assert spent <= 0.012 * passed + 0.02  # one drawing more or less at the ends
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("params") >= 3


@pytest.mark.parametrize(
    ("mode", "variables", "on_a_terminal", "on_a_pipe"),
    [
        (None, {}, "rich", "plain"),
        ("auto", {"CI": "true"}, "plain", "plain"),
        ("auto", {"CI": "false"}, "rich", "plain"),
        ("auto", {"TERM": "dumb"}, "plain", "plain"),
        ("auto", {"FORCE_COLOR": "1"}, "rich", "plain"),
        ("rich", {"CI": "1"}, "rich", "rich"),
        ("plain", {}, "plain", "plain"),
        ("none", {}, "none", "none"),
    ],
)
def test_which_way(
    mode: str | None,
    variables: dict[str, str],
    on_a_terminal: str,
    on_a_pipe: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CI", "TERM", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    leader, follower = pty.openpty()
    reader, writer = os.pipe()
    try:
        for descriptor, wanted in ((follower, on_a_terminal), (writer, on_a_pipe)):
            with os.fdopen(os.dup(descriptor), "w") as stream, monkeypatch.context() as patched:
                patched.setattr(sys, "stderr", stream)
                console = progress_console(mode)
                assert (console.quiet, console.is_terminal and not console.quiet) == (
                    wanted == "none",
                    wanted == "rich",
                )
    finally:
        for descriptor in (leader, follower, reader, writer):
            os.close(descriptor)


def test_a_word_that_is_none_of_them(launch_folder: Path) -> None:
    """Said by the functions too, before anything is made."""
    with pytest.raises(ValueError, match="--progress fancy must be one of auto, rich, plain, none"):
        lr_scan("digits", progress="fancy")
    assert not list(launch_folder.iterdir())


def run_scan(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sweeps.lr_scan", "--lrs", "3e-3", "--trials-at-once", "1", *arguments],
        cwd=folder, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_nothing_but_the_answer(tmp_path: Path) -> None:
    """From a shell: --progress none leaves stderr empty; another word is refused in one sentence, nothing is made."""
    refused = run_scan(tmp_path, "--progress", "fancy")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--progress fancy must be one of" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not list(tmp_path.iterdir())
    done = run_scan(tmp_path, "--progress", "none", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["status"] == "finished"


def test_rays_own_messages_are_a_line_each() -> None:
    """As Ray prints them when a node is lost, colours included; everything else goes through as it is."""
    behind = io.StringIO()
    stream = shortened(behind)
    lost = (
        "Raylet is terminated. Termination is unexpected. Possible reasons include: (1) SIGKILL. Last 20 lines of the"
    )
    print(f"\x1b[33m(raylet)\x1b[0m {lost} Raylet logs:\n    [state-dump] 1\n    [state-dump] 2", file=stream)
    print("(raylet, ip=10.0.0.7) file_system_monitor: /tmp/ray is over 95% full", file=stream)
    print("(mine) two\nlines", file=stream)
    assert behind.getvalue() == (
        "\x1b[33m(raylet)\x1b[0m Raylet is terminated. Termination is unexpected.\n\n"
        "(raylet, ip=10.0.0.7) file_system_monitor: /tmp/ray is over 95% full\n"
        "(mine) two\nlines\n"
    )
