"""A search from end to end: its answer, its table, seeds, limits, budgets, points, what a resume may change."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from mlflow.tracking import MlflowClient

from sweeps import search
from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.record.trial import TrialRecord
from sweeps.searching.answer import SearchJudge, at_edges
from sweeps.searching.beginnings import proposed_ahead
from sweeps.searching.files import observations_of
from sweeps.searching.samplers import number_from
from sweeps.sweep import Sweep
from tests.helpers.drivers import ROOT
from trainable.checks.before import Refused, ask_before
from trainable.config import TrainConfig
from trainable.tasks.digits import Digits

Search = Callable[..., tuple[int, dict[str, Any]]]
MOODY = f"{ROOT / 'tests/helpers/moody.py'}:Moody"
LR = ("--space", "lr=log:1e-3..1e-1")


@pytest.fixture
def run(local_ray: None, launch_folder: Path, capsys: pytest.CaptureFixture[str]) -> Search:
    """`python -m sweeps.search ARGUMENTS --json` in this process: its exit code and its result."""

    def command(*arguments: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = search.main([*arguments, "--trials-at-once", "1", "--json"])
        return code, json.loads(capsys.readouterr().out)

    return command


def test_the_best_wins_and_more_trials_go_on(run: Search, launch_folder: Path) -> None:
    """Limits and a point to try first too. The proposals are those of six trials at once: nothing is done twice."""
    Path("points.csv").write_text("lr,task.width\n2e-2,32\n5e-2,\n")
    limits = ("--constraint", "num_params<=9000", "--points", "points.csv")
    space = (*LR, "--space", "task.width=choice:16,32,128")
    code, first = run(*space, *limits, "--name", "a", "--trials", "4", "--metric", "val_accuracy:max")
    assert code == 0
    assert [trial["state"] for trial in first["trials"]] == ["complete"] * 4
    assert first["trials"][0]["params"] == {"lr": 0.02, "task.width": 32}
    assert first["trials"][1]["params"]["lr"] == 0.05
    code, more = run("--resume", "a", "--trials", "6")
    assert (code, len(more["trials"])) == (0, 6)
    assert more["trials"][:4] == first["trials"]
    for trial in more["trials"]:  # (64 + 1) * width + (width + 1) * width + (width + 1) * 10
        width = trial["params"]["task.width"]
        assert trial["metrics"]["num_params"] == 65 * width + (width + 1) * width + (width + 1) * 10
    within = [trial for trial in more["trials"] if trial["metrics"]["num_params"] <= 9000]
    best = max(within, key=lambda trial: trial["metrics"]["val_accuracy"])
    assert more["best"]["number"] == best["number"]
    assert f"{best['metrics']['val_accuracy']:.4g}" in more["verdict"]
    if len(within) < 6:
        assert f"{6 - len(within)} beyond the limits" in more["verdict"]
    ledger = Ledger(launch_folder / "results/a/ledger.db")
    assert proposed_ahead(ledger.sweep, None, 6) == [trial["params"] for trial in more["trials"]]
    ledger.close()


def test_seeds_repeat_what_is_worth_it(run: Search) -> None:
    """Trials 2n and 2n + 1 are one configuration; what its first seed pruned is not repeated; means are ranked."""
    arguments = (*LR, "--seeds", "2", "--trials", "4", "--epochs", "2", "--pruner", "median", "--sampler", "random")
    code, result = run(*arguments, "--name", "a")
    assert code == 0
    trials = result["trials"]
    assert len(trials) == 8
    for first, second in zip(trials[::2], trials[1::2], strict=True):
        assert first["params"] == {"lr": first["params"]["lr"], "seed": 0}
        assert second["params"] == {"lr": first["params"]["lr"], "seed": 1}
        if first["state"] == "pruned":
            assert (second["state"], second["attempts"], second["epochs"]) == ("pruned", 0, 0)
        assert first["state"] == "pruned" or second["attempts"] == 1
    assert {trial["state"] for trial in trials} == {"complete", "pruned"}
    means = {
        number: (trials[number]["metrics"]["val_loss"] + trials[number + 1]["metrics"]["val_loss"]) / 2
        for number in range(0, 8, 2)
        if trials[number]["state"] == trials[number + 1]["state"] == "complete"
    }
    best = min(means, key=lambda number: means[number])
    assert result["best"]["params"]["lr"] == trials[best]["params"]["lr"]
    assert result["configurations"][0]["mean"] == pytest.approx(means[best])
    plain = dataclasses.replace(sweep_of({"lr": {"log": [1e-3, 1e-1]}}), sampler="random")
    assert proposed_ahead(plain, None, 4) == [{"lr": trial["params"]["lr"]} for trial in trials[::2]]


def test_several_objectives_of_a_functions_space(run: Search, capsys: pytest.CaptureFixture[str]) -> None:
    """All flags are in a file. No trial of the set beats another in both; the table marks it, the knee first."""
    Path("mine.py").write_text(
        "def space(trial):\n"
        "    lr = trial.suggest_float('lr', 1e-2, 5e-2, log=True)\n"
        "    return {'lr': lr, 'weight_decay': lr / 10, 'task.width': trial.suggest_int('task.width', 4, 64)}\n"
    )
    flags = {"space": "mine.py:space", "trials": 4, "name": "a", "set": {"batch_size": 64}, "sampler": "nsga2"}
    flags["metric"] = ["val_loss:min", "latency_ms:min"]
    Path("flags.yaml").write_text(json.dumps(flags))
    assert search.main(["--config", "flags.yaml", "--trials-at-once", "1"]) == 0
    said = capsys.readouterr().out
    result = json.loads(Path("results/a/result.json").read_text())
    for trial in result["trials"]:
        assert trial["params"]["weight_decay"] == pytest.approx(trial["params"]["lr"] / 10)
    points = {t["number"]: (t["metrics"]["val_loss"], t["metrics"]["latency_ms"]) for t in result["trials"]}
    assert all(latency > 0 for _, latency in points.values())
    front = {
        number
        for number, own in points.items()
        if not any(a <= own[0] and b <= own[1] and (a, b) != own for a, b in points.values())
    }
    marked = [line.split() for line in said.splitlines() if line.split()[:1] and line.split()[0].endswith("*")]
    assert {int(words[1]) for words in marked} == front
    assert int(marked[0][1]) == result["best"]["number"]
    assert f"its knee is trial {result['best']['number']}" in result["verdict"]


@pytest.mark.slow
def test_a_reached_target_ends_it_and_a_larger_budget_goes_on(run: Search, launch_folder: Path) -> None:
    code, result = run(*LR, "--target", "val_loss<=1.9", "--trials", "8", "--name", "a")
    assert (code, result["status"], result["ended_by"]) == (0, "finished", "target")
    begun = [trial for trial in result["trials"] if trial["state"] != "waiting"]
    assert len(begun) < 8
    assert begun[-1]["metrics"]["val_loss"] <= 1.9
    assert all(trial["metrics"]["val_loss"] > 1.9 for trial in begun[:-1])
    assert f"Ended as --target was reached: trial {begun[-1]['number']}" in result["verdict"]
    parent = MlflowClient(result["tracking_uri"]).get_run(result["mlflow_run_id"])
    assert parent.data.tags["steadysweep.ended_by"] == "target"
    assert parent.info.status == "FINISHED"
    with pytest.raises(SystemExit):
        run("--resume")  # there is nothing unfinished
    more = run("--resume", "a", "--target", "none", "--plateau", "2")[1]
    done = [trial for trial in more["trials"] if trial["state"] != "waiting"]
    assert len(done) > len(begun)
    assert more["ended_by"] in ("plateau", None)


@pytest.mark.slow
def test_time_ends_trials_and_sweeps(run: Search) -> None:
    """A trial that takes long is ended at a step and says so; a sweep that takes long is finished, and goes on."""
    slow = ("--task", MOODY, "--set", "task.mood=slow", "--set", "task.sleep_s=0.05", "--set", "report_steps=3")
    code, result = run(*slow, *LR, "--trials", "1", "--max-trial-time", "1s", "--name", "a")
    (trial,) = result["trials"]
    assert (code, trial["state"]) == (1, "pruned")  # nothing has an answer
    assert 0 < trial["epochs"] < 1
    ledger = Ledger(Path("results/a/ledger.db"))
    assert ledger.trial(0).reason == "ended by --max-trial-time 1 s"
    ledger.close()
    code, result = run(*slow, *LR, "--trials", "2", "--max-time", "2s", "--name", "b")
    assert (code, result["status"], result["ended_by"]) == (1, "finished", "max_time")
    assert "Ended by --max-time 2 s." in result["verdict"]
    code, result = run("--resume", "b", "--max-time", "none", "--set", "stall_s=500")
    assert (code, result["ended_by"], [trial["state"] for trial in result["trials"]]) == (0, None, ["complete"] * 2)


def test_another_sweep_teaches(launch_folder: Path) -> None:
    """With thirty trials seen, all good ones near 0.01, the first proposals lie there; without them anywhere."""
    space = {"lr": {"log": [1e-4, 1e-1]}}
    other = sweep_of(space, sampler="random")
    folder = launch_folder / "results/other"
    folder.mkdir(parents=True)
    ledger = Ledger.create(folder / "ledger.db", dataclasses.replace(other, num_trials=30), {})
    for number in range(30):
        report_and_end(ledger, number, abs(math.log10(ledger.begin(number).params["lr"]) + 2))
    ledger.close()
    taught = observations_of("other", {}, sweep_of(space))
    assert len(taught) == 30
    assert observations_of(folder, {}, sweep_of(space)) == taught
    firsts = [
        [proposed_ahead(sweep_of(space, seed=seed), seen, 1)[0]["lr"] for seed in range(20)] for seen in (taught, [])
    ]
    near = [sum(10**-2.5 <= lr <= 10**-1.5 for lr in lrs) for lrs in firsts]
    assert near[0] >= 15
    assert near[1] <= 12


def test_a_metric_that_is_not_there_is_refused_before_any_trial(
    run: Search, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        run(*LR, "--constraint", "latency<=3", "--trials", "2", "--name", "a")
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "unknown metric 'latency'" in said
    assert "did you mean latency_ms" in said
    assert not Path("results/a").exists()


@pytest.mark.parametrize("name", ["val_acuracy", "acc", "latency"])
def test_every_name_is_asked_for(name: str) -> None:
    task, config = Digits(), TrainConfig(threads=1)
    there = ["val_accuracy", "num_params", "peak_mem_gib", "latency_ms"]
    ask_before(task, config, lambda: task.splits(0), there)
    with pytest.raises(Refused, match=f"unknown metric '{name}'"):
        ask_before(task, config, lambda: task.splits(0), [*there, name])


def report_and_end(ledger: Ledger, number: int, value: float) -> None:
    said = {"epoch": 1.0, "metrics": {"val_loss": value}, "samples_per_s": 1.0, "notes": {}}
    ledger.report(number, {"number": 1, **said})
    ledger.finish(number, "complete")


def sweep_of(space: dict[str, Any], seed: int = 0, **settings: Any) -> Sweep:
    train = TrainConfig(threads=1, seed=seed)
    return Sweep(name="s", question="search", task="digits", train=train, space=space, num_trials=9, **settings)


@pytest.mark.parametrize(
    ("space", "params", "said"),
    [
        ({"lr": {"log": [1e-4, 1e-1]}}, {"lr": 0.0999}, ["lr=0.0999 is at the upper end of its range (0.1): widen"]),
        ({"lr": {"log": [1e-4, 1e-1]}}, {"lr": 1.1e-4}, ["at the lower end of its range (0.0001): widen it to 1e-05"]),
        ({"lr": {"log": [1e-4, 1e-1]}}, {"lr": 1.3e-4}, []),  # 3.8 % of three decades
        ({"lr": {"float": [0.1, 1.1]}}, {"lr": 0.5}, []),
        ({"task.dropout": {"float": [0.0, 0.5]}}, {"task.dropout": 0.0}, []),  # there is nothing below
        ({"task.dropout": {"float": [0.0, 0.5]}}, {"task.dropout": 0.495}, ["widen it to 0.75"]),
        ({"task.depth": {"int": [2, 4]}}, {"task.depth": 4}, ["task.depth=4", "widen it to 5"]),
        ({"batch_size": {"choice": [8, 16]}}, {"batch_size": 16}, []),
        (
            {"optimizer": {"choice": {"sgd": {"lr": {"log": [1e-2, 1]}}, "adamw": {"lr": {"log": [1e-4, 1e-2]}}}}},
            {"optimizer": "sgd", "lr": 0.01},
            ["lower end of its range (0.01)"],
        ),
    ],
)
def test_what_stands_at_an_edge_is_named(space: dict[str, Any], params: dict[str, Any], said: list[str]) -> None:
    found = list(map(str, at_edges(sweep_of(space), params)))
    assert len(found) == bool(said)
    assert all(words in found[0] for words in said)


def test_the_flags_and_the_samplers_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        search.main(["--help"])
    assert left.value.code == 0
    said = capsys.readouterr().out
    for word in ("tpe", "gp", "cmaes", "random", "qmc", "grid", "nsga2", "asha", "hyperband", "median", "--warm-start"):
        assert word in said


def test_the_sampler_is_told_means(tmp_path: Path) -> None:
    """Over two seeds it proposes what plain Optuna proposes that was told each mean once; a restart changes nothing."""
    sweep = sweep_of({"lr": {"log": [1e-4, 1e-1]}}, num_seeds=2)
    sweep = dataclasses.replace(sweep, num_trials=13)
    ledger = Ledger.create(tmp_path / "a.db", sweep, {})
    means: dict[float, float] = {}
    for number in range(26):
        if number == 22:
            ledger.close()
            ledger = Ledger(tmp_path / "a.db")
        lr = ledger.begin(number).params["lr"]
        if number % 2 == 0 and number >= 20:
            assert lr == plain_proposal(means, number_from(sweep.train.seed, number // 2, 0))
        report_and_end(ledger, number, abs(lr - 0.01) + (0.5 if number % 2 else 0.0))
        means[lr] = abs(lr - 0.01) + 0.25
    assert len(means) == 13
    ledger.close()


def plain_proposal(values: Mapping[float, float], seed: int) -> float:
    """What Optuna's TPE, seeded so, proposes after these trials."""
    distribution = optuna.distributions.FloatDistribution(1e-4, 1e-1, log=True)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=False))
    for lr, value in values.items():
        trial = optuna.trial.create_trial(params={"lr": lr}, distributions={"lr": distribution}, value=value)
        study.add_trial(trial)
    return float(study.ask({"lr": distribution}).params["lr"])


