"""python -m sweeps.accept: the test samples are opened once, in writing; the model is exported and registered."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from mlflow.tracking import MlflowClient
from scipy import stats
from sklearn.datasets import load_diabetes

from sweeps import accept, show
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.release.openings import openings_of
from tests.helpers.drivers import environment
from tests.helpers.made import made_sweep
from trainable import checkpoint
from trainable.config import TrainConfig
from trainable.inference import model_with, weights_of
from trainable.tasks.digits import Digits
from trainable.tasks.table import Table
from trainable.trial import Trial

Accept = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def accepting(launch_folder: Path, capsys: pytest.CaptureFixture[str]) -> Accept:
    """`python -m sweeps.accept ARGUMENTS --json` in this process: exit code, result or None, and what stderr says."""

    def run(*arguments: str) -> tuple[int, Any, str]:
        capsys.readouterr()
        try:
            code = accept.main([*arguments, "--json"])
        except SystemExit as error:
            code = int(error.code or 0)
        said = capsys.readouterr()
        return code, json.loads(said.out) if said.out else None, said.err

    return run


def openings(folder: Folder) -> list[Any]:
    ledger = Ledger(folder.ledger)
    try:
        return openings_of(ledger)
    finally:
        ledger.close()


def checkpoints(folder: Folder, number: int = 0) -> list[Path]:
    return sorted((folder.trials / f"{number:05d}-attempt-1").glob("checkpoint_*"))


def test_from_a_sweep_to_a_champion(accepting: Accept, launch_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of it on digits; each number is found again by other means."""
    folder = made_sweep(launch_folder / "results", name="first", lrs=(1e-4, 1e-2), epochs=2)
    code, told, said = accepting("first")
    assert code == 0, said
    assert told["trial"] == 1
    assert told["metric"] == {"name": "accuracy", "mode": "max"}

    images, labels = Digits().test(0)
    model = model_with(Digits(), weights_of(checkpoint.read(folder.path / told["checkpoint"]["folder"])))
    with torch.inference_mode():
        outputs = model(images)
    hits = int((outputs.argmax(1) == labels).sum())
    theirs = stats.binomtest(hits, len(labels)).proportion_ci(0.95, method="wilson")
    accuracy = told["test"]["metrics"]["accuracy"]
    assert (accuracy["mean"], told["test"]["num_samples"]) == (pytest.approx(hits / len(labels)), len(labels))
    assert (accuracy["low"], accuracy["high"]) == pytest.approx((theirs.low, theirs.high))
    loss = torch.nn.functional.cross_entropy(outputs, labels)
    assert told["test"]["metrics"]["loss"]["mean"] == pytest.approx(float(loss), rel=1e-5)
    matrix = numpy.array(told["errors"]["matrix"])
    assert (matrix.sum(), matrix.trace()) == (len(labels), hits)
    assert (folder.path / "accepted" / "confusion.png").stat().st_size > 5000
    assert set(told["baseline"]["features"])
    assert [opening.samples for opening in openings(folder)] == [told["test"]["fingerprint"]]

    uri = f"sqlite:///{launch_folder / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    version = client.get_model_version_by_alias("digits", "champion")
    assert version.tags["steadysweep.test_fingerprint"] == told["test"]["fingerprint"]
    run = client.get_run(version.run_id)
    assert run.data.tags["steadysweep.role"] == "acceptance"
    assert run.data.metrics["test_accuracy"] == pytest.approx(hits / len(labels))
    assert run.info.status == "FINISHED"
    names = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert names == {"acceptance.json", "confusion.png", "model"}

    # Whoever loads it: a process of its own, without pickle, another number of samples each time.
    torch.save([images[:size] for size in (1, 2, 100)], launch_folder / "given.pt")
    script = (
        "import mlflow, torch\n"
        f"mlflow.set_tracking_uri({uri!r})\n"
        "model = mlflow.pytorch.load_model('models:/digits@champion')\n"
        "torch.save([model(part).detach() for part in torch.load('given.pt')], 'came.pt')\n"
        "served = mlflow.pyfunc.load_model('models:/digits@champion')\n"
        "assert served.predict(torch.load('given.pt')[2].numpy()).shape == (100, 10)\n"
    )
    forbidden = {**environment(), "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
    subprocess.run([sys.executable, "-c", script], cwd=launch_folder, env=forbidden, check=True, capture_output=True)
    for part in torch.load(launch_folder / "came.pt"):
        assert torch.allclose(part, outputs[: len(part)], atol=1e-5)

    # A second time, and what registering again does.
    code, _, said = accepting("first")
    assert code == 2
    assert "were opened already" in said
    assert "--again" in said
    code, again, _ = accepting("first", "--register")
    assert code == 0
    assert again["registered"]["version"] == told["registered"]["version"]
    assert len(client.search_model_versions("name = 'digits'")) == 1
    assert len(openings(folder)) == 1
    capsys.readouterr()
    assert show.main(["first"]) == 0
    assert re.search(r"its test samples were opened once, last at .* for trial 1", capsys.readouterr().out)


def test_what_is_refused_opens_nothing(accepting: Accept, launch_folder: Path) -> None:
    results = launch_folder / "results"
    folder = made_sweep(results, name="half", lrs=(1e-2, 1e-3), left=1)
    made_sweep(results, name="empty", lrs=(1e-2,), left=1)
    (results / "torn").mkdir()
    (results / "torn" / "ledger.db").write_bytes(b"no database" * 100)
    cases = {
        "nope": "there is no such sweep",
        "torn": "ledger cannot be read",
        "half": r"is not finished: 1 of 2 trials are left.*--partial",
        "empty --partial": "has no complete trial",
        "half --partial --trial 7": "has no trial 7; it has 2",
        "half --partial --trial 1": "trial 1 of half is waiting",
        "half --partial --trial x": "--trial 'x' must be a whole number",
        "half --seeds 3": "nothing is trained without --retrain",
        "half --retrain --seeds 0": "--seeds 0 must be at least 1",
        "half --register": "nothing was accepted yet",
        "half --register --again": "--again is about accepting",
        "half --model a/b": "--model 'a/b' may only have",
        "half --tracking-uri mlruns": "is a folder of files",
    }
    for arguments, words in cases.items():
        code, _, said = accepting(*arguments.split())
        assert code == 2, arguments
        assert re.search(words, said), f"{arguments}: {said}"
        assert said.count("\n") == 1, said
    with folder.owned():
        code, _, said = accepting("half", "--partial")
    assert (code, "is being run by process" in said) == (2, True)
    assert openings(folder) == []
    assert not (folder.path / "accepted").exists()


@pytest.mark.parametrize("damage", ["gone", "best gone", "torn", "no manifest"])
def test_a_checkpoint_that_is_missing_or_damaged_is_no_other(
    accepting: Accept, launch_folder: Path, damage: str
) -> None:
    """Never the next best in silence: it is not what won."""
    folder = made_sweep(launch_folder / "results", epochs=2, lr=1e-2)
    scores = {path: checkpoint.read_manifest(path)["score"] for path in checkpoints(folder)}
    best = min(scores, key=lambda path: scores[path])
    if damage == "torn":
        state = bytearray((best / "state.pt").read_bytes())
        state[len(state) // 2] ^= 1
        (best / "state.pt").write_bytes(state)
    elif damage == "no manifest":
        (best / "manifest.json").write_text("{}")
    else:
        for path in checkpoints(folder) if damage == "gone" else [best]:
            checkpoint.delete(path)
    code, _, said = accepting("made")
    assert code == 2, said
    assert "checkpoint" in said
    assert "--retrain trains this configuration anew" in said
    assert openings(folder) == []


TASK = """
from dataclasses import dataclass
import torch
from torch import nn
from torch.nn import functional
from trainable.task import Splits, Task

@dataclass(frozen=True)
class Own(Task):
    def model(self): return nn.Linear(4, 2)
    def part(self, seed, start, stop):
        x = torch.randn(300, 4, generator=torch.Generator().manual_seed(seed))
        return x[start:stop], (x[start:stop].sum(1) > 0).long()
    def splits(self, seed): return Splits(self.part(seed, 0, 200), self.part(seed, 200, 250))
    def loss(self, outputs, batch): return functional.cross_entropy(outputs, batch[1], reduction="sum")
    def metrics(self, outputs, batch): return {"accuracy": (outputs.argmax(1) == batch[1]).sum()}
"""
TEST = "    def test(self, seed): return self.part(seed, 250, 300)\n"


def test_a_task_without_a_test_part(accepting: Accept, launch_folder: Path) -> None:
    (launch_folder / "without.py").write_text(TASK)
    folder = made_sweep(launch_folder / "results", task="without.py:Own")
    code, _, said = accepting("made")
    assert code == 2
    assert "has no test part" in said
    assert openings(folder) == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(
            "x, y = self.part(seed, 250, 250); return x, y",
            "the test part of the task is empty",
            marks=pytest.mark.slow,
        ),
        ("x, y = self.part(seed, 250, 300); x[3] = float('nan'); return x, y", "loss is nan for 1 of 50"),
        pytest.param("raise KeyError('no such file')", r"the task's test\(\) fails: KeyError", marks=pytest.mark.soak),
    ],
)
def test_a_test_part_that_is_none_counts_as_opened(
    accepting: Accept, launch_folder: Path, body: str, words: str
) -> None:
    """What was wrong with it is known now, and so it was looked at."""
    name = f"own_{abs(hash(body))}"
    (launch_folder / f"{name}.py").write_text(f"{TASK}    def test(self, seed):\n        {body}\n")
    folder = made_sweep(launch_folder / "results", task=f"{name}.py:Own")
    code, _, said = accepting("made")
    assert code == 2
    assert re.search(words, said)
    assert "count as opened" in said
    assert len(openings(folder)) == 1
    assert not (folder.path / "accepted").exists()
    code, _, said = accepting("made")
    assert "ended before its result was written down" in said


