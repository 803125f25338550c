"""Trials drawn from a space: what is proposed and pruned depends on the seed and on finished trials, on no kill."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from rich.console import Console

from sweeps.record import writes
from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.running.conduct import Judgement, Outcome, conduct
from sweeps.running.placement import Wish
from sweeps.searching.outcomes import outcome_of
from sweeps.searching.proposals import SpaceExhausted
from sweeps.sweep import Sweep
from trainable.config import TrainConfig

SPACE: dict[str, Mapping[str, Any]] = {
    "lr": {"log": [1e-5, 1e-1]},
    "weight_decay": {"float": [0.0, 0.5]},
    "batch_size": {"int": [16, 256]},
    "clip_norm": {"choice": [None, 1, 1.5]},
    "decay_all": {"choice": [True, False]},
    "freeze": {"choice": [[], ["0.*"]]},
}
EPOCHS = 5


def sweep_of(seed: int = 0, num_trials: int = 13, **settings: Any) -> Sweep:
    train = TrainConfig(threads=1, seed=seed, epochs=EPOCHS)
    settings = {"space": SPACE, "sampler": "tpe", "pruner": "asha", **settings}
    return Sweep(name="s", question="search", task="digits", train=train, num_trials=num_trials, **settings)


def loss_of(params: Mapping[str, Any], epoch: int) -> float:
    """The smaller lr's distance from 1e-3, the better; better with each epoch."""
    return abs(params["lr"] - 1e-3) * 100 + params["weight_decay"] / 10 + 1 / epoch


class Killed(BaseException):
    pass


def work(path: Path, sweep: Sweep, step: Callable[[], None] = lambda: None) -> list[Any]:
    """A driver that does everything that is left, one trial at a time; `step` is called between any two acts."""
    ledger = Ledger(path) if path.exists() else Ledger.create(path, sweep, {})
    ledger.extend(sweep)
    try:
        records = ledger.trials()
        for state in ("running", "waiting"):
            for number in [record.number for record in records if record.state == state]:
                record = ledger.begin(number)
                for epoch in range(record.reports + 1, EPOCHS + 1):
                    step()
                    said = {"metrics": {"val_loss": loss_of(record.params, epoch)}, "samples_per_s": 1.0, "notes": {}}
                    ledger.report(number, {"number": epoch, "epoch": float(epoch), **said})
                    step()
                    if epoch < EPOCHS and ledger.should_prune(number):
                        step()
                        ledger.finish(number, "pruned", reason=f"pruned after epoch {epoch:g}")
                        break
                else:
                    step()
                    ledger.finish(number, "complete")
        return [(r.number, r.params, r.state, r.reports, r.reason) for r in ledger.trials()]
    finally:
        ledger.close()


def killed_now_and_then(path: Path, sweep: Sweep, every: int) -> list[Any]:
    """The same, by drivers that die at every so-many-th act."""
    for kills in range(1000):
        acts = [0]

        def step(acts: list[int] = acts, limit: int = every + kills % 3) -> None:
            acts[0] += 1
            if acts[0] == limit:
                raise Killed

        try:
            return work(path, sweep, step)
        except Killed:
            continue
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize(
    ("sampler", "pruner", "num_trials"), [("tpe", "asha", 13), ("random", "median", 5), ("cmaes", "hyperband", 12)]
)
def test_kills_change_nothing(folder: Path, sampler: str, pruner: str, num_trials: int) -> None:
    """Design, section 6: a sampler with a fixed seed proposed the same again after each start."""
    sweep = sweep_of(sampler=sampler, pruner=pruner, num_trials=num_trials)
    unbroken = work(folder / "a.db", sweep)
    assert {state for _, _, state, _, _ in unbroken} == {"complete", "pruned"}
    assert len({params["lr"] for _, params, _, _, _ in unbroken}) == num_trials
    assert killed_now_and_then(folder / "b.db", sweep, 5) == unbroken


def test_killed_between_two_parameters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial's parameters are written in one commit: a kill in the middle leaves no trial with half of them."""
    sweep = sweep_of(num_trials=12, pruner="none")
    unbroken = work(folder / "a.db", sweep)
    original = writes.distribution_to_json  # called for each parameter
    calls = []

    def dies_now_and_then(distribution: Any) -> str:
        calls.append(1)
        if len(calls) % 9 == 4:
            raise Killed
        return str(original(distribution))

    monkeypatch.setattr(writes, "distribution_to_json", dies_now_and_then)
    kills = 0
    while True:
        try:
            found = work(folder / "b.db", sweep)
            break
        except Killed:
            kills += 1
            ledger = Ledger(folder / "b.db")
            assert all(len(t.params) == len(SPACE) for t in ledger.trials() if t.state != "waiting")
            ledger.close()
    assert kills > 3
    assert found == unbroken


