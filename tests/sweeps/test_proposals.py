"""What is proposed: a function of the seed, the number and the trials that ended, for every sampler; never twice."""

from __future__ import annotations

import importlib.util
import random
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from sweeps.searching import samplers
from sweeps.searching.proposals import Outcome, Past, Proposal, Proposer, SpaceExhausted
from sweeps.searching.samplers import SAMPLERS, number_from
from sweeps.spaces.grammar import parse_space, text_of
from sweeps.sweep import Sweep
from trainable.config import TrainConfig

SPACE: dict[str, Any] = {
    "lr": {"log": [1e-5, 1e-1]},
    "weight_decay": {"float": [0.0, 0.5]},
    "batch_size": {"int": [16, 256], "step": 16},
    "clip_norm": {"choice": [None, 1, 1.5]},
}
BRANCHES: dict[str, Any] = {
    **SPACE,
    "optimizer": {
        "choice": {
            "adamw": {"beta2": {"float": [0.9, 0.999]}},
            "sgd": {"momentum": {"float": [0.01, 0.99]}, "nesterov": {"choice": [True, False]}},
        }
    },
}
SMALL: dict[str, Any] = {"optimizer": {"choice": ["sgd", "adam", "adamw"]}, "batch_size": {"choice": [16, 32]}}
TWO = (("val_loss", "min"), ("val_accuracy", "max"))

LENGTHS = {"tpe": 25, "random": 12, "cmaes": 40, "nsga2": 120, "qmc": 20}  # each long enough to use its memory

Judge = Callable[[int, Mapping[str, Any]], Outcome]


def search(space: Mapping[str, Any] = SPACE, seed: int = 0, **settings: Any) -> Sweep:
    train = TrainConfig(threads=1, seed=seed)
    return Sweep(
        name="s", question="search", task="digits", train=train, space=space, **{"num_trials": 9999, **settings}
    )


def loss(params: Mapping[str, Any]) -> float:
    """Smallest at lr=1e-3 and no weight decay."""
    return abs(params["lr"] - 1e-3) * 100 + float(params["weight_decay"]) + params["batch_size"] / 1000


def complete(number: int, params: Mapping[str, Any]) -> Outcome:
    return Outcome("complete", (loss(params),))


def mixed(number: int, params: Mapping[str, Any]) -> Outcome:
    """Of all kinds."""
    if number % 7 == 3:
        return Outcome("bad")
    if number % 7 == 5:
        return Outcome("absent")
    if number % 3 == 1:
        return Outcome("pruned", reports={1: loss(params) + 1, 2: loss(params)})
    return complete(number, params)


def as_past(found: Proposal, unended: frozenset[int], asked: Mapping[str, Any], outcome: Outcome | None) -> Past:
    internal = create_trial(state=TrialState.RUNNING, params=found.known, distributions=found.distributions)
    return Past(found.params, text_of(found.params), internal, unended, asked, outcome)


def run(
    sweep: Sweep,
    num_trials: int,
    judge: Judge = complete,
    at_once: int = 1,
    restarts: frozenset[int] = frozenset(),
    observed: Any = (),
) -> list[Past]:
    """Trials one after the other, at_once of them running at a time; the process is begun anew before some."""
    proposer, past = Proposer(sweep, observed), []
    order = random.Random(0)  # in which those that run come to their ends
    points = [dict(point) for point in sweep.points]
    for number in range(num_trials):
        running = [earlier for earlier, trial in enumerate(past) if trial.outcome is None]
        while len(running) >= at_once:
            ends = running.pop(order.randrange(len(running)))
            trial = past[ends]
            outcome = judge(ends, trial.params)
            past[ends] = Past(trial.params, trial.text, trial.internal, trial.unended, trial.asked, outcome)
        if number in restarts:
            proposer = Proposer(sweep, observed)
        asked = points[number] if number < len(points) else {}
        try:
            found = proposer.propose(number, past, asked)
        except SpaceExhausted:
            break
        past.append(as_past(found, frozenset(running), asked, None))
    return past


def params_of(past: list[Past]) -> list[str]:
    return [trial.text for trial in past]


