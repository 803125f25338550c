"""`python -m sweeps` and `sweeps.show`: how sweeps stand, for people and pipes, without touching them."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from sweeps import __main__ as listing
from sweeps import show
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.sweep import Sweep
from tests.helpers.drivers import run_command
from trainable.config import TrainConfig


def ledger_of(folder: Folder, **settings: Any) -> Ledger:
    folder.path.mkdir(parents=True)
    sweep = Sweep(
        name=folder.name, question="lr_scan", task="digits", train=TrainConfig(threads=1, epochs=2),
        points=({"lr": 3e-3}, {"lr": 1e-3}, {"lr": 1e2}, {"lr": 1e-1}), **settings,
    )  # fmt: skip
    return Ledger.create(folder.ledger, sweep, {"sweep_id": "x", "tracking_uri": "sqlite:////nowhere/mlflow.db"})


@pytest.fixture
def results(launch_folder: Path) -> Path:
    """A sweep that was interrupted, one that waits, one that is being worked on, and a folder of a single run."""
    folder = Folder(launch_folder / "results/half")
    ledger = ledger_of(folder)
    said = {"samples_per_s": 1.0, "notes": {}}
    for number, end in ((0, "complete"), (1, None), (2, "diverged"), (3, "failed")):
        ledger.begin(number)
        ledger.report(number, {"number": 1, "epoch": 1.0, "metrics": {"val_loss": 0.25}, **said})
        if end is not None:
            ledger.finish(number, end, reason="a\nthe mood was [bad]" if end != "complete" else None)  # type: ignore[arg-type]
    ledger.note_drift(["torch: 2.0 -> 3.0"])
    ledger.close()
    folder.result.write_text(json.dumps({"best": {"params": {"lr": 3e-3}}, "verdict": "lr=0.003 it is."}))
    ledger_of(Folder(launch_folder / "results/fresh")).close()
    (launch_folder / "results/single").mkdir()
    (launch_folder / "results/single/run.json").write_text("{}")
    return launch_folder / "results"


def everything(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_the_list(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (results / "fresh/owner.json").write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
    (results / "half/owner.json").write_text(json.dumps({"host": socket.gethostname(), "pid": 2**22 + 1}))  # killed
    before = everything(results)
    assert listing.main([]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    (half,) = (line.split("  ") for line in lines if line.startswith("half"))
    cells = [cell.strip() for cell in half if cell.strip()]
    assert cells[:4] == ["half", "interrupted", "3/4", "lr=0.003"]
    assert cells[4].endswith("s ago")
    assert cells[5] == "python -m sweeps.lr_scan --resume half"
    (fresh,) = (line.split() for line in lines if line.startswith("fresh"))
    assert fresh[1:3] == ["running", "0/4"]
    assert not any("single" in line for line in lines)
    assert everything(results) == before


def test_one_of_them(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(results)
    assert show.main(["half"]) == 0
    said = capsys.readouterr().out
    for text in (
        "half (interrupted): lr_scan of digits", "trial 2 diverged: the mood was [bad]",
        "trial 3 failed: the mood was [bad]", "changed on a resume: torch: 2.0 -> 3.0", "lr=0.003 it is.",
        "lr=0.001", "1/2", "0.25", "resume   python -m sweeps.lr_scan --resume half",
    ):  # fmt: skip
        assert text in said, said
    assert everything(results) == before


def test_a_ledger_that_cannot_be_read(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named, and the others are listed all the same."""
    (results / "torn").mkdir()
    (results / "torn/ledger.db").write_bytes(b"no database at all, but long enough to look like one" * 20)
    assert listing.main(["--results", str(results)]) == 1
    said = capsys.readouterr()
    assert "error: torn: its ledger cannot be read" in said.err
    assert "half" in said.out
    with pytest.raises(SystemExit) as left:
        show.main(["torn"])
    assert left.value.code == 2


@pytest.mark.parametrize(
    ("main", "arguments", "words"),
    [
        (listing.main, ["--results", "none"], "there is no folder"),
        (show.main, ["none"], "no such sweep"),
        (show.main, ["../x"], "may only have letters"),
    ],
)
def test_bad_input(
    main: Any, arguments: list[str], words: str, launch_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert words in capsys.readouterr().err
    assert list(launch_folder.iterdir()) == []


def test_as_a_command_on_a_pipe(results: Path) -> None:
    """Whole lines, however long: a pipe has no width."""
    done = run_command(cwd=results.parent, module="sweeps")
    assert done.returncode == 0, done.stderr
    assert "python -m sweeps.lr_scan --resume half" in done.stdout
    assert "\x1b" not in done.stdout
    assert "no sweeps" in run_command("--results", str(results / "single"), cwd=results.parent, module="sweeps").stdout
