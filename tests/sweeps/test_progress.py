"""The live table: lines where nobody can redraw, a table where somebody can, and an honest time left."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest
from rich.console import Console

from sweeps.record.trial import TrialRecord
from sweeps.running import progress
from sweeps.running.progress import Progress, spoken


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


def plain_console() -> Console:
    return Console(file=io.StringIO(), width=40)


def lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_one_line_a_report_where_there_is_no_terminal(clock: Clock) -> None:
    """A log file of a batch job: no escape codes, no line cut at 40 columns, no line that says nothing new."""
    console = plain_console()
    with Progress(console, [record(0), record(1)], epochs=2) as shown:
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


def test_params_with_brackets_are_not_markup() -> None:
    """Rich would swallow [relu], and raise at [/x]."""
    console = plain_console()
    bracketed = dataclasses.replace(record(0), params={"task.blocks": "[relu][/x]"})
    with Progress(console, [bracketed], epochs=1) as shown:
        shown.update(dataclasses.replace(bracketed, state="running"))
    assert lines(console) == ["trial 0  task.blocks=[relu][/x]  running  epoch 0/1"]
    table = Console(file=io.StringIO(), width=120, force_terminal=True, record=True)
    with Progress(table, [bracketed], epochs=1):
        pass
    assert "task.blocks=[relu][/x]" in table.export_text()


def test_time_left(clock: Clock) -> None:
    """What is left, at the pace of this session: 4 trials of 4 epochs are 16 epochs, 3 took 6 s, 13 are left."""
    shown = Progress(plain_console(), [record(number) for number in range(4)], epochs=4)
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


def test_time_left_after_a_resume(clock: Clock) -> None:
    """What an earlier driver did took this one no time; counting it promises an end that does not come."""
    records = [record(0, "complete", 4.0), record(1, "running", 2.0), record(2)]
    shown = Progress(plain_console(), records, epochs=4)
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


def test_a_table_on_a_terminal(clock: Clock) -> None:
    """Every trial has a row, with what it said last, in every state; the time left stands below."""
    console = Console(file=io.StringIO(), width=120, force_terminal=True, record=True)
    records = [record(number) for number in range(6)]
    with Progress(console, records, epochs=4) as shown:
        clock.now += 6
        shown.update(record(0, "complete", 4.0, **MEASURED))
        shown.update(record(1, "running", 1.5, **MEASURED))
        shown.update(record(2, "failed", 1.0))
        shown.update(record(3, "diverged", 1.0))
        shown.update(record(4, "pruned", 2.0))
    text = console.export_text()
    rows = {line.split()[0]: line.split() for line in text.splitlines() if "lr=" in line}
    assert rows["0"] == ["0", "lr=0.1", "complete", "4/4", "1.2500", "0.5000", "87.5%", "12,346"]
    assert rows["1"] == ["1", "lr=0.01", "running", "1.5/4", "1.2500", "0.5000", "87.5%", "12,346"]
    assert rows["2"] == ["2", "lr=0.001", "failed", "1/4"]
    assert [rows[number][2] for number in ("3", "4", "5")] == ["diverged", "pruned", "waiting"]
    # 4 trials and 1.5 of 4 epochs took 6 s; 1.625 trials are left
    assert f"{6 / 4.375 * 1.625:.0f} s left" in text
