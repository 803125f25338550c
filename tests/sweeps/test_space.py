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

from sweeps.conduct import Judgement, Outcome, conduct
from sweeps.history import History
from sweeps.ledger import Ledger
from sweeps.placement import Wish
from sweeps.store import Folder
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


@pytest.mark.parametrize(("sampler", "pruner", "num_trials"), [("tpe", "asha", 13), ("random", "median", 5)])
def test_kills_change_nothing(tmp_path: Path, sampler: str, pruner: str, num_trials: int) -> None:
    """Design, section 6: a sampler with a fixed seed proposed the same again after each start."""
    sweep = sweep_of(sampler=sampler, pruner=pruner, num_trials=num_trials)
    unbroken = work(tmp_path / "a.db", sweep)
    assert {state for _, _, state, _, _ in unbroken} == {"complete", "pruned"}
    assert len({params["lr"] for _, params, _, _, _ in unbroken}) == num_trials
    assert killed_now_and_then(tmp_path / "b.db", sweep, 5) == unbroken


def test_killed_between_two_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial's parameters are written in one commit: a kill in the middle leaves no trial with half of them."""
    sweep = sweep_of(num_trials=12, pruner="none")
    unbroken = work(tmp_path / "a.db", sweep)
    original = optuna.distributions.distribution_to_json  # called by the storage for each parameter
    calls = []

    def dies_now_and_then(distribution: Any) -> str:
        calls.append(1)
        if len(calls) % 9 == 4:
            raise Killed
        return str(original(distribution))

    monkeypatch.setattr(optuna.distributions, "distribution_to_json", dies_now_and_then)
    kills = 0
    while True:
        try:
            found = work(tmp_path / "b.db", sweep)
            break
        except Killed:
            kills += 1
            ledger = Ledger(tmp_path / "b.db")
            assert all(len(t.params) == len(SPACE) for t in ledger.trials() if t.state != "waiting")
            ledger.close()
    assert kills > 3
    assert found == unbroken


def test_types_survive_the_database(tmp_path: Path) -> None:
    """B38: 1 is not True, None is not a text, a list is a list; of an attempt of another process too."""
    work(tmp_path / "a.db", sweep_of(pruner="none", sampler="random", num_trials=6))
    for record in Ledger(tmp_path / "a.db").trials():
        params = record.params
        assert [type(params[name]) for name in ("lr", "weight_decay", "batch_size", "decay_all", "freeze")] == [
            float, float, int, bool, list,
        ]  # fmt: skip
        assert params["clip_norm"] is None or type(params["clip_norm"]) in (int, float)
        assert 1e-5 <= params["lr"] <= 1e-1
        assert 16 <= params["batch_size"] <= 256
        config, _ = sweep_of().trial_config(params)
        assert config.to_dict()["freeze"] == params["freeze"]


def test_more_trials(tmp_path: Path) -> None:
    """Two and two more are four; another seed gives others."""
    settings: dict[str, Any] = {"sampler": "random"}
    work(tmp_path / "a.db", sweep_of(num_trials=2, **settings))
    four = work(tmp_path / "b.db", sweep_of(num_trials=4, **settings))
    assert work(tmp_path / "a.db", sweep_of(num_trials=4, **settings)) == four
    assert work(tmp_path / "c.db", sweep_of(1, num_trials=4, **settings)) != four


def judge(trials: Any, history: History) -> Judgement:
    ranked = sorted((t for t in trials if t.state == "complete"), key=lambda t: t.metrics["val_loss"])
    return Judgement(trials, ranked, "")


def conducted(folder: Folder, sweep: Sweep) -> Outcome:
    return conduct(
        folder, sweep, tracking_uri=f"sqlite:///{folder.path.parent / 'mlflow.db'}", wish=Wish(trials_at_once=1),
        address=None, judge=judge, console=Console(file=io.StringIO()), began=time.time(),
    )  # fmt: skip


@pytest.mark.slow
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