def test_types_survive_the_database(folder: Path) -> None:
    """B38: 1 is not True, None is not a text, a list is a list; of an attempt of another process too."""
    work(folder / "a.db", sweep_of(pruner="none", sampler="random", num_trials=6))
    for record in Ledger(folder / "a.db").trials():
        params = record.params
        assert [type(params[name]) for name in ("lr", "weight_decay", "batch_size", "decay_all", "freeze")] == [
            float, float, int, bool, list,
        ]  # fmt: skip
        assert params["clip_norm"] is None or type(params["clip_norm"]) in (int, float)
        assert 1e-5 <= params["lr"] <= 1e-1
        assert 16 <= params["batch_size"] <= 256
        config, _ = sweep_of().trial_config(params)
        assert config.to_dict()["freeze"] == params["freeze"]


def test_more_trials(folder: Path) -> None:
    """Two and two more are four; another seed gives others."""
    settings: dict[str, Any] = {"sampler": "random"}
    work(folder / "a.db", sweep_of(num_trials=2, **settings))
    four = work(folder / "b.db", sweep_of(num_trials=4, **settings))
    assert work(folder / "a.db", sweep_of(num_trials=4, **settings)) == four
    assert work(folder / "c.db", sweep_of(1, num_trials=4, **settings)) != four


BRANCHES: dict[str, Any] = {
    "optimizer": {
        "choice": {
            "adam": {"lr": {"log": [1e-4, 1e-2]}},
            "sgd": {"lr": {"log": [1e-2, 1.0]}, "momentum": {"choice": [0.0, 0.9]}},
        }
    },
    "clip_norm": {"choice": [None, 0.1]},
    "freeze": {"choice": [["0.*", "1.*"], ["0.*"]]},
    "batch_size": 32,
}


def ended(ledger: Ledger, number: int, **metrics: float) -> None:
    said = {"number": 1, "epoch": 1.0, "metrics": metrics, "samples_per_s": 1.0, "notes": {}, "peak_mem_gib": 2.5}
    ledger.report(number, said)
    ledger.finish(number, "complete")


def test_branches_in_the_ledger(folder: Path) -> None:
    """B38: ten trials, half of them after a restart: the types of the space, its fixed values, one branch each."""
    sweep = sweep_of(num_trials=10, space=BRANCHES, sampler="tpe", pruner="none")
    for number in range(10):
        ledger = Ledger(folder / "a.db") if number else Ledger.create(folder / "a.db", sweep, {})
        begun = ledger.begin(number)
        ended(ledger, number, val_loss=begun.params["lr"])
        ledger.close()
    records = Ledger(folder / "a.db").trials()
    assert {record.params["optimizer"] for record in records} == {"adam", "sgd"}
    for record in records:
        params = record.params
        assert ("momentum" in params) is (params["optimizer"] == "sgd")
        assert params["clip_norm"] in (None, 0.1)
        assert params["freeze"] in (["0.*", "1.*"], ["0.*"])
        assert (params["batch_size"], type(params["lr"])) == (32, float)
        assert params["lr"] <= 1e-2 if params["optimizer"] == "adam" else params["lr"] >= 1e-2
        config, _ = sweep.trial_config(params)
        assert (config.optimizer, config.lr, config.batch_size) == (params["optimizer"], params["lr"], 32)


def test_a_space_that_is_used_up(folder: Path) -> None:
    """The sweep is at its end then, though more trials were asked for; a larger space goes on."""
    space: dict[str, Any] = {
        "momentum": {"choice": [0.0, 0.5]}, "nesterov": {"choice": [True, False]}, "optimizer": "sgd"
    }  # fmt: skip
    sweep = sweep_of(num_trials=50, space=space, sampler="random", pruner="none")
    ledger = Ledger.create(folder / "a.db", sweep, {})
    assert [record.state for record in ledger.trials()] == ["waiting"] * 4
    for number in range(3):
        ledger.begin(number)
        ended(ledger, number, val_loss=1.0)
    assert not ledger.exhausted
    with pytest.raises(SpaceExhausted):  # of the four, nesterov without momentum is none
        ledger.begin(3)
    assert ledger.exhausted
    assert [record.state for record in ledger.trials()] == ["complete"] * 3
    ledger.close()
    resumed = Ledger(folder / "a.db")
    assert resumed.exhausted
    larger = {**space, "momentum": {"choice": [0.0, 0.5, 0.9]}}
    resumed.extend(sweep_of(num_trials=50, space=larger, sampler="random", pruner="none"))
    assert not resumed.exhausted
    assert {resumed.begin(number).params["momentum"] for number in (3, 4)} == {0.9}
    resumed.close()