def test_code_that_changed_since_is_refused(accepting: Accept, launch_folder: Path) -> None:
    (launch_folder / "changing.py").write_text(TASK + TEST)
    folder = made_sweep(launch_folder / "results", task="changing.py:Own")
    (launch_folder / "changing.py").write_text(TASK + TEST + "\n# another word\n")
    code, _, said = accepting("made")
    assert code == 2
    assert "code of Own (changing.py)" in said
    assert "--allow-drift" in said
    assert openings(folder) == []


def test_data_that_changed_since_are_refused(accepting: Accept, launch_folder: Path) -> None:
    """Another file is another split: what was trained on may be among the test samples."""
    rows = numpy.random.default_rng(0).normal(size=(200, 3))
    path = launch_folder / "rows.csv"
    numpy.savetxt(path, rows, delimiter=",", header="a,b,c", comments="")
    settings = {"path": str(path), "target": "c", "width": 8, "depth": 1}
    folder = made_sweep(launch_folder / "results", task="table", settings=settings, metric="val_loss", mode="min")
    numpy.savetxt(path, rows[::-1], delimiter=",", header="a,b,c", comments="")
    code, _, said = accepting("made")
    assert code == 2
    assert "its samples are not those that it was trained on" in said
    assert openings(folder) == []


def test_a_trial_keeps_the_checkpoint_that_is_best_by_the_sweeps_metric(tmp_path: Path) -> None:
    """What Tune runs says of each checkpoint how good it is by that, and not by val_loss."""
    trial = Trial(
        {
            "number": 0,
            "attempt": 1,
            "task": "digits",
            "task_settings": {},
            "train": TrainConfig(lr=1e-2, epochs=2, threads=1, device="cpu").to_dict(),
            "folder": str(tmp_path),
            "attempts": ["trials/none"],
            "stacks": "stacks.txt",
            "log": "log.txt",
            "splits_file": "splits.json",
            "marks": str(tmp_path / "stop"),
            "torch": metadata.version("torch"),
            "max_seconds": None,
            "gpu_share": 1.0,
            "workers": 1,
            "resources": {"CPU": 1.0},
            "ranked_by": ("val_accuracy", "max"),
            "checks": None,
        }
    )
    try:
        report = json.loads(trial.step()["report"])
        trial.save_checkpoint(str(tmp_path / "saved"))
    finally:
        trial.cleanup()
    assert checkpoint.read_manifest(tmp_path / "saved")["score"] == -report["metrics"]["val_accuracy"]


