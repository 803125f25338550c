"""`from sweeps import lr_scan, search`: what a script and a notebook get, and what they are told."""

from __future__ import annotations

import asyncio
import inspect
import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas
import pytest
import torch

from sweeps import SweepResult, lr_scan, plan_search, search
from sweeps.record.ledger import Ledger
from tests.helpers.drivers import ROOT, environment
from tests.trainable.toys import Toy
from trainable.checkpoint import read, read_manifest
from trainable.evaluation import evaluate
from trainable.inference import load_model
from trainable.loop import advance, start
from trainable.tasks.digits import Digits


@dataclass(frozen=True)
class Mine(Digits):
    """A task that an importable module has."""

    extra: int = 1


@pytest.fixture
def result(local_ray: None, launch_folder: Path, capfd: pytest.CaptureFixture[str]) -> SweepResult:
    """Of a class of this module, in a running event loop; stdout stays the caller's."""
    before = signal.getsignal(signal.SIGINT)
    space = {"lr": {"log": [1e-3, 1e-1]}}

    async def cell() -> SweepResult:
        return search(
            Mine(extra=3), space=space, trials=2, epochs=2, set={"batch_size": 64, "ema_decay": 0.9}, name="a", seeds=1,
            progress="none", trials_at_once=1,
        )  # fmt: skip

    found = asyncio.run(cell())
    said = capfd.readouterr()
    assert said.out == ""
    assert signal.getsignal(signal.SIGINT) is before
    return found


def test_what_comes_back(result: SweepResult) -> None:
    """The same as in result.json; the model gives the val loss that its trial reported, with the average's weights."""
    assert result.to_dict() == json.loads((result.folder / "result.json").read_text())
    assert (result.status, result.name, result.folder) == ("finished", "a", Path.cwd() / "results/a")
    frame = result.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.index) == [0, 1]
    assert {"state", "epochs", "lr", "train_loss", "val_loss", "val_accuracy"} <= set(frame.columns)
    best = frame["val_loss"].idxmin()
    assert result.best is not None
    assert result.best.number == best
    assert result.best_params == {"lr": frame.loc[best, "lr"]}
    assert f"trial {best}" in result.verdict
    assert {path.suffix for path in result.figures().values()} == {".png"}
    ledger = Ledger(result.folder / "ledger.db")
    assert ledger.sweep.task_settings == {"extra": 3}
    ledger.close()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    model = result.load_best()
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module.training for module in model.modules())
    assert loss_of(model) == pytest.approx(frame.loc[best, "val_loss"], rel=1e-5)
    other = result.load_best("last", trial=1 - int(best))
    assert loss_of(other) == pytest.approx(frame.loc[1 - best, "val_loss"], rel=1e-5)
    with pytest.raises(ValueError, match="has no trial 7; it has 2"):
        result.load_best(trial=7)
    with pytest.raises(ValueError, match="must be best"):
        result.load_best("first")  # type: ignore[arg-type]


def loss_of(model: torch.nn.Module) -> float:
    images, labels = Digits().splits(0).val
    with torch.inference_mode():
        return float(torch.nn.functional.cross_entropy(model(images), labels))