def test_limits_and_several_objectives(folder: Path) -> None:
    """Measured by the last report, also what stands there beside the metrics; nothing missing is within limits."""
    objectives = (("val_loss", "min"), ("val_accuracy", "max"))
    limits = {"peak_mem_gib": {"at_most": 2}, "num_params": {"at_most": 100}}
    sweep = sweep_of(num_trials=4, metrics=objectives, constraints=limits, sampler="nsga2", pruner="none")
    ledger = Ledger.create(folder / "a.db", sweep, {})
    for number, more in enumerate(({"num_params": 90.0}, {"num_params": 110.0}, {}, {"num_params": 1.0})):
        ledger.begin(number)
        accuracy = {} if number == 3 else {"val_accuracy": 0.5}
        ended(ledger, number, val_loss=1.0, **accuracy, **more)
    ledger.close()
    found = Ledger(folder / "a.db").trials()
    assert [record.violations["peak_mem_gib at most 2"] for record in found] == [0.5] * 4
    assert [record.violations["num_params at most 100"] <= 0 for record in found] == [True, False, False, True]
    assert not any(record.feasible for record in found)
    assert [record.state for record in found] == ["complete"] * 3 + ["failed"]
    assert "never reported 'val_accuracy'" in str(found[3].reason)
    study = optuna.load_study(study_name="s", storage=f"sqlite:///{folder / 'a.db'}")
    assert [direction.name for direction in study.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert [trial.values for trial in study.trials] == [[1.0, 0.5]] * 3 + [None]


def test_what_a_sampler_is_told_of_failures(folder: Path) -> None:
    """Diverged and out of memory are findings about the parameters; a broken node or a bug of the task is none."""
    sweep = sweep_of(num_trials=5, pruner="none")
    ledger = Ledger.create(folder / "a.db", sweep, {})
    for number, (state, kind) in enumerate(
        [("diverged", None), ("failed", "out of memory"), ("failed", "infrastructure"), ("failed", "exception")]
    ):
        ledger.begin(number)
        if kind:
            ledger.note_failure(number, kind, "words")
        ledger.finish(number, state, reason="why")  # type: ignore[arg-type]
    ledger.begin(4)
    ledger.close()
    study = optuna.load_study(study_name="s", storage=f"sqlite:///{folder / 'a.db'}")
    told = [outcome_of(trial, sweep) for trial in study.trials]
    assert [outcome and outcome.kind for outcome in told] == ["bad", "bad", "absent", "absent", None]


def test_a_warm_start(folder: Path) -> None:
    """What an earlier sweep found is known from the first trial on, in every process, and is no trial of this one."""
    work(folder / "old.db", sweep_of(num_trials=12))
    old = Ledger(folder / "old.db")
    observed = old.observations()
    old.close()
    assert len(observed) == 12
    sweep = sweep_of(1, num_trials=3, pruner="none")
    cold = work(folder / "cold.db", sweep)
    Ledger.create(folder / "warm.db", sweep, {"warm_start": observed}).close()
    Ledger.create(folder / "again.db", sweep, {"warm_start": observed}).close()
    warm = work(folder / "warm.db", sweep)
    assert len(warm) == 3
    assert [params for _, params, *_ in warm] != [params for _, params, *_ in cold]
    assert killed_now_and_then(folder / "again.db", sweep, 5) == warm


def judge(trials: Any, history: History) -> Judgement:
    ranked = sorted((t for t in trials if t.state == "complete"), key=lambda t: t.metrics["val_loss"])
    return Judgement(trials, ranked, "")


def conducted(folder: Folder, sweep: Sweep) -> Outcome:
    return conduct(
        folder, sweep, tracking_uri=f"sqlite:///{folder.path.parent / 'mlflow.db'}", wish=Wish(trials_at_once=1),
        address=None, judge=judge, console=Console(file=io.StringIO()), began=time.time(),
    )  # fmt: skip


@pytest.mark.soak
def test_a_real_search_that_was_stopped(local_ray: None, tmp_path: Path) -> None:
    """Signals in mid-search, and it goes on: the same proposals, decisions and weights as those of the unbroken one."""
    space = {"lr": {"log": [1e-4, 1e-1]}, "task.width": {"int": [4, 32]}}
    train = TrainConfig(threads=1, epochs=4, batch_size=256)
    sweep = Sweep(
        name="s", question="search", task="digits", train=train, num_trials=14, space=space, pruner="asha",
    )  # fmt: skip
    whole, broken = (Folder(tmp_path / name / "s") for name in ("whole", "broken"))
    unbroken = conducted(whole, sweep).result
    assert {trial.state for trial in unbroken.trials} == {"complete", "pruned"}

    ended = threading.Event()

    def interrupt() -> None:
        lines = [3, 17]
        while lines and not ended.wait(0.02):
            files = broken.history.glob("*.jsonl")
            if (
                sum(path.read_bytes().count(b"\n") for path in files) >= lines[0]
                and (broken.path / "owner.json").exists()
            ):
                lines.pop(0)
                os.kill(os.getpid(), signal.SIGINT)
                while (broken.path / "owner.json").exists() and not ended.wait(0.02):
                    pass

    thread = threading.Thread(target=interrupt)
    thread.start()
    codes = []
    while not codes or codes[-1] == 130:
        outcome = conducted(broken, sweep)
        codes.append(outcome.exit_code)
    ended.set()
    thread.join()
    # How often a signal falls into a run and not between two is the machine's business; once at least it does.
    assert codes[0] == 130
    assert codes[-1] == 0
    assert [(t.params, t.state, t.epochs, t.metrics, t.weights_sha256) for t in outcome.result.trials] == [
        (t.params, t.state, t.epochs, t.metrics, t.weights_sha256) for t in unbroken.trials
    ]