@pytest.mark.soak
def test_a_quantity_and_a_text(accepting: Accept, launch_folder: Path) -> None:
    """A real table, whose errors are in its own unit, and a small text: both are graphs for any number of samples."""
    load_diabetes(as_frame=True, scaled=False).frame.to_csv(launch_folder / "diabetes.csv", index=False)
    (launch_folder / "short.txt").write_text((Path(__file__).parents[2] / "README.md").read_text())
    ranked: dict[str, Any] = {"metric": "val_loss", "mode": "min", "epochs": 5}
    results, table = launch_folder / "results", {"path": str(launch_folder / "diabetes.csv"), "target": "target"}
    made_sweep(results, name="rows", task="table", settings=table, **ranked)
    code, told, said = accepting("rows")
    assert code == 0, said
    task = Table(path=launch_folder / "diabetes.csv", target="target")
    model = model_with(task, weights_of(checkpoint.read(results / "rows" / told["checkpoint"]["folder"])))
    batch = task.test(0)
    errors = (task.preparation(0).answers(task.predict(model, batch)) - batch[1].numpy()).astype(float)
    assert told["test"]["metrics"]["mae"]["mean"] == pytest.approx(numpy.abs(errors).mean(), rel=1e-4)
    assert told["errors"]["mean_error"] == pytest.approx(errors.mean(), rel=1e-3, abs=1e-3)
    assert told["errors"]["quantiles"]["0.5"] == pytest.approx(numpy.quantile(errors, 0.5), rel=1e-3)
    assert (results / "rows" / "accepted" / "residuals.png").is_file()
    assert told["registered"]["name"] == "table-diabetes"
    # The t interval of scipy, which the mean of 66 errors allows as well.
    theirs = stats.ttest_1samp(numpy.abs(errors), 0).confidence_interval(0.95)
    ours = told["test"]["metrics"]["mae"]
    assert (ours["low"], ours["high"]) == pytest.approx((theirs.low, theirs.high), rel=0.03)

    text = {"path": str(launch_folder / "short.txt"), "width": 16, "depth": 1, "num_heads": 2, "context": 16}
    made_sweep(results, name="words", task="char_lm", settings=text, **ranked)
    code, told, said = accepting("words")
    assert code == 0, said
    assert told["export"]["kind"] == "pt2"
    assert told["errors"] is None
    assert told["test"]["metrics"]["loss"]["method"] == "bootstrap"
    assert told["registered"]["name"] == "char_lm-short"


