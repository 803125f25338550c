"""A scan that finds its range, and one that goes on beyond an edge: how far, in which direction, and when it stops."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from sweeps import lr_scan
from sweeps.answers.judgement import Judgement
from sweeps.answers.seeds import ranked
from sweeps.lr.answer import MOST_EXTENSIONS, LrJudge, lrs_of
from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.sweep import Sweep
from tests.helpers.drivers import ROOT, driver, kill, result_of, run_command, wait_until, without_circumstances
from tests.sweeps.test_seeds import record
from trainable.config import TrainConfig

Scan = Callable[..., tuple[int, dict[str, Any]]]
MOODY = f"{ROOT / 'tests/helpers/moody.py'}:Moody"
SMALL = ("--task", MOODY, "--set", "task.width=8", "--set", "batch_size=128", "--set", "threads=1")
ASKED = (3e-3, 1e-3, 3e-4)


def scan_of(*lrs: float, seeds: int = 1) -> Sweep:
    points = tuple({"lr": lr, "seed": seed} for seed in range(seeds) for lr in lrs)
    return Sweep(name="s", question="lr_scan", task="digits", train=TrainConfig(threads=1), points=points)


def grown(values: dict[float, float | str], *, asked: tuple[float, ...] = ASKED, wanted: bool = True) -> list[float]:
    """What --extend-edges adds to a scan with these speeds, or states."""
    trials = [
        record(number, lr, 0, value if isinstance(value, str) else "complete")
        for number, (lr, value) in enumerate(values.items())
    ]
    known = {number: value for number, value in enumerate(values.values()) if not isinstance(value, str)}
    judgement = Judgement(trials, [], "", ranked(trials, known, 0, larger_is_better=True))
    old = scan_of(*values)
    new = LrJudge(0, asked, wanted).grow(judgement, old)
    return [] if new is None else [lr for lr in lrs_of(new) if lr not in values]


def test_where_it_goes_on() -> None:
    assert grown({3e-3: 3.0, 1e-3: 2.0, 3e-4: 1.0}) == [1e-2]
    assert grown({3e-3: 1.0, 1e-3: 2.0, 3e-4: 3.0}) == [1e-4]
    assert grown({3e-3: 1.0, 1e-3: 2.0, 3e-4: 1.0}) == []
    assert grown({3e-3: 3.0, 1e-3: 2.0, 3e-4: 1.0}, wanted=False) == []
    # Beyond what diverged, or failed, there is nothing to look for.
    assert grown({3e-2: "diverged", 1e-2: 3.0, 1e-3: 2.0}) == []
    assert grown({3e-2: "failed", 1e-2: 3.0, 1e-3: 2.0}) == []
    assert grown({3e-3: "diverged", 1e-3: "diverged"}) == [3e-4]
    assert grown({3e-3: "failed", 1e-3: "failed"}) == []
    # Where no loss falls a larger rate is no remedy.
    assert grown({3e-3: -1.0, 1e-3: -2.0}) == []
    assert grown({3e-3: -2.0, 1e-3: -1.0}) == [3e-4]


def test_it_stops_somewhere() -> None:
    values: dict[float, float | str] = {1e-3: 1.0, 1e-2: 2.0}
    added: list[float] = []
    while more := grown(values, asked=(1e-3, 1e-2)):
        added += more
        values[more[0]] = 2.0 + len(added)
    assert added == [0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0]
    assert len(added) == MOST_EXTENSIONS


@pytest.mark.parametrize(("best", "says_so"), [(7, True), (5, False)])
def test_it_says_that_it_has_stopped_where_that_matters(best: int, says_so: bool) -> None:
    """Six values beyond two that were asked for; the winner is the last of them, or lies inside by now."""
    trials = [record(number, 10.0**number, 0) for number in range(8)]

    class Straight(History):
        def curve(self, number: int, name: str) -> list[float]:
            slope = 0.1 - 0.01 * abs(number - best)
            return [9.0 - slope * step for step in range(40)]

    words = LrJudge(0, [1.0, 10.0], True)(trials, Straight(Path("nowhere"))).verdict
    assert words.startswith(f"lr={10.0**best:g} makes")
    assert "--extend-edges tried 100, 1000, 10000, 100000, 1e+06, 1e+07." in words
    assert ("It stops after 6." in words) == says_so


def test_every_seed_goes_on() -> None:
    trials = [record(number, lr, number // 2) for number, lr in enumerate((1e-3, 3e-3, 1e-3, 3e-3))]
    judgement = Judgement(trials, [], "", ranked(trials, {0: 1.0, 1: 2.0, 2: 1.0, 3: 2.0}, 0, larger_is_better=True))
    new = LrJudge(0, [1e-3, 3e-3], True).grow(judgement, scan_of(1e-3, 3e-3, seeds=2))
    assert new is not None
    assert new.points[4:] == ({"lr": 1e-2, "seed": 0}, {"lr": 1e-2, "seed": 1})


def test_until_the_winner_lies_inside(scan: Scan, launch_folder: Path) -> None:
    """The trials beyond the edge are trained as if they had been asked for, and everybody knows of them."""
    log = ("--set", f"task.step_log={launch_folder / 'steps.log'}")
    code, result = scan("--name", "edges", *SMALL, *log, "--lrs", "1e-2", "3e-2", "--extend-edges")
    assert code == 0
    lrs = [trial["params"]["lr"] for trial in result["trials"]]
    assert lrs[:3] == [1e-2, 3e-2, 0.1]
    assert min(lrs) < result["best"]["params"]["lr"] < max(lrs)
    assert f"--extend-edges tried {', '.join(f'{lr:g}' for lr in lrs[2:])}." in result["verdict"]
    assert "next." not in result["verdict"].partition("Beyond")[0]
    assert len((launch_folder / "steps.log").read_text().split()) == 10 * len(lrs)
    client = MlflowClient(result["tracking_uri"])
    for trial in result["trials"]:
        assert client.get_run(trial["mlflow_run_id"]).info.status == "FINISHED"
    parent = client.get_run(result["mlflow_run_id"]).data
    assert json.loads(parent.tags["steadysweep.now.tried.lr"]) == lrs
    _, again = scan("--resume", "edges")  # it has its answer
    assert again["trials"] == result["trials"]
    assert again["verdict"] == result["verdict"]


@pytest.mark.soak
def test_killed_beyond_the_edge(tmp_path: Path) -> None:
    """The resume, without the flag, trains the rest of the extension and goes on to the unbroken answer."""
    slow = ("--set", "task.sleep_s=0.02")
    arguments = ("--name", "edges", *SMALL, "--lrs", "1e-2", "3e-2", "--extend-edges", "--trials-at-once", "1")
    (tmp_path / "unbroken").mkdir()
    unbroken = run_command(*arguments, *slow, cwd=tmp_path / "unbroken")
    assert unbroken.returncode == 0, unbroken.stderr
    ledger = tmp_path / "results/edges/ledger.db"

    def is_extended() -> bool:
        if not ledger.exists():
            return False
        read = Ledger(ledger)
        try:
            return len(read.trials()) > 2
        finally:
            read.close()

    with driver(*arguments, *slow, cwd=tmp_path) as process:
        wait_until(is_extended, "the sweep is extended", process)
        kill(process)
    done = run_command("--resume", "edges", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found, expected = (result_of(place / "results/edges") for place in (tmp_path, tmp_path / "unbroken"))
    # Which attempt a trial is on is no part of the answer.
    assert without_circumstances(found) == without_circumstances(expected)


@pytest.mark.slow
def test_a_range_of_its_own(
    scan: Scan, launch_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--lrs auto: what was found is printed and kept with the sweep, and a resume does not look for it again."""
    code = lr_scan.main(["--name", "found", *SMALL, "--lrs", "auto"])
    assert code == 0
    said = capsys.readouterr()
    assert "as the rate rose from 1e-07, the loss" in said.err
    ledger = Ledger(launch_folder / "results/found/ledger.db")
    noted = ledger.attribute("lr_scan")
    ledger.close()
    result = result_of(launch_folder / "results/found")
    assert [trial["params"]["lr"] for trial in result["trials"]] == noted["range"]["lrs"] == noted["asked"]
    assert len(noted["range"]["tested_lrs"]) == len(noted["range"]["tested_losses"]) > 100
    assert min(noted["asked"]) < result["best"]["params"]["lr"] < max(noted["asked"])
    monkeypatch.setattr(lr_scan, "find_range", lambda *asked: pytest.fail("the range was looked for again"))
    _, again = scan("--resume", "found", "--lrs", "auto")
    assert again["trials"] == result["trials"]