def test_a_configuration_over_seeds_is_judged_by_its_mean() -> None:
    """Two configurations over three seeds, written down: the means 2 and 3 differ by 1 with no noise at all."""
    sweep = sweep_of({"lr": {"log": [1e-4, 1e-1]}}, num_seeds=3)
    values = [1.0, 2.0, 3.0, 2.0, 3.0, 4.0]
    trials = [
        TrialRecord(
            number,
            {"lr": [1e-3, 1e-2][number // 3], "seed": number % 3},
            "complete", 1, 1, 1.0, {"val_loss": value}, None, {}, None, None, None,
        )
        for number, value in enumerate(values)
    ]  # fmt: skip
    found = SearchJudge(sweep)(trials, History(Path("none")))
    assert [one.params["lr"] for one in found.configurations] == [1e-3, 1e-2]
    assert "over 3 seeds; the difference from the next (3 +- 0.58) is more than noise" in found.verdict
    others = [
        dataclasses.replace(trial, metrics={"val_loss": value})
        for trial, value in zip(trials[3:], (0.0, 9.0, 0.0), strict=True)
    ]
    noisy = [*trials[:3], *others]
    assert "a tie: 1 of the 1 others" in SearchJudge(sweep)(noisy, History(Path("none"))).verdict


def test_the_verdict_counts() -> None:
    judge = SearchJudge(sweep_of({"lr": {"log": [1e-4, 1e-1]}}))
    assert judge([], History(Path("none"))).verdict.startswith("No trial has an answer.")
    states: tuple[Any, ...] = ("complete", "pruned", "pruned", "diverged", "failed", "waiting")
    trials = [
        TrialRecord(number, {"lr": 1e-2}, state, 1, 1, 1.0, {"val_loss": 0.5}, None, {}, None, None, None)
        for number, state in enumerate(states)
    ]
    found = judge(trials, History(Path("none")))
    assert "Best: trial 0 with val_loss 0.5 (lr=0.01). 5 trials, 2 pruned, 1 diverged, 1 failed." in found.verdict
    assert [trial.number for trial in found.ranked] == [0]
