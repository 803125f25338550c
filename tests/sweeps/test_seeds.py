"""Configurations over paired seeds: which seeds, in which order they stand, and sweeps that really repeat."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeps.answers.seeds import lacking, ranked, repeated, with_fixed_split
from sweeps.lr.answer import LrJudge, measured_together, with_more
from sweeps.record.history import History
from sweeps.record.trial import TrialRecord
from sweeps.sweep import Sweep
from tests.helpers.drivers import ROOT
from trainable.config import TrainConfig

Scan = Callable[..., tuple[int, dict[str, Any]]]
MOODY = f"{ROOT / 'tests/helpers/moody.py'}:Moody"
SMALL = ("--task", MOODY, "--set", "task.width=8", "--set", "batch_size=128", "--set", "threads=1")


def record(number: int, lr: float, seed: int, state: Any = "complete") -> TrialRecord:
    return TrialRecord(
        number=number, params={"lr": lr, "seed": seed}, state=state, attempts=1, reports=1, epochs=1.0, metrics={},
        samples_per_s=None, notes={}, reason=None, mlflow_run_id=None, weights_sha256=None,
    )  # fmt: skip


def order_of(values: dict[tuple[float, int], float | str], **settings: Any) -> list[Any]:
    """The configurations of trials {(lr, seed): value or the state it ended in}."""
    trials = [
        record(number, lr, seed, value if isinstance(value, str) else "complete")
        for number, ((lr, seed), value) in enumerate(values.items())
    ]
    known = {number: value for number, value in enumerate(values.values()) if not isinstance(value, str)}
    return ranked(trials, known, 0, larger_is_better=True, **settings)


def test_all_of_the_first_seed_come_first() -> None:
    assert repeated([{"lr": 1.0}, {"lr": 2.0}], 5, 2) == (
        {"lr": 1.0, "seed": 5}, {"lr": 2.0, "seed": 5}, {"lr": 1.0, "seed": 6}, {"lr": 2.0, "seed": 6},
    )  # fmt: skip
    assert repeated([{"lr": 1.0}], 5, 1) == ({"lr": 1.0},)
    with pytest.raises(ValueError, match="must be at least 1"):
        repeated([{"lr": 1.0}], 5, 0)
    # One more would come back from the database as another seed.
    assert repeated([{}], 2**53 - 2, 2)[-1] == {"seed": 2**53 - 1}
    with pytest.raises(ValueError, match="below 2\\*\\*53; choose a smaller --seed"):
        repeated([{}], 2**53 - 1, 2)


def sweep(*points: dict[str, Any], seed: int = 0) -> Sweep:
    return Sweep(name="s", question="lr_scan", task="digits", train=TrainConfig(seed=seed, threads=1), points=points)


def test_what_a_sweep_lacks() -> None:
    """The seed that a sweep began with is the same one, whether its points say it or not."""
    plain, said = sweep({"lr": 1.0}, seed=7), sweep({"lr": 1.0, "seed": 7}, seed=7)
    wanted = repeated([{"lr": 1.0}, {"lr": 2.0}], 7, 2)
    for old in (plain, said):
        assert lacking(old, wanted) == [{"lr": 2.0, "seed": 7}, {"lr": 1.0, "seed": 8}, {"lr": 2.0, "seed": 8}]
    grown = with_more(plain, [2.0], 2)
    assert grown.points == ({"lr": 1.0}, {"lr": 2.0, "seed": 7}, {"lr": 1.0, "seed": 8}, {"lr": 2.0, "seed": 8})
    assert with_more(grown, [1.0, 2.0], 2) == grown


def test_the_split_stays_that_of_the_sweep() -> None:
    fixed = with_fixed_split(sweep({"lr": 1.0, "seed": 8}, seed=7))
    config, _ = fixed.trial_config({"lr": 1.0, "seed": 8})
    assert (config.seed, config.data_seed) == (8, 7)
    assert with_fixed_split(fixed) == fixed


def test_ranked_by_the_mean_with_its_error() -> None:
    slow, fast = 1e-3, 3e-3
    found = order_of({(slow, 0): 1.0, (fast, 0): 4.0, (slow, 1): 2.0, (fast, 1): 6.0, (slow, 2): 3.0, (fast, 2): 5.0})
    assert [one.params for one in found] == [{"lr": fast}, {"lr": slow}]
    assert (found[0].estimate.mean, found[0].estimate.num) == (5.0, 3)
    assert found[0].estimate.error == pytest.approx(1 / math.sqrt(3))  # standard deviation 1 of 4, 6, 5
    assert found[0].first.number == 1
    assert found[0].beside is None
    assert found[1].beside.difference.mean == pytest.approx(3.0)  # of 3, 4, 2
    assert found[0].to_dict() == {
        "params": {"lr": fast}, "mean": 5.0, "standard_error": found[0].estimate.error, "tied_with_best": None,
        "seeds": {"0": 4.0, "1": 6.0, "2": 5.0}, "counted": [0, 1, 2], "trials": {"0": 1, "1": 3, "2": 5},
    }  # fmt: skip


def test_what_diverged_for_some_seed_stands_below_what_never_did() -> None:
    found = order_of(
        {(1.0, 0): 9.0, (0.1, 0): 2.0, (0.5, 0): 8.0, (1.0, 1): "diverged", (0.1, 1): 3.0, (0.5, 1): "failed"}
    )
    assert [one.params["lr"] for one in found] == [0.1, 0.5, 1.0]
    assert [one.seeds("diverged") for one in found] == [[], [], [1]]
    assert [one.seeds("failed") for one in found] == [[], [1], []]
    assert [one.beside for one in found] == [None, None, None]  # what is known of the two says little about them


def test_an_easy_seed_that_others_lack_makes_no_winner() -> None:
    """Interrupted: only the slow one had its easy second seed so far."""
    found = order_of({(0.1, 0): 2.0, (0.2, 0): 3.0, (0.1, 1): 9.0, (0.2, 1): "running"})
    assert [one.params["lr"] for one in found] == [0.2, 0.1]
    assert [one.counted for one in found] == [(0,), (0,)]
    assert not found[1].beside.is_known


def test_without_a_value_there_is_no_rank() -> None:
    found = order_of({(0.1, 0): "diverged", (0.2, 0): "failed", (0.3, 0): "waiting"})
    assert [one.estimate for one in found] == [None] * 3
    assert order_of({}) == []


def test_what_is_hopeless_does_not_blur_the_others() -> None:
    """A rate whose loss explodes has any speed between -1 and -1000; the noise of that is none of the others'."""
    good = {(0.1, 0): 2.0, (0.1, 1): 2.1, (0.2, 0): 1.0, (0.2, 1): 1.1}
    wild = {(9.0, 0): -1.0, (9.0, 1): -1000.0}
    found = order_of({**good, **wild}, worst=0.0)
    assert [one.beside.tied for one in found[1:]] == [False, False]
    assert found[2].estimate.mean == pytest.approx(-500.5)  # it is shown as it is