def test_the_best_checkpoint_and_the_last(tmp_path: Path) -> None:
    """Of three, the one with the lowest score; the newest; and the next best where the best is damaged."""
    from trainable.checkpoint import write
    from trainable.config import TrainConfig

    task = Toy()
    run = start(task, TrainConfig(lr=0.05, epochs=3, threads=1), task.splits(0))
    losses, folders = [], []
    for score in (0.3, 0.1, 0.2):
        advance(run)
        losses.append(evaluate(run)["val_loss"])
        folders.append(tmp_path / f"{len(folders)}")
        write(folders[-1], run.state.save(), step=run.state.progress.step, config={}, score=score)
    run.close()
    assert len(set(losses)) == 3

    def val_loss(which: str) -> float:
        inputs, labels, _ = task.splits(0).val
        model = load_model(task, folders, which)
        with torch.inference_mode():
            return float(torch.nn.functional.cross_entropy(model(inputs), labels))

    assert val_loss("best") == pytest.approx(losses[1], rel=1e-5)
    assert val_loss("last") == pytest.approx(losses[2], rel=1e-5)
    damaged = bytearray((folders[1] / "state.pt").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (folders[1] / "state.pt").write_bytes(damaged)
    assert val_loss("best") == pytest.approx(losses[2], rel=1e-5)
    assert read_manifest(folders[2])["score"] == 0.2
    assert read(folders[2])["average"] == {}
    with pytest.raises(ValueError, match="no good checkpoint"):
        load_model(task, [tmp_path / "none"])


def test_a_command_and_its_function_are_one() -> None:
    assert list(inspect.signature(search).parameters)[:3] == ["task", "space", "trials"]
    assert list(inspect.signature(lr_scan).parameters)[:2] == ["task", "lrs"]
    assert callable(search.main)
    assert callable(lr_scan.main)
    code = (
        "import sys\nimport sweeps.search\nfrom sweeps.lr_scan import main\nfrom sweeps import lr_scan, search\n"
        "assert lr_scan.main is main and search.main\n"
        "assert callable(lr_scan) and callable(search) and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


@pytest.mark.soak  # the checker reads everything anew
def test_type_checkers_see_the_functions(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(
        "from sweeps import SweepResult, search\nfound: SweepResult = search('digits', trials=3)\nsearch(trails=3)\n"
    )
    checked = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--no-incremental", "user.py"]
    done = subprocess.run(
        checked, cwd=tmp_path, env={**environment(), "MYPYPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[0].startswith('user.py:3: error: Unexpected keyword argument "trails"'), done.stdout
    assert "Found 1 error" in done.stdout


def in_a_function() -> type[Digits]:
    @dataclass(frozen=True)
    class Hidden(Digits):
        pass

    return Hidden


def test_bad_input_is_a_sentence(launch_folder: Path) -> None:
    with pytest.raises(ValueError, match="unknown parameter 'lrr'; did you mean lr"):
        search("digits", space={"lrr": {"log": [1e-4, 1e-1]}})
    with pytest.raises(ValueError, match="must be a name such as digits"):
        search(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="put it into a file of its own"):
        search(in_a_function())
    with pytest.raises(ValueError, match="space <lambda> is defined as"):
        search("digits", space=lambda trial: {})
    with pytest.raises(ValueError, match=r"set: task.width=8, and the task itself has 16"):
        search(Digits(width=16), set={"task.width": 8})
    with pytest.raises(ValueError, match="no unfinished sweep"):
        lr_scan(resume=True)
    with pytest.raises(ValueError, match="--lrs 0"):
        lr_scan(lrs=[0.0])
    with pytest.raises(TypeError, match="unknown argument 'trails'"):
        search("digits", trails=3)  # type: ignore[call-arg]
    assert list(launch_folder.iterdir()) == []


def test_a_class_of_a_script_is_refused_in_words(tmp_path: Path) -> None:
    """A trial's process would run the script again."""
    (tmp_path / "script.py").write_text(
        "from dataclasses import dataclass\nfrom sweeps import search\nfrom trainable.tasks.digits import Digits\n\n\n"
        "@dataclass(frozen=True)\nclass Own(Digits):\n    pass\n\n\nsearch(Own)\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert "ValueError: task Own is defined in a notebook or in the script that is running" in done.stderr
    assert "'my_task.py:Own'" in done.stderr


def test_a_plan_from_python(launch_folder: Path) -> None:
    plan = plan_search("digits", space={"lr": {"log": [1e-4, 1e-1]}}, trials=3, sampler="random")
    assert (plan.num_trials, len(plan.trials), plan.refused) == (3, 3, None)
    assert list(launch_folder.iterdir()) == []
