"""Bad input: one clear message that names the value and the remedy, exit code 2, no Ray, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray

from sweeps import lr_scan

CASES = {
    "--task nope": ["unknown task 'nope'", "known: char_lm", "digits"],
    "--task there/is/none.py:Task": ["there is no file", "none.py"],
    "--task broken.py:Task": ["importing", "ZeroDivisionError"],
    "--task empty.py:Task": ["no 'Task' there"],
    "--task no_such_package.module:Task": ["importing no_such_package.module failed"],
    "--lrs 0": ["--lrs 0", "above 0"],
    "--lrs -1e-3": ["--lrs -1e-3", "above 0"],
    "--lrs nan": ["--lrs nan", "finite"],
    "--lrs inf": ["--lrs inf", "finite"],
    "--lrs fast": ["'fast' is not a number"],
    "--lrs 1e-1..1e-5:9": ["goes down", "1e-5..1e-1:9"],
    "--lrs 0..1:5": ["a log grid cannot have 0", "above 0"],
    "--lrs=-1..1:5": ["a log grid cannot have -1"],
    "--lrs a..b": ["'a' is not a number", "LOW..HIGH:COUNT"],
    "--lrs 1e-5..1e-1": ["does not say how many values", "1e-5..1e-1:9"],
    "--lrs 1e-5..1e-1:1": ["at least 2 values"],
    "--lrs 1e-5..1e-1:many": ["'many' is not a whole number"],
    "--lrs 1e-3..1e-3:2": ["the same value at both ends"],
    "--lrs 1..inf:2": ["cannot have inf"],
    "--lrs auto 1e-3": ["auto finds the range itself", "1e-3"],
    "--lrs 1e-5..1e-1:3 auto": ["auto finds the range itself"],
    "--lrs auto --task broken.py:Task": ["importing", "ZeroDivisionError"],
    "--seeds 0": ["--seeds 0", "at least 1"],
    "--seeds x": ["'x' must be a whole number"],
    "--seeds 2 --seed 9007199254740991": ["below 2**53", "smaller --seed"],
    "--extend-edges --lrs 1e-3": ["--extend-edges with one learning rate", "two or more"],
    "--lrs 1e-3 0.001": ["0.001 is given twice"],
    "--lrs": ["at least one learning rate"],
    "--epochs 0": ["epochs=0", "at least 1"],
    "--epochs 1.5": ["'1.5' must be a whole number"],
    "--seed -1": ["seed=-1", "at least 0"],
    "--set bach_size=3": ["unknown config key 'bach_size'", "did you mean batch_size"],
    "--set task.widht=3": ["task.widht", "did you mean task.width"],
    "--set batch_size": ["KEY=VALUE"],
    "--set batch_size=many": ["batch_size='many'", "whole number"],
    "--set lr=1e-3": ["use --lrs"],
    "--set task.width=0": ["width=0"],
    "--name ../elsewhere": ["name '../elsewhere'"],
    "--name taken": ["'taken' exists", "--resume taken"],
    "--resume missing": ["no such sweep", "missing"],
    "--resume": ["no unfinished sweep"],
    "--results file.txt": ["file.txt is a file", "--results"],
    "--results /proc/nowhere": ["/proc cannot be written", "--results"],
    "--cpus-per-trial 4096": ["4096", "no node has that many"],
    "--gpus-per-trial 4096": ["4096", "no node has that many"],
    "--gpus-per-trial 1.5": ["1.5", "a whole number, a share between 0 and 1, or auto"],
    "--gpus-per-trial -1": ["--gpus-per-trial -1", "a whole number, a share between 0 and 1, or auto"],
    "--gpus-per-trial automatic": ["'automatic'", "a whole number, a share between 0 and 1, or auto"],
    "--gpus-per-trial auto --set device=cuda": ["device=cuda", "has none"],
    "--trials-at-once 0": ["at least 1"],
    "--tracking-uri ./mlruns": ["./mlruns", "sqlite:///mlflow.db"],
    "--tracking-uri sqlite:////proc/none/mlflow.db": ["no folder /proc/none"],
    "--config missing.yaml": ["missing.yaml cannot be read"],
    "--config wrong.yaml": ["unknown key 'lsr'", "did you mean lrs"],
    "--address 127.0.0.1:1": ["no Ray cluster answers", "127.0.0.1:1"],
    "--unknown": ["--unknown", "--help"],
}


@pytest.mark.parametrize("arguments", CASES)
def test_bad_input(
    arguments: str, launch_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (launch_folder / "results/taken").mkdir(parents=True)
    (launch_folder / "broken.py").write_text("1 / 0\n")
    (launch_folder / "empty.py").write_text("\n")
    (launch_folder / "file.txt").write_text("\n")
    (launch_folder / "wrong.yaml").write_text("lsr: [1e-3]\n")
    before = sorted(launch_folder.rglob("*"))
    if "--address" not in arguments:
        monkeypatch.setattr(ray, "init", lambda **settings: pytest.fail("Ray was started"))
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
    else:
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(SystemExit) as left:
        lr_scan.main(arguments.split())
    assert left.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    errors = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    for part in CASES[arguments]:
        assert part in errors[0]
    assert [path for path in sorted(launch_folder.rglob("*")) if "__pycache__" not in path.parts] == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("--epochs 1", "epochs: 2 -> 1 (a resume can only add)"),
        ("--set epochs=1", "epochs: 2 -> 1 (a resume can only add)"),
        ("--seed 1", "seed: 0 -> 1"),
        ("--set batch_size=64", "batch_size: 32 -> 64"),
        ("--set task.width=8", "task.width: default -> 8"),
        ("--lrs 3e-3", "lrs: 0.001 left out"),
        ("--lrs auto", "was given its learning rates"),
        ("--task moody.py:Moody", "task: digits -> "),
    ],
)
def test_a_resume_cannot_change_what_was_trained(
    change: str, words: str, launch_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B20: never pretend success."""
    refused_on_resume(change, words, launch_folder, capsys, {"lr": 3e-3}, {"lr": 1e-3})


@pytest.mark.parametrize(
    ("change", "words"),
    [("--seeds 1", "seeds: 2 -> 1 (a resume can only add)"), ("--extend-edges", "two or more with --lrs")],
)
def test_a_resume_cannot_take_seeds_away(
    change: str, words: str, launch_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused_on_resume(change, words, launch_folder, capsys, {"lr": 3e-3, "seed": 0}, {"lr": 3e-3, "seed": 1})


def refused_on_resume(
    change: str, words: str, launch_folder: Path, capsys: pytest.CaptureFixture[str], *points: dict[str, float]
) -> None:
    from sweeps.record.ledger import Ledger
    from sweeps.sweep import Sweep
    from trainable.config import TrainConfig

    sweep = Sweep(
        name="old",
        question="lr_scan",
        task="digits",
        train=TrainConfig(threads=1, epochs=2),
        points=points,
    )
    (launch_folder / "results/old").mkdir(parents=True)
    Ledger.create(launch_folder / "results/old/ledger.db", sweep, {"tracking_uri": "sqlite:///x.db", "sweep_id": "x"})
    with pytest.raises(SystemExit) as left:
        lr_scan.main(["--resume", "old", *change.split()])
    assert left.value.code == 2
    assert words in capsys.readouterr().err
