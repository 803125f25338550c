"""What stands between a user and Optuna's samplers: are the proposals the same, and what do asking and writing cost?

Ours is the ledger of a real sweep on the disk; plain is an Optuna study in memory with the same trials, objective and
seeds. The last line printed is one JSON object. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import optuna
from rich.console import Console
from rich.table import Table

from sweeps.record import ledger as ledger_module
from sweeps.record.ledger import Ledger
from sweeps.searching.proposals import Proposer
from sweeps.searching.samplers import number_from
from sweeps.sweep import Sweep
from trainable.config import TrainConfig

SPACE: dict[str, Any] = {
    "lr": {"log": [1e-5, 1e-1]},
    "weight_decay": {"float": [0.0, 0.5]},
    "batch_size": {"int": [16, 256]},
    "optimizer": {"choice": ["adamw", "sgd", "rmsprop"]},
    "momentum": {"float": [0.0, 0.99]},
}
REPORTS = 5
BARS = {"different_proposals": 0, "ask_p95_ms": 25.0, "ledger_writes_share": 0.01}


def sweep_of(**settings: Any) -> Sweep:
    train = TrainConfig(threads=1, epochs=REPORTS)
    settings = {"num_trials": 2000, "space": SPACE, **settings}
    return Sweep(name="s", question="search", task="digits", train=train, **settings)


def objective(params: Mapping[str, Any]) -> float:
    """Smallest at lr=1e-3, sgd, and no weight decay."""
    return abs(params["lr"] - 1e-3) * 100 + params["weight_decay"] + params["batch_size"] / 1000 + (
        0.0 if params["optimizer"] == "sgd" else 0.3
    )  # fmt: skip


def plainly(trial: optuna.Trial) -> dict[str, Any]:
    """The space as one writes it for Optuna."""
    return {
        "lr": trial.suggest_float("lr", 1e-5, 1e-1, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 0.0, 0.5),
        "batch_size": trial.suggest_int("batch_size", 16, 256),
        "optimizer": json.loads(trial.suggest_categorical("optimizer", ['"adamw"', '"sgd"', '"rmsprop"'])),
        "momentum": trial.suggest_float("momentum", 0.0, 0.99),
    }


def plain_sampler(number: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(seed=number_from(0, number, 0), constant_liar=False)


def live(ledger: Ledger, number: int, reports: int = 1) -> None:
    """A trial's life in the ledger, from its beginning to its end; it is never pruned, so that all live alike."""
    value = objective(ledger.begin(number).params)
    for report in range(1, reports + 1):
        said = {"number": report, "epoch": float(report), "metrics": {"val_loss": value}}
        ledger.report(number, {**said, "samples_per_s": 1.0, "notes": {"device": "cpu"}})
        if report < reports:
            ledger.should_prune(number)
    ledger.finish(number, "complete", weights_sha256="0" * 64)