@pytest.mark.slow
def test_seeds_rivals_and_looks(accepting: Accept, launch_folder: Path) -> None:
    """A better model is champion, a worse one challenger; each look is counted; seeds have their spread."""
    results = launch_folder / "results"
    made_sweep(results, name="poor", lrs=(3e-4,))
    folder = made_sweep(results, name="good", lrs=(1e-2,))
    client = MlflowClient(tracking_uri=f"sqlite:///{launch_folder / 'mlflow.db'}")

    def aliases() -> dict[str, str]:
        return {name: str(number) for name, number in client.get_registered_model("digits").aliases.items()}

    code, poor, _ = accepting("poor")
    assert (code, aliases()) == (0, {"champion": "1"})
    code, good, said = accepting("good")
    assert code == 0, said
    assert aliases() == {"champion": "2"}
    assert "better, which is more than noise" in good["registered"]["why"]
    assert [entry["sweep"] for entry in good["opened_by_others"]] == ["poor"]
    code, again, said = accepting("poor", "--again", "--retrain", "--seeds", "3")
    assert code == 0, said
    # The first seed is the sweep's own run again, to the bit; of the three, the best on validation is taken.
    assert again["retrained"]["seeds"][0] == again["retrained"]["chosen"]
    assert sorted(again["retrained"]["seeds"]) == [0, 1, 2]
    values = dict(zip(again["retrained"]["seeds"], again["retrained"]["test"]["accuracy"]["values"], strict=True))
    assert values[0] == poor["test"]["metrics"]["accuracy"]["mean"]
    spread = again["retrained"]["test"]["accuracy"]
    assert spread["deviation"] == pytest.approx(numpy.std([*values.values()], ddof=1))
    assert "worse, which is more than noise" in again["registered"]["why"]
    assert aliases()["champion"] == "2"
    assert aliases()["challenger"] == again["registered"]["version"]
    assert [opening["trial"] for opening in again["openings"]] == [0, 0]
    assert json.loads((results / "poor" / "accepted-1" / "acceptance.json").read_text())["id"] == poor["id"]
    # Other samples are no ground for a comparison.
    made_sweep(results, name="elsewhere", lrs=(1e-2,), seed=5)
    code, other, _ = accepting("elsewhere")
    assert code == 0
    assert "tested on other samples" in other["registered"]["why"]
    assert aliases()["champion"] == "2"
    assert len(openings(folder)) == 1


