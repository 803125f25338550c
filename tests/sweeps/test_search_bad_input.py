"""Bad input of a search: one message that names the value and the remedy, exit code 2, no Ray, nothing written."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import ray

from sweeps import search
from sweeps.record.ledger import Ledger
from sweeps.sweep import Sweep
from trainable.config import TrainConfig

FILES = {
    "empty_space.yaml": "",
    "torn.yaml": "lr: {log: [1e-3",
    "list.yaml": "[1, 2]",
    "nested.yaml": "optimizer: {choice: {sgd: {lr: {log: [1e-2, 1]}}, adamw: {optimizer: sgd}}}",
    "points.yaml": "[{lr: 1e-3, task.widht: 3}]",
    "far.yaml": "[{lr: 5.0}]",
    "none.yaml": "[]",
    "words.yaml": "hello",
    "points.csv": "lr,batch_size\n1e-3\n",
    "space.py": "def wrong(trial):\n    return {'lrr': 1.0}\n\ndef number(trial):\n    return 3\n"
    "\ndef boom(trial):\n    1 / 0\n",
    "wrong.yaml": "trails: 3\n",
}
LR = "--space lr=log:1e-4..1e-1"
CASES = {
    # spaces
    "--space lr=log:1e-1..1e-4": ["must go from low to high", "did you mean"],
    "--space lr=log:0..1": ["must lie above 0"],
    "--space lr=log:1..1": ["empty"],
    "--space lr=log:1e-3": ["--space 'lr=log:1e-3'", "LOW..HIGH"],
    "--space lr=uniform:1..2": ["there is no 'uniform'"],
    "--space lr=": ["--space 'lr='", "must be one of"],
    "--space batch_size=choice:32": ["at least 2 values"],
    "--space batch_size=int:8..100/16": ["does not divide the range"],
    "--space lrr=log:1e-4..1e-1": ["unknown parameter 'lrr'", "did you mean lr"],
    "--space task.widht=int:1..4": ["task.widht", "did you mean task.width"],
    "--space lr=1e-3": ["nothing to search"],
    f"{LR} {LR}": ["says lr twice"],
    "--space lr=log:1e-4..1e-1 --set lr=1e-3": ["--set lr=0.001 fixes what the space searches"],
    "--space task.width=choice:8,16 --set task.width=8": ["--set task.width=8 fixes what the space searches"],
    "--space epochs=int:1..3 --epochs 2": ["--epochs", "fixes what the space searches"],
    "--space missing.yaml": ["--space missing.yaml cannot be read"],
    "--space torn.yaml": ["--space torn.yaml is not YAML"],
    "--space list.yaml": ["must hold `name:"],
    "--space nested.yaml": ["brings optimizer itself along"],
    "--space empty_space.yaml": ["must hold `name:"],
    "--space nonsense": ["must be a file", "a function"],
    "--space space.py:missing": ["no function 'missing' there", "wrong"],
    "--space space.py:wrong": ["unknown config key 'lrr'"],
    "--space space.py:number": ["returned 3", "dict of parameters"],
    "--space space.py:boom": ["raised ZeroDivisionError: division by zero"],
    f"--space space.py:wrong {LR}": ["is a function", "leave the others out"],
    "--space other.py:space": ["there is no file"],
    # samplers, pruners, objectives, limits
    f"{LR} --sampler best": ["--sampler best must be one of tpe"],
    f"{LR} --sampler grid": ["grid cannot try all values of lr"],
    "--space batch_size=choice:8,16 --sampler cmaes": ["cmaes moves numbers"],
    f"{LR} --sampler cmaes --metric val_loss:min --metric val_accuracy:max": ["cmaes knows one objective only"],
    f"{LR} --pruner eager": ["--pruner eager must be one of none"],
    f"{LR} --pruner asha --pruner-warmup x": ["--pruner-warmup 'x' must be a whole number"],
    f"{LR} --pruner asha --pruner-patience 0": ["pruner_patience=0", "at least 1"],
    f"{LR} --pruner asha --metric val_loss:min --metric val_accuracy:max": ["compares trials by one number"],
    "--metric val_loss": ["--metric 'val_loss' must be NAME:min or NAME:max"],
    "--metric val_loss:best": ["must be NAME:min or NAME:max"],
    "--metric val_loss:min --metric val_loss:min": ["each once"],
    "--constraint peak_mem_gib": ["--constraint 'peak_mem_gib' must be METRIC<=NUMBER"],
    "--constraint 'peak_mem_gib<=lots'": ["must be METRIC<=NUMBER"],
    "--constraint 'peak_mem_gib<=inf'": ["must be METRIC<=NUMBER"],
    "--constraint 'num_params<=9' --constraint 'num_params<=8'": ["limited twice"],
    "--constraint 'num_params<=9' --constraint 'num_params>=10'": ["nothing is at least 10"],
    # trials, points, other sweeps, seeds
    "--trials 0": ["--trials 0 must be at least 1"],
    "--trials many": ["--trials 'many' must be a whole number"],
    f"{LR} --points missing.yaml": ["--points missing.yaml cannot be read"],
    f"{LR} --points points.yaml": ["task.widht", "did you mean task.width"],
    f"{LR} --points far.yaml": ["lr=5", "does not lie in the space", "widen the space"],
    f"{LR} --points none.yaml": ["there are no points in it"],
    f"{LR} --points words.yaml": ["must be a list of points"],
    f"{LR} --points points.csv": ["a row has more or fewer cells"],
    "--warm-start nothing": ["--warm-start nothing: there is no such sweep"],
    "--warm-start old": ["--warm-start old: none of its 0 ended trials"],
    "--seeds 0": ["--seeds 0 must be at least 1"],
    "--seeds 2 --space seed=int:1..3": ["names the seed too"],
    "--seeds 2 --metric val_loss:min --metric val_accuracy:max": ["--seeds compares means of one metric"],
    # budgets
    "--max-time 5": ["--max-time '5' must be a time with its unit"],
    "--max-time soon": ["--max-time 'soon' must be a time"],
    "--max-time 0s": ["--max-time '0s' must be a time"],
    "--max-trial-time -1m": ["--max-trial-time"],
    "--max-gpu-hours lots": ["--max-gpu-hours 'lots' must be a number"],
    "--max-gpu-hours 0": ["--max-gpu-hours 0 must be a number above 0"],
    "--max-gpu-hours 1 --set device=cpu": ["would never be reached", "--max-time"],
    "--plateau 0": ["--plateau 0 must be at least 1"],
    "--plateau x": ["--plateau 'x' must be a whole number"],
    "--plateau 3 --metric val_loss:min --metric val_accuracy:max": ["--plateau compares trials by one number"],
    "--target val_loss": ["--target 'val_loss' must be METRIC<=NUMBER"],
    "--target 'num_params<=3'": ["--target num_params", "--constraint"],
    # shared with lr_scan
    "--task nope": ["unknown task 'nope'"],
    "--set bach_size=3": ["unknown config key 'bach_size'"],
    "--resume missing": ["no such sweep"],
    "--resume old --plan": ["--plan is about a new sweep"],
    "--resume old --trials 1": ["trials: 3 -> 1 (a resume can only add)"],
    "--resume old --seeds 2": ["seeds: 1 -> 2"],
    "--resume old --metric val_accuracy:max": ["metric: val_loss:min -> val_accuracy:max"],
    "--resume old --warm-start old": ["warm-start"],
    "--config wrong.yaml": ["unknown key 'trails'", "did you mean trials"],
    "--retries -1": ["--retries -1 must be at least 0"],
}


@pytest.mark.parametrize("arguments", CASES)
def test_bad_input(
    arguments: str, launch_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in FILES.items():
        (launch_folder / name).write_text(text)
    if "old" in arguments:
        old_sweep(launch_folder / "results/old")
    before = sorted(launch_folder.rglob("*"))
    monkeypatch.setattr(ray, "init", lambda **settings: pytest.fail("Ray was started"))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(SystemExit) as left:
        search.main(shlex.split(arguments))
    assert left.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    errors = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, said.err
    for part in CASES[arguments]:
        assert part in errors[0]
    assert [path for path in sorted(launch_folder.rglob("*")) if "__pycache__" not in path.parts] == before


def old_sweep(folder: Path) -> None:
    """A search of which no trial has begun."""
    folder.mkdir(parents=True)
    sweep = Sweep(
        name="old",
        question="search",
        task="digits",
        train=TrainConfig(threads=1),
        space={"lr": {"log": [1e-4, 1e-1]}},
        num_trials=3,
    )
    Ledger.create(folder / "ledger.db", sweep, {"tracking_uri": "sqlite:///x.db", "sweep_id": "x"}).close()
