"""The files of curves: what a crash leaves is read as if the torn part had never been written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sweeps.record.history import History


def report(number: int, *losses: float) -> dict[str, Any]:
    return {"report": number, "curves": {"loss": list(losses)}}


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "history")


def test_what_is_written_is_read(history: History) -> None:
    """Floats to the bit, one curve over all reports, each trial for itself; nothing is no error."""
    history.append(0, report(1, 0.1, 1 / 3))
    history.append(1, report(1, 9.0))
    history.append(0, report(2, 5e-324))
    assert history.reports(0) == [report(1, 0.1, 1 / 3), report(2, 5e-324)]
    assert history.curve(0, "loss") == [0.1, 1 / 3, 5e-324]
    assert history.curve(1, "loss") == [9.0]
    assert history.reports(7) == []


def test_every_torn_last_line(history: History) -> None:
    """A crash in the middle of a write, at every byte: the reports before are there, and what is appended
    after the half line stands on its own."""
    history.append(0, report(1, 1.0))
    path = history.path(0)
    whole = path.read_bytes()
    second = json.dumps(report(2, 2.0)).encode()
    for length in range(len(second)):
        path.write_bytes(whole + second[:length])
        assert history.reports(0) == [report(1, 1.0)]
        history.append(0, report(2, 3.0))
        history.append(0, report(3, 4.0))
        assert history.curve(0, "loss") == [1.0, 3.0, 4.0]


def test_a_torn_first_line(history: History) -> None:
    history.path(0).parent.mkdir()
    history.path(0).write_bytes(b'{"report": 1, "cur')
    assert history.reports(0) == []
    history.append(0, report(1, 1.0))
    assert history.reports(0) == [report(1, 1.0)]


def test_a_report_that_was_made_again_counts_once(history: History) -> None:
    """B03, B11: an attempt that goes on from an older checkpoint says again what was said; the curve must not
    grow by it. The first one stays, as it may be in MLflow already."""
    for number, loss in ((1, 1.0), (2, 2.0), (2, 2.5), (3, 3.0)):
        history.append(0, report(number, loss))
    assert history.curve(0, "loss") == [1.0, 2.0, 3.0]


def test_reports_are_in_order(history: History) -> None:
    """By number, and not by the time of writing, nor as text (10 before 2)."""
    for number in (10, 2, 1):
        history.append(0, report(number, float(number)))
    assert history.curve(0, "loss") == [1.0, 2.0, 10.0]


@pytest.mark.parametrize("line", [b"null", b"[]", b"3", b"{}", b"\xff\xfe", b'{"report": null}', b'{"report": "x"}'])
def test_a_line_that_is_no_report_is_left_out(history: History, line: bytes) -> None:
    """A damaged line costs itself, not the curve."""
    history.append(0, report(1, 1.0))
    with history.path(0).open("ab") as file:
        file.write(line + b"\n")
    history.append(0, report(2, 2.0))
    assert history.curve(0, "loss") == [1.0, 2.0]