@pytest.mark.slow
def test_a_registry_that_is_away_loses_nothing(accepting: Accept, launch_folder: Path) -> None:
    folder = made_sweep(launch_folder / "results")
    code, told, said = accepting("made", "--tracking-uri", "http://127.0.0.1:9", "--model", "ours")
    assert code == 1
    assert told["registered"] is None
    assert "python -m sweeps.accept made --register --model ours --tracking-uri http://127.0.0.1:9\n" in said
    assert (folder.path / "accepted" / "model" / "MLmodel").is_file()
    code, told, said = accepting("made", "--register", "--model", "ours")
    assert code == 0, said
    assert (told["registered"]["name"], told["registered"]["alias"]) == ("ours", "champion")
    assert len(openings(folder)) == 1


ODD = (
    TASK.replace("def model(self): return nn.Linear(4, 2)", "def model(self): return Odd()")
    + TEST
    + """

class Said(dict):
    pass

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2)
    def forward(self, x):
        y = self.inner(x)
        BODY
"""
)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param("return y if float(x.sum()) > 0 else y + 0", "torch.export refuses it", marks=pytest.mark.slow),
        pytest.param(
            "return y + x.shape[0] - float(x.shape[0])",
            "called with 1, 2, 50 samples at a time, it fails",
            marks=pytest.mark.soak,
        ),
        pytest.param("return Said(y=y)", "gives back a Said", marks=pytest.mark.soak),
    ],
)
def test_what_cannot_be_exported_is_kept_as_weights(
    accepting: Accept, launch_folder: Path, body: str, words: str
) -> None:
    """Branches on values, a graph of one batch size, outputs that are no tensors: weights, the task, the reason."""
    name = f"odd_{abs(hash(body))}"
    text = ODD.replace("BODY", body)
    if "Said" in body:
        text = text.replace(
            "def loss(self, outputs,",
            "def predict(self, model, batch): return model(batch[0])\n    def loss(self, outputs,",
        )
        text = text.replace("outputs, batch[1], reduction", "outputs['y'], batch[1], reduction").replace(
            "outputs.argmax", "outputs['y'].argmax"
        )
    (launch_folder / f"{name}.py").write_text(text)
    folder = made_sweep(launch_folder / "results", task=f"{name}.py:Own")
    code, told, said = accepting("made")
    assert code == 0, said
    assert told["export"]["kind"] == "weights"
    assert words in told["export"]["reason"]
    saved = torch.load(folder.path / "accepted" / "model" / "data" / "weights.pt", weights_only=True)
    assert set(saved) == {"inner.weight", "inner.bias"}
    assert told["registered"]["alias"] == "champion"


@pytest.mark.slow
def test_killed_anywhere_it_goes_on_or_counts_as_opened(launch_folder: Path) -> None:
    """At every point; and whatever was registered is there once, with one alias."""
    made_sweep(launch_folder / "results", task="digits")

    def command(*arguments: str, crash: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "sweeps.accept", "made", *arguments],
            cwd=launch_folder,
            env={**environment(), "STEADYSWEEP_CRASH": crash},
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )

    assert command(crash="test-opened:1:enospc").returncode == 1, "a full disk, in words"
    refused = command()
    assert refused.returncode == 2
    assert "ended before its result was written down" in refused.stderr
    assert command("--again", crash="accepted:1:kill").returncode == -9
    refused = command()
    assert refused.returncode == 2
    assert "not registered yet: --register does that" in refused.stderr, "nothing was lost"
    for point in ("acceptance-run", "model-created", "version-created", "alias-set"):
        assert command("--register", crash=f"{point}:1:kill").returncode == -9, point
    done = command("--register")
    assert done.returncode == 0, done.stderr
    client = MlflowClient(tracking_uri=f"sqlite:///{launch_folder / 'mlflow.db'}")
    (version,) = client.search_model_versions("name = 'digits'")
    assert dict(client.get_registered_model("digits").aliases) == {"champion": version.version}
    experiment = client.get_experiment_by_name("steadysweep")
    assert len(client.search_runs([experiment.experiment_id], "tags.`steadysweep.role` = 'acceptance'")) == 1
    assert len(openings(Folder(launch_folder / "results" / "made"))) == 2
    assert os.listdir(launch_folder / "results" / "made").count("accepted.part") == 0
