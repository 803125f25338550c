"""Several workers train what one does: weights, metrics and curves within 1e-6, whatever the step consists of."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.drivers import environment
from trainable import checkpoint, loop
from trainable.config import TrainConfig
from trainable.task import load_task

TOLERANCE = 1e-6

# One worker, as a program: rank, size, rendezvous file, what to train; the first writes down how it went.
WORKER = """
import dataclasses, json, sys
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as distributed
from trainable import checkpoint, loop
from trainable.config import TrainConfig
from trainable.group import Group
from trainable.task import load_task

said = json.loads(sys.argv[1])
distributed.init_process_group(
    "gloo",
    init_method=f"file://{said['meet']}",
    rank=said["rank"],
    world_size=said["size"],
    timeout=timedelta(seconds=100),
)
task = load_task(said["task"], said["settings"])
config = TrainConfig.from_dict(said["train"])
run = loop.start(task, config, task.splits(config.data_seed), group=Group())
if said["begin"]:
    run.load(checkpoint.read(Path(said["begin"])))
reports, asked = [], 0
def stop():
    global asked
    asked += 1
    return said["rank"] == 0 and said["stop_at"] is not None and run.state.progress.step >= said["stop_at"]
while not (reports and reports[-1].done):
    report = loop.advance(run, stop)
    if report is None:
        break
    reports.append(report)
if said["rank"] == 0:
    place = Path(said["place"])
    checkpoint.write(place / "end", run.state.save(), step=run.state.progress.step, config=run.config.to_dict())
    (place / "reports.json").write_text(json.dumps([dataclasses.asdict(report) for report in reports]))
run.close()
distributed.destroy_process_group()
"""


def trained(place: Path, size: int, train: TrainConfig, task: str = "digits", **more: Any) -> list[dict[str, Any]]:
    """The reports of a run by so many workers; its end is the checkpoint `place/end`."""
    place.mkdir(parents=True)
    said = {"size": size, "meet": str(place / "meet"), "task": task, "train": train.to_dict(), "place": str(place)}
    said |= {"settings": more.get("settings", {}), "begin": more.get("begin"), "stop_at": more.get("stop_at")}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, json.dumps({**said, "rank": rank})],
            env={**environment(), "OMP_NUM_THREADS": "1", "WORKER": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for rank in range(size)
    ]
    try:
        told = [worker.communicate(timeout=200)[1] for worker in workers]
    finally:
        for worker in workers:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
    assert [worker.returncode for worker in workers] == [0] * size, "\n".join(told)
    found = json.loads((place / "reports.json").read_text())
    assert isinstance(found, list)
    return found


def alone(place: Path, train: TrainConfig, task: str = "digits", settings: dict[str, Any] | None = None) -> list[Any]:
    loaded = load_task(task, settings)
    run = loop.start(loaded, train, loaded.splits(train.data_seed))
    reports: list[loop.Report] = []
    while not (reports and reports[-1].done):
        reports.append(loop.advance(run))
    checkpoint.write(place / "end", run.state.save(), step=run.state.progress.step, config=train.to_dict())
    run.close()
    return [dataclasses.asdict(report) for report in reports]


def assert_alike(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], tolerance: float = TOLERANCE) -> None:
    assert [report["step"] for report in ours] == [report["step"] for report in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one["metrics"].keys() == other["metrics"].keys()
        for name, value in one["metrics"].items():
            assert value == pytest.approx(other["metrics"][name], rel=tolerance * 10, abs=tolerance), name
        for name, curve in one["curves"].items():
            assert curve == pytest.approx(other["curves"][name], rel=tolerance * 100, abs=tolerance), name


def assert_same_weights(place: Path, other: Path, tolerance: float = TOLERANCE) -> None:
    one, two = (checkpoint.read(folder / "end")["model"] for folder in (place, other))
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, two[name], rtol=tolerance * 10, atol=tolerance, msg=name)


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "adamw, clipping, a short last batch": ({"batch_size": 100, "lr": 1e-3}, "digits"),
    "sgd, accumulation, an average of weights": (
        {"batch_size": 96, "micro_batch": 20, "optimizer": "sgd", "lr": 0.05, "ema_decay": 0.9, "schedule": "cosine"},
        "digits",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("case", "size"), list(zip(CASES, (2, 3), strict=True)))
def test_several_train_what_one_does(case: str, size: int, tmp_path: Path) -> None:
    settings, task = CASES[case]
    train = TrainConfig(epochs=2, threads=1, device="cpu", **settings)
    theirs = alone(tmp_path / "one", train, task)
    ours = trained(tmp_path / "several", size, train, task)
    assert_alike(ours, theirs)
    assert_same_weights(tmp_path / "several", tmp_path / "one")
    assert ours[-1]["notes"]["workers"] == str(size)


UNEVEN = """
import os
from dataclasses import dataclass
import torch
from trainable.tasks.digits import Digits