def test_equal_ones_stand_in_the_order_of_their_numbers() -> None:
    assert [one.first.number for one in order_of({(0.3, 0): 1.0, (0.1, 0): 1.0, (0.2, 0): 1.0})] == [0, 1, 2]


def test_the_start_is_at_most_that_of_the_smallest_rate_of_the_same_seed() -> None:
    calm, wild = [2.4, 2.2] + [2.0] * 30 + [1.8] * 8, [2.4, 5000.0] + [300.0] * 30 + [1.0] * 8
    found = measured_together({0: (1.0, 0, wild), 1: (1e-3, 0, calm), 2: (1.0, 1, wild)})
    assert found[0].per_step == pytest.approx((2.3 - 1.0) / 35)
    assert found[1].per_step == pytest.approx(0.5 / 35)
    assert found[2].per_step == pytest.approx((2501.2 - 1.0) / 35)  # there is nothing to hold against it
    assert measured_together({}) == {}


def test_seeds_are_paired_and_a_resume_trains_what_is_missing(scan: Scan, launch_folder: Path) -> None:
    """Three seeds of two rates; and one seed of one of them, then all: the same to the bit, with
    no step made twice. Within a seed the first step's loss is the same, between seeds it is not; the split is one."""
    code, whole = scan("--name", "whole", *SMALL, "--lrs", "3e-2", "1e-2", "--seeds", "3")
    assert code == 0
    assert [trial["params"] for trial in whole["trials"]] == [
        {"lr": lr, "seed": seed} for seed in (0, 1, 2) for lr in (3e-2, 1e-2)
    ]
    history = History(launch_folder / "results/whole/history")
    starts = [history.curve(number, "loss")[0] for number in range(6)]
    assert starts[0::2] == starts[1::2]
    assert len(set(starts)) == 3
    from sweeps.record.ledger import Ledger

    ledger = Ledger(launch_folder / "results/whole/ledger.db")
    assert len({record.notes["data"] for record in ledger.trials()}) == 1
    ledger.close()

    log = ("--set", f"task.step_log={launch_folder / 'steps.log'}")
    scan("--name", "parts", *SMALL, *log, "--lrs", "3e-2")
    code, parts = scan("--resume", "parts", "--lrs", "3e-2", "1e-2", "--seeds", "3")
    assert code == 0
    hashes = {
        name: {
            (trial["params"]["lr"], trial["params"].get("seed", 0)): trial["weights_sha256"]
            for trial in found["trials"]
        }
        for name, found in (("whole", whole), ("parts", parts))
    }
    assert hashes["parts"] == hashes["whole"]
    assert len((launch_folder / "steps.log").read_text().split()) == 6 * 10
    assert parts["verdict"] == whole["verdict"]
    best = whole["configurations"][0]
    assert best["params"] == {"lr": whole["best"]["params"]["lr"]}
    by_number = {str(trial["number"]): trial["metrics"]["descent_speed"] for trial in whole["trials"]}
    assert best["mean"] == pytest.approx(sum(by_number[str(number)] for number in best["trials"].values()) / 3)
    assert "over 3 seeds" in whole["verdict"]


def test_a_seed_that_diverges_is_named() -> None:
    trials = [record(0, 1e-1, 0), record(1, 1e-2, 0), record(2, 1e-1, 1, "diverged"), record(3, 1e-2, 1, "failed")]

    class NoCurves(History):
        def curve(self, number: int, name: str) -> list[float]:
            return [3.0, 2.0 - number]

    judged = LrJudge(seed=0, asked=[1e-1, 1e-2])(trials, NoCurves(Path("nowhere")))
    assert "lr=0.1 (seed 1) diverged." in judged.verdict
    assert "1 of 4 failed: lr=0.01 (seed 1)." in judged.verdict
    assert judged.ranked[0].params["lr"] == 1e-2