class Clock:
    """How long each call of a function takes, in seconds."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **settings: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **settings)
            finally:
                self.seconds.append(time.perf_counter() - began)

        return timed

    def percentile_ms(self, percent: int) -> float:
        return 1000 * statistics.quantiles(self.seconds, n=100, method="inclusive")[percent - 1]


def different_proposals(folder: Path, num_trials: int) -> int:
    """How many of the first proposals of a sweep differ from those of a study that Optuna drives itself."""
    ledger = Ledger.create(folder / "same.db", sweep_of(), {})
    study, different = optuna.create_study(), 0
    for number in range(num_trials):
        live(ledger, number)
        study.sampler = plain_sampler(number)
        trial = study.ask()
        params = plainly(trial)
        study.tell(trial, objective(params))
        different += params != ledger.trial(number).params
    ledger.close()
    return different


def asking(folder: Path, filled: int, asked: int) -> dict[str, Clock]:
    """Proposals from `filled` trials on: ours, ours as the ledger begins a trial, and plain Optuna's."""
    clocks = {"propose": Clock(), "begin (propose, write, read)": Clock(), "plain Optuna": Clock()}
    ledger = Ledger.create(folder / "many.db", sweep_of(sampler="random"), {})
    for number in range(filled):
        live(ledger, number)
    ledger.extend(sweep_of())
    study = optuna.create_study()
    for trial in ledger._storage.get_all_trials(ledger._study._study_id):
        study.add_trial(trial)
    original_propose, original_begin = Proposer.propose, ledger.begin
    live(ledger, filled)  # the first one reads the ledger
    begin = clocks["begin (propose, write, read)"].around(original_begin)
    ask = clocks["plain Optuna"].around(lambda: plainly(study.ask()))
    try:
        Proposer.propose = clocks["propose"].around(original_propose)  # type: ignore[method-assign]
        for number in range(filled + 1, filled + 1 + asked):
            ledger.begin = begin  # type: ignore[method-assign]
            live(ledger, number)
            study.sampler = plain_sampler(number)
            value = objective(ask())
            study.tell(study.get_trials(deepcopy=False)[-1].number, value)
    finally:
        Proposer.propose = original_propose  # type: ignore[method-assign]
    ledger.close()
    return clocks


def writing(folder: Path, num_trials: int) -> tuple[Clock, float]:
    """Each write of trials with five reports and a pruner, and how long such a trial spends in the ledger."""
    clock, originals = Clock(), (ledger_module.write, ledger_module.write_new)
    ledger = Ledger.create(folder / "writes.db", sweep_of(sampler="random", pruner="asha"), {})
    live(ledger, 0, REPORTS)
    try:
        ledger_module.write, ledger_module.write_new = map(clock.around, originals)
        began = time.perf_counter()
        for number in range(1, num_trials + 1):
            live(ledger, number, REPORTS)
        taken = time.perf_counter() - began
    finally:
        ledger_module.write, ledger_module.write_new = originals
    ledger.close()
    return clock, taken / num_trials


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer trials: less than a minute")
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    same, asked, written = (25, 30, 15) if args.quick else (100, 100, 60)
    memory = Path("/dev/shm")  # filling 1,000 trials would wait for the disk; what is asked of them does not
    fast = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=fast) as quick, tempfile.TemporaryDirectory() as disk:
        different = different_proposals(Path(quick), same)
        clocks = asking(Path(quick), 1000, asked)
        clock, in_ledger_s = writing(Path(disk), written)
        in_memory, in_ledger_memory_s = writing(Path(quick), written)
    per_trial = len(clock.seconds) / written
    share = sum(clock.seconds) / written  # of a trial of one second
    table = Table("what", "median", "p95", "remark")
    for name, one in clocks.items():
        remark = f"at trial 1,000, TPE, {len(SPACE)} parameters, {asked} times"
        table.add_row(name, f"{one.percentile_ms(50):.1f} ms", f"{one.percentile_ms(95):.1f} ms", remark)
    for name, one, whole in (
        ("a write, on the disk", clock, in_ledger_s),
        ("a write, in memory", in_memory, in_ledger_memory_s),
    ):
        remark = f"{per_trial:g} a trial of {REPORTS} reports, which spends {1000 * whole:.0f} ms in the ledger"
        table.add_row(name, f"{one.percentile_ms(50):.2f} ms", f"{one.percentile_ms(95):.2f} ms", remark)
    console = Console()
    console.print(table)
    console.print(f"different proposals: {different} of {same}; load {os.getloadavg()[0]:.1f}")
    values = {
        "different_proposals": different,
        "ask_p95_ms": round(clocks["propose"].percentile_ms(95), 1),
        "ledger_writes_share": round(share, 4),
    }
    found = {name: {"value": values[name], "bar": bar, "met": values[name] <= bar} for name, bar in BARS.items()}
    print(json.dumps(found))
    return 0 if all(one["met"] for one in found.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