@dataclass(frozen=True)
class Uneven(Digits):
    room: int = 1000
    raises: str = ""

    def predict(self, model, batch):
        if os.environ.get("WORKER") == "1":
            if len(batch[0]) > self.room and model.training:
                raise torch.OutOfMemoryError("CUDA out of memory (made up)")
            if self.raises == ("training" if model.training else "evaluation"):
                raise ValueError("this worker has had enough")
        return super().predict(model, batch)
"""


@pytest.mark.slow
def test_memory_of_one_worker_runs_out(tmp_path: Path) -> None:
    """All of them make the same step again in smaller pieces; the result is what one worker with enough comes to."""
    (tmp_path / "uneven.py").write_text(UNEVEN)
    train = TrainConfig(epochs=1, threads=1, device="cpu", batch_size=100)
    task = f"{tmp_path / 'uneven.py'}:Uneven"
    theirs = alone(tmp_path / "one", train, task)
    ours = trained(tmp_path / "two", 2, train, task, settings={"room": 20})
    assert_alike(ours, theirs)
    assert ours[-1]["notes"]["micro_batch"] == "13, after running out of memory at 25"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["training", "evaluation"])
def test_what_one_worker_raises_all_raise(where: str, tmp_path: Path) -> None:
    (tmp_path / "uneven.py").write_text(UNEVEN)
    train = TrainConfig(epochs=1, threads=1, device="cpu", batch_size=100)
    with pytest.raises(AssertionError, match="ValueError: this worker has had enough") as ended:
        trained(tmp_path / "two", 2, train, f"{tmp_path / 'uneven.py'}:Uneven", settings={"raises": where})
    assert "RuntimeError: another worker of this trial: ValueError: this worker has had enough" in str(ended.value)


@pytest.mark.slow
def test_checkpoints_are_exchanged(tmp_path: Path) -> None:
    """Two stop in the middle of an epoch, three go on, and one goes on from theirs."""
    train = TrainConfig(epochs=3, threads=1, device="cpu", batch_size=100)
    theirs = alone(tmp_path / "one", train)
    trained(tmp_path / "two", 2, train, stop_at=7)
    assert checkpoint.read_manifest(tmp_path / "two/end")["step"] == 7
    trained(tmp_path / "three", 3, train, begin=str(tmp_path / "two/end"), stop_at=20)
    task = load_task("digits")
    run = loop.start(task, train, task.splits(train.data_seed))
    run.load(checkpoint.read(tmp_path / "three/end"))
    report = loop.advance(run)
    while not report.done:
        report = loop.advance(run)
    checkpoint.write(tmp_path / "last/end", run.state.save(), step=report.step, config=train.to_dict())
    run.close()
    assert report.step == theirs[-1]["step"]
    assert report.metrics["val_loss"] == pytest.approx(theirs[-1]["metrics"]["val_loss"], abs=TOLERANCE * 10)
    assert_same_weights(tmp_path / "last", tmp_path / "one")