@pytest.mark.parametrize(
    ("sampler", "num_trials", "at_once"),
    [(name, count, at_once) for name, count in LENGTHS.items() for at_once in (1, 3)]
    + [("gp", 12, 1), pytest.param("gp", 14, 3, marks=pytest.mark.slow)],
)
def test_a_process_that_is_begun_anew_proposes_the_same(sampler: str, num_trials: int, at_once: int) -> None:
    """Design, 6: also of samplers that keep what they know in pickles, attributes and counters."""
    space = SPACE if sampler in ("cmaes", "gp") else BRANCHES
    sweep = search(space, sampler=sampler)
    unbroken = run(sweep, num_trials, mixed, at_once)
    assert len(unbroken) == num_trials
    late = frozenset({1, 2, num_trials // 2, num_trials - 1})
    assert params_of(run(sweep, num_trials, mixed, at_once, late)) == params_of(unbroken)
    assert params_of(run(search(space, 1, sampler=sampler), 3, mixed)) != params_of(unbroken)[:3]
    assert len(set(params_of(unbroken))) == num_trials


@pytest.mark.parametrize("sampler", ["tpe", "nsga2"])
def test_several_objectives(sampler: str) -> None:
    sweep = search(BRANCHES, sampler=sampler, metrics=TWO, constraints={"num_params": {"at_most": 100}})

    def judge(number: int, params: Mapping[str, Any]) -> Outcome:
        if number % 9 == 4:
            return Outcome("bad")
        off = {"num_params at most 100": params["batch_size"] - 100.0}
        return Outcome("complete", (loss(params), params["weight_decay"]), violations=off)

    unbroken = run(sweep, 70, judge)
    assert params_of(run(sweep, 70, judge, restarts=frozenset({30, 69}))) == params_of(unbroken)


@pytest.mark.parametrize("space", [SPACE, BRANCHES])
def test_plain_optuna_proposes_the_same(space: dict[str, Any]) -> None:
    """Nothing of ours stands between a sampler and what it would have proposed by itself."""
    sweep = search(space)
    ours = run(sweep, 30)
    study = optuna.create_study()
    for number, trial in enumerate(ours):
        seed = number_from(0, number, 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            conditional = space is BRANCHES
            study.sampler = optuna.samplers.TPESampler(
                seed=seed, constant_liar=False, multivariate=True, group=conditional
            )
        theirs = study.ask()
        found = by_hand(theirs, conditional)
        assert {name: trial.params[name] for name in found} == found
        study.tell(theirs, loss(trial.params))


def by_hand(trial: optuna.Trial, conditional: bool) -> dict[str, Any]:
    """The space as its user would write it for Optuna."""
    found: dict[str, Any] = {
        "lr": trial.suggest_float("lr", 1e-5, 1e-1, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 0.0, 0.5),
        "batch_size": trial.suggest_int("batch_size", 16, 256, step=16),
    }
    trial.suggest_categorical("clip_norm", ["null", "1", "1.5"])
    if conditional and trial.suggest_categorical("optimizer", ['"adamw"', '"sgd"']) == '"adamw"':
        found["beta2"] = trial.suggest_float("beta2", 0.9, 0.999)
    elif conditional:
        found["momentum"] = trial.suggest_float("momentum", 0.01, 0.99)
        trial.suggest_categorical("nesterov", ["true", "false"])
    return found


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name not in ("cmaes", "gp")])
def test_no_configuration_twice_until_there_is_none_left(sampler: str) -> None:
    """Six configurations are six trials, whatever the sampler would rather look at again."""
    sweep = search(SMALL, sampler=sampler)
    found = run(sweep, 100, lambda number, params: Outcome("complete", (float(params["optimizer"] != "sgd"),)))
    assert len(set(params_of(found))) == len(found) == 6
    assert sweep.num_planned == 6
    if sampler == "grid":
        assert [(t.params["optimizer"], t.params["batch_size"]) for t in found] == [
            (optimizer, batch_size) for optimizer in ("sgd", "adam", "adamw") for batch_size in (16, 32)
        ]


def test_what_does_not_go_together_is_no_trial() -> None:
    """nesterov=true needs a momentum that is not 0: such a draw is drawn again, and is no end of the sweep."""
    space = {"momentum": {"choice": [0.0, 0.5]}, "nesterov": {"choice": [True, False]}, "optimizer": "sgd"}
    for sampler in ("random", "grid"):
        found = run(search(space, sampler=sampler), 100, lambda *_: Outcome("complete", (0.0,)))
        assert len(found) == 3
        assert not any(trial.params["nesterov"] and trial.params["momentum"] == 0 for trial in found)


def in_vain(past: list[Past]) -> int:
    """How many of the later trials are where it diverges."""
    return sum(trial.params["lr"] > 1e-2 for trial in past[len(past) // 2 :])


@pytest.mark.parametrize(
    ("sampler", "num_trials", "share"),
    [("tpe", 45, 0.75), ("cmaes", 120, 0.9), pytest.param("gp", 24, 0.75, marks=pytest.mark.slow)],
)
def test_failures_teach(sampler: str, num_trials: int, share: float) -> None:
    """Diverging is a finding: a sampler that was never told of it goes on looking where the loss seems to fall."""

    def falls(number: int, params: Mapping[str, Any]) -> float:
        return -params["lr"] + params["weight_decay"] / 100

    def judge(kind: Any) -> Judge:
        def of(number: int, params: Mapping[str, Any]) -> Outcome:
            return Outcome(kind) if params["lr"] > 1e-2 else Outcome("complete", (falls(number, params),))

        return of

    space = {"lr": {"log": [1e-5, 1.0]}, "weight_decay": {"float": [0.0, 0.5]}}
    told = sum(in_vain(run(search(space, seed, sampler=sampler), num_trials, judge("bad"))) for seed in range(2))
    untold = sum(in_vain(run(search(space, seed, sampler=sampler), num_trials, judge("absent"))) for seed in range(2))
    assert told < share * untold


def test_infrastructure_teaches_nothing() -> None:
    """A trial whose node died is as if it had never been, but for its parameters, which are not tried again."""

    def judge(number: int, params: Mapping[str, Any]) -> Outcome:
        return Outcome("absent") if number == 12 else complete(number, params)

    sweep = search()
    told = run(sweep, 14, judge)
    study = optuna.create_study()
    study.sampler = samplers.sampler_for("tpe", parse_space(SPACE), 0, 13, 0)
    for number, trial in enumerate(told[:13]):
        if number != 12:
            study.add_trial(
                create_trial(
                    value=loss(trial.params), params=trial.internal.params, distributions=trial.internal.distributions
                )
            )
    assert by_hand(study.ask(), False)["lr"] == told[13].params["lr"]


def test_points_come_first() -> None:
    """A point fixes what it names, and the sampler draws the rest; then the sampler goes on, and has learned."""
    points: tuple[dict[str, Any], ...] = (
        {"lr": 1e-3, "seed": 7},  # the seed is not searched: it is that trial's alone
        {"lr": 1e-2, "weight_decay": 0.25, "batch_size": 32, "clip_norm": None},
        {"clip_norm": 1},
    )
    sweep = search(BRANCHES, points=points, num_trials=20)
    found = run(sweep, 20, restarts=frozenset({2, 15}))
    for point, trial in zip(points, found, strict=False):
        assert {name: trial.params[name] for name in point} == point
        assert {"lr", "weight_decay", "batch_size", "clip_norm", "optimizer"} <= set(trial.params)
    assert params_of(found) == params_of(run(sweep, 20))
    assert len({trial.params["lr"] for trial in found}) == 20
    assert [number for number, trial in enumerate(found) if "seed" in trial.params] == [0]


def test_a_warm_start_is_learned_from() -> None:
    """What another sweep has seen is no trial of this one; what does not lie in this space is left out."""
    before = run(search(seed=5), 40)
    observed = [(trial.params, complete(0, trial.params)) for trial in before]
    cold, warm = run(search(), 8), run(search(), 8, observed=observed)
    assert params_of(cold) != params_of(warm)
    assert sum(loss(t.params) for t in warm) < sum(loss(t.params) for t in cold) / 2
    strange = [({"lr": 5.0}, Outcome("complete", (0.0,))), ({"momentum": 0.5}, Outcome("bad"))]
    assert params_of(run(search(), 8, observed=strange)) == params_of(cold)


def test_what_a_database_holds_is_never_executed(tmp_path: Any) -> None:
    """CMA-ES keeps a pickle in each trial; one that somebody put into ours is not even looked at."""
    sweep = search(sampler="cmaes")
    past = run(sweep, 12)
    mark = tmp_path / "executed"
    evil = b"cos\nmkdir\n(V" + str(mark).encode() + b"\ntR."
    poisoned = []
    for trial in past:
        internal = create_trial(
            state=TrialState.RUNNING,
            params=trial.internal.params,
            distributions=trial.internal.distributions,
            system_attrs={"cma:optimizer:0": evil.hex(), "cma:generation": 0},
        )
        outcome = complete(0, trial.params)
        poisoned.append(Past(trial.params, trial.text, internal, trial.unended, trial.asked, outcome))
    expected = run(sweep, 13)[12].text
    assert text_of(Proposer(sweep).propose(12, poisoned, {}).params) == expected
    assert not mark.exists()


def test_a_package_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    original = importlib.util.find_spec
    monkeypatch.setattr(samplers, "find_spec", lambda name: None if name == "cmaes" else original(name))
    with pytest.raises(ValueError, match="sampler=cmaes needs the package cmaes: pip install cmaes"):
        search(sampler="cmaes")


def test_a_function_of_a_trial(tmp_path: Any) -> None:
    file = tmp_path / "spaces.py"
    file.write_text(
        "def space(trial):\n"
        "    found = {'lr': trial.suggest_float('lr', 1e-4, 1e-1, log=True)}\n"
        "    if trial.suggest_categorical('big', [True, False]):\n"
        "        found['batch_size'] = trial.suggest_int('size', 64, 256)\n"
        "    return found\n\n"
        "def small(trial):\n"
        "    trial.suggest_categorical('batch_size', [16, 32])\n\n"
        "def wrong(trial):\n"
        "    return {'lrr': trial.suggest_float('x', 0, 1)}\n"
    )

    def judge(number: int, params: Mapping[str, Any]) -> Outcome:
        return Outcome("complete", (params["lr"],))

    sweep = search({"function": f"{file}:space"}, num_trials=30)
    found = run(sweep, 30, judge, restarts=frozenset({20}))
    assert params_of(found) == params_of(run(sweep, 30, judge))
    assert {tuple(trial.params) for trial in found} == {("lr",), ("lr", "batch_size")}
    assert len(run(search({"function": f"{file}:small"}), 9, lambda *_: Outcome("absent"))) == 2
    with pytest.raises(ValueError, match="did you mean lr"):
        run(search({"function": f"{file}:wrong"}), 1)
