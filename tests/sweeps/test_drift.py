"""What would make old and new trials incomparable is refused on a resume, or recorded; nothing passes unseen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow.tracking import MlflowClient

from sweeps import lr_scan
from sweeps.record import drift
from sweeps.record.ledger import Ledger
from sweeps.record.store import sweeps_in
from trainable.config import TrainConfig
from trainable.task import Splits, load_task

Scan = Callable[..., tuple[int, dict[str, Any]]]
TASK = """
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

from trainable.task import Splits, Task


@dataclass(frozen=True)
class Line(Task):
    scale: float = 1.0

    def model(self):
        return torch.nn.Linear(1, 1)

    def splits(self, seed):
        x = torch.linspace(0, float(Path(__file__).with_name("data.txt").read_text()), 80)[:, None]
        rows = list(range(80))
        return Splits(train=(x[:64], x[:64]), val=(x[64:], x[64:]), indices={"train": rows[:64], "val": rows[64:]})

    def loss(self, outputs, batch):
        return functional.mse_loss(outputs, self.scale * batch[1], reduction="sum")
"""


@pytest.fixture
def place(launch_folder: Path) -> Path:
    (launch_folder / "line.py").write_text(TASK)
    (launch_folder / "data.txt").write_text("1")
    return launch_folder


@pytest.fixture
def finished(scan: Scan, place: Path) -> Path:
    """A finished sweep of a task of the user's own."""
    code, _ = scan("--name", "kept", "--task", "line.py:Line", "--lrs", "1e-2", "--trials-at-once", "1")
    assert code == 0
    return place / "results/kept"


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        lr_scan.main(["--resume", "kept", *arguments])
    assert left.value.code == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_data_code_and_versions(
    finished: Path, place: Path, scan: Scan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B20: each is named with what it was and what it is, exit code 2, nothing written; then allowed and recorded."""
    splits = json.loads((finished / "splits.json").read_text())
    assert (splits["train"], splits["val"], splits["seed"]) == (list(range(64)), list(range(64, 80)), 0)
    task = load_task(f"{place / 'line.py'}:Line")
    assert splits["fingerprint"] == task.splits(0).fingerprint()

    before = everything(finished)
    (place / "data.txt").write_text("2")
    said = refused(capsys, "--lrs", "1e-2", "1e-3")
    assert f"data: {splits['fingerprint'][:8]} -> {task.splits(0).fingerprint()[:8]}" in said
    assert "--allow-drift" in said
    (place / "data.txt").write_text("1")

    (place / "line.py").write_text(TASK.replace("self.scale *", "2 * self.scale *"))
    assert "code of Line (line.py): " in refused(capsys, "--lrs", "1e-2", "1e-3")
    (place / "line.py").write_text(TASK)

    here = torch.__version__.partition("+")[0]
    monkeypatch.setattr(drift.metadata, "version", lambda name: "1.0.0")
    assert f"torch: {here} -> 1.0.0" in refused(capsys)
    monkeypatch.undo()
    monkeypatch.chdir(place)

    said = refused(capsys, "--seed", "1", "--set", "task.scale=3", "--set", "batch_size=16")
    assert all(text in said for text in ("seed: 0 -> 1", "task.scale: default -> 3", "batch_size: 32 -> 16"))
    assert everything(finished) == before

    # The same task in another place is no other task.
    (place / "moved").mkdir()
    (place / "line.py").rename(place / "moved/line.py")
    (place / "data.txt").rename(place / "moved/data.txt")
    assert "say with --task where it is now" in refused(capsys)
    arguments = ("--task", "moved/line.py:Line", "--lrs", "1e-2", "1e-3")
    code, _ = scan("--resume", "kept", *arguments)
    assert code == 0

    # Allowed: the trials that are new are of the new definition, and the ledger and MLflow say so.
    (place / "moved/data.txt").write_text("2")
    code, result = scan("--resume", "kept", *arguments, "1e-1", "--set", "batch_size=16", "--allow-drift")
    assert code == 0
    ledger = Ledger(finished / "ledger.db")
    assert [text.partition(":")[0] for text in ledger.attribute("drift")] == ["batch_size", "data"]
    assert ledger.sweep.train.batch_size == 16
    ledger.close()
    client = MlflowClient(result["tracking_uri"])
    parent = client.get_run(result["mlflow_run_id"]).data.tags["steadysweep.drift"]
    assert "batch_size: 32 -> 16; data: " in parent
    runs = [client.get_run(trial["mlflow_run_id"]).data for trial in result["trials"]]
    assert [run.params["batch_size"] for run in runs] == ["32", "32", "16"]
    assert ["steadysweep.drift" in run.tags for run in runs] == [False, False, True]

    # What was recorded is what the next resume compares with.
    assert scan("--resume", "kept")[0] == 0


def test_data_that_only_a_trial_sees(tmp_path: Path) -> None:
    """Where the driver cannot read the data, the first report of the next attempt tells that they changed."""
    from tests.sweeps.test_extend import sweep_of

    ledger = Ledger.create(tmp_path / "ledger.db", sweep_of(2, {"lr": 3e-3}), {})
    said = {"metrics": {"val_loss": 1.0}, "samples_per_s": 1.0}
    ledger.begin(0)
    ledger.report(0, {"number": 1, "epoch": 1.0, **said, "notes": {"data": "a" * 64}})
    assert ledger.attribute("data") == {drift.data_key({}, 0): "a" * 64}
    assert ledger.attribute("drift") is None
    ledger.close()
    resumed = Ledger(tmp_path / "ledger.db")
    resumed.begin(0)
    resumed.report(0, {"number": 2, "epoch": 2.0, **said, "notes": {"data": "b" * 64}})
    assert resumed.attribute("drift") == ["data of trial 0: aaaaaaaa -> bbbbbbbb"]


def test_a_sweep_whose_task_is_gone_can_be_looked_at(finished: Path, place: Path) -> None:
    (place / "line.py").unlink()
    (found,) = sweeps_in(place / "results")
    ledger = Ledger(found.ledger)
    assert (ledger.sweep.epochs, [record.state for record in ledger.trials()]) == (1, ["complete"])


def test_code_of_bases_counts_and_ours_does_not() -> None:
    from tests.helpers.drivers import ROOT
    from tests.sweeps.test_extend import sweep_of

    assert set(drift.identity(sweep_of(1))) == {"torch", "code of Digits (digits.py)"}
    moody = load_task(f"{ROOT / 'tests/helpers/moody.py'}:Moody")
    assert set(drift._code(type(moody))) == {"code of Moody (moody.py)"}


def test_fingerprint_of_every_dtype() -> None:
    """numpy has no bfloat16."""
    for dtype in (torch.bfloat16, torch.bool, torch.int8, torch.float64, torch.complex64):
        ones, zeros = torch.ones(3, 2, dtype=dtype), torch.zeros(3, 2, dtype=dtype)
        assert Splits((ones,), (ones,)).fingerprint() != Splits((ones,), (zeros,)).fingerprint()
        assert Splits((ones.T,), (ones,)).fingerprint() != Splits((ones,), (ones,)).fingerprint()
        assert Splits((ones[:0],), (ones,)).fingerprint()
    assert TrainConfig().data_seed == 0
