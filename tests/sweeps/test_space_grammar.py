"""What a space may say: read and described without loss, refused in words, drawn with the types that stand there."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sweeps.spaces.draw import draw, encode
from sweeps.spaces.finite import configurations, is_conditional, num_configurations
from sweeps.spaces.grammar import Choice, Entries, Fixed, Range, describe, largest, names_in, parse_space, text_of
from sweeps.spaces.text import parse_space_text
from sweeps.spaces.valid import check_conflicts
from sweeps.sweep import Sweep
from trainable.config import TrainConfig

OPTIMIZERS: dict[str, Any] = {
    "choice": {
        "adamw": {"beta2": {"float": [0.9, 0.999]}},
        "sgd": {"momentum": {"float": [0.0, 0.99]}, "nesterov": {"choice": [True, False]}},
    }
}


def drawn(entries: Entries, seed: int) -> dict[str, Any]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return draw(entries, study.ask())


# Spaces of all shapes, with names from a few, so that names repeat in sibling branches.
numbers = st.floats(-1e6, 1e6, allow_nan=False)
words = st.text("ab1", max_size=2)
lists = st.lists(st.integers(0, 3), max_size=2)
plain = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(-2, 2), words, lists)


@st.composite
def ranges(make: Any) -> dict[str, Any]:
    kind = make(st.sampled_from(["float", "step", "log", "int", "intstep", "intlog"]))
    if kind in ("int", "intstep", "intlog"):
        low, count = make(st.integers(1, 50)), make(st.integers(1, 20))
        step = make(st.integers(1, 7)) if kind == "intstep" else 1
        extra: dict[str, Any] = {"step": step} if kind == "intstep" else {"log": True} if kind == "intlog" else {}
        return {"int": [low, low + step * count], **extra}
    if kind == "step":  # tenths and hundredths, which are not exact in binary
        low, count, step = make(st.integers(-50, 50)), make(st.integers(1, 20)), make(st.integers(1, 9))
        return {"float": [low / 100, (low + count * step) / 100], "step": step / 100}
    low_high = sorted(make(st.lists(numbers, min_size=2, max_size=2, unique=True)))
    if kind == "log":
        low_high = [abs(low_high[0]) + 1e-6, abs(low_high[0]) + abs(low_high[1] - low_high[0]) + 1]
    return {kind: low_high}


def choices(depth: int) -> Any:
    @st.composite
    def made(make: Any) -> dict[str, Any]:
        options = make(st.lists(plain, min_size=2, max_size=4, unique_by=text_of))
        if depth and make(st.booleans()):
            options[0] = make(ranges())
        if depth and make(st.booleans()):
            options[-1] = {"value": options[-1], "with": make(spaces(depth - 1))}
        return {"choice": options}

    return made()


def spaces(depth: int) -> Any:
    letters = "xyz"[depth : depth + 1]  # a name never stands in a branch of its own
    names = st.sampled_from([letters + digit for digit in "12"])
    return st.dictionaries(names, st.one_of(ranges(), choices(depth), plain), min_size=1, max_size=2)


def overlapping(space: Mapping[str, Any]) -> bool:
    """Whether two of its names bring the same name along, which is refused."""
    inside = [set(names_in(parse_space({name: spec}))) for name, spec in space.items() if not overlaps_within(spec)]
    return len(inside) < len(space) or len(set().union(*inside)) < sum(map(len, inside))


def overlaps_within(spec: Any) -> bool:
    options = spec.get("choice", ()) if isinstance(spec, Mapping) else ()
    return any(isinstance(option, Mapping) and overlapping(option.get("with", {})) for option in options)


@settings(max_examples=150, deadline=None)
@given(given_space=spaces(2), seed=st.integers(0, 2**31))
def test_described_read_and_drawn(given_space: dict[str, Any], seed: int) -> None:
    """The way there and back loses nothing, also through JSON; what is drawn lies in the space, on its steps, and
    is the configuration that Optuna would be asked for again."""
    assume(not overlapping(given_space))
    entries = parse_space(given_space)
    back = parse_space(json.loads(json.dumps(describe(entries))))
    assert text_of(describe(back)) == text_of(describe(entries))
    params = drawn(entries, seed)
    assert text_of(drawn(back, seed)) == text_of(params)
    assert lies_in(entries, params)
    trial = optuna.trial.FixedTrial(encode(entries, params))
    assert text_of(draw(entries, trial)) == text_of(params)


def lies_in(entries: Entries, params: Mapping[str, Any]) -> bool:
    """Whether some way through the space uses up all the parameters; said in other words than draw.py does."""
    return {} in leftovers(list(entries.items()), dict(params))


def leftovers(items: list[tuple[str, Any]], left: dict[str, Any]) -> list[dict[str, Any]]:
    if not items:
        return [left]
    (name, entry), *others = items
    if name not in left:
        return []
    value, rest = left[name], {key: left[key] for key in left if key != name}
    if not isinstance(entry, Choice):
        return leftovers(others, rest) if fits(entry, value) else []
    ways = [option for option in entry.options if fits(option.drawn or Fixed(option.value), value)]
    return [end for way in ways for end in leftovers([*way.brings.items(), *others], rest)]


def fits(entry: Any, value: Any) -> bool:
    if isinstance(entry, Fixed):
        return text_of(value) == text_of(entry.value)
    if type(value) is not (int if entry.whole else float) or not entry.low <= value <= entry.high:
        return False
    if entry.step is None:
        return True
    steps = (value - entry.low) / entry.step  # the very number that stands on the step, as one would write it down
    return abs(steps - round(steps)) < 1e-6 and value == round(value, 2)


def test_only_the_branch_that_was_chosen() -> None:
    """B38: a choice inside a choice reached the trainer as an object of a library."""
    entries = parse_space({"optimizer": OPTIMIZERS, "lr": {"log": [1e-4, 1e-1]}, "batch_size": 64})
    found = [drawn(entries, seed) for seed in range(40)]
    names = Counter(tuple(params) for params in found)
    assert set(names) == {
        ("optimizer", "beta2", "lr", "batch_size"),
        ("optimizer", "momentum", "nesterov", "lr", "batch_size"),
    }
    assert {params["optimizer"] for params in found} == {"adamw", "sgd"}
    assert {params["batch_size"] for params in found} == {64}
    assert {type(params["nesterov"]) for params in found if "nesterov" in params} == {bool}
    assert is_conditional(entries)
    assert list(names_in(entries)) == ["optimizer", "beta2", "momentum", "nesterov", "lr", "batch_size"]


def test_one_name_in_two_branches() -> None:
    """Each branch has its own range for lr; in Optuna the two are two parameters, for the trial it is lr."""
    space = {
        "optimizer": {"choice": {"adamw": {"lr": {"log": [1e-5, 1e-3]}}, "sgd": {"lr": {"log": [1e-2, 1.0]}}}},
    }
    entries = parse_space(space)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=3))
    for _ in range(12):
        trial = study.ask()
        params = draw(entries, trial)
        assert set(params) == {"optimizer", "lr"}
        low, high = (1e-5, 1e-3) if params["optimizer"] == "adamw" else (1e-2, 1.0)
        assert low <= params["lr"] <= high
        study.tell(trial, params["lr"])
    names = {name for trial in study.trials for name in trial.params}
    assert len(names) == 3


def test_an_option_that_is_drawn_itself() -> None:
    """Off, or somewhere in a range; a branch of a value that is no text."""
    entries = parse_space(
        {
            "clip_norm": {"choice": [None, {"log": [0.1, 10.0]}]},
            "decay_all": {"choice": [{"value": True, "with": {"weight_decay": {"float": [0.0, 0.5]}}}, False]},
        }
    )
    found = [drawn(entries, seed) for seed in range(60)]
    assert any(params["clip_norm"] is None for params in found)
    assert all(params["clip_norm"] is None or 0.1 <= params["clip_norm"] <= 10.0 for params in found)
    assert len({params["clip_norm"] for params in found}) > 10
    assert all(("weight_decay" in params) is (params["decay_all"] is True) for params in found)


@pytest.mark.parametrize(
    "values",
    [
        [True, 1, 1.0, "1", None, "None", "true"],
        [[64, 64], [128], [], {"head.*": 10}, {"value": 1, "with": 2}],
    ],
)
def test_every_type_is_its_own(values: list[Any]) -> None:
    """B38: None became 'None', True and 1 were one value, a list a text."""
    listed = [{"fixed": value} if isinstance(value, Mapping) else value for value in values]
    entries = parse_space({"x": {"choice": listed}})
    assert text_of(describe(parse_space(describe(entries)))) == text_of(describe(entries))
    found = {text_of(drawn(entries, seed)["x"]) for seed in range(100)}
    assert found == {text_of(value) for value in values}
    for value in values:
        again = draw(entries, optuna.trial.FixedTrial(encode(entries, {"x": value})))["x"]
        assert (again, type(again)) == (value, type(value))


@pytest.mark.parametrize(
    ("space", "count"),
    [
        ({"x": {"int": [1, 6]}, "y": {"choice": ["a", "b"]}}, 12),
        ({"x": {"float": [0, 1], "step": 0.1}, "z": 3}, 11),
        ({"x": {"int": [16, 256], "step": 16}}, 16),
        ({"o": {"choice": {"a": {"x": {"int": [1, 3]}}, "b": {}}}}, 4),
        ({"o": {"choice": [None, {"int": [1, 3]}, {"value": "c", "with": {"x": {"choice": [1, 2]}}}]}}, 6),
        ({"x": {"float": [0, 1]}, "y": {"int": [1, 2]}}, None),
        ({"o": {"choice": {"a": {"x": {"log": [1, 3]}}, "b": {}}}}, None),
    ],
)
def test_counting(space: dict[str, Any], count: int | None) -> None:
    entries = parse_space(space)
    assert num_configurations(entries) == count
    if count is not None:
        listed = list(configurations(entries))
        assert len({text_of(params) for params in listed}) == len(listed) == count
        assert {text_of(drawn(entries, seed)) for seed in range(300)} == {text_of(params) for params in listed}


def test_steps_are_written_as_they_are_meant() -> None:
    """0.1 + 2 * 0.1 is 0.30000000000000004 in binary; the fourth value from 0 in steps of 0.1 is 0.3."""
    entries = parse_space({"x": {"float": [0, 1], "step": 0.1}})
    assert [params["x"] for params in configurations(entries)] == [
        0.0,
        0.1,
        0.2,
        0.3,
        0.4,
        0.5,
        0.6,
        0.7,
        0.8,
        0.9,
        1.0,
    ]
    assert {drawn(entries, seed)["x"] for seed in range(200)} == {n / 10 for n in range(11)}


@pytest.mark.parametrize(
    ("text", "name", "spec"),
    [
        ("lr=log:1e-5..1e-1", "lr", {"log": [1e-5, 1e-1]}),
        ("batch_size=choice:32,64,128", "batch_size", {"choice": [32, 64, 128]}),
        ("task.depth=int:1..6", "task.depth", {"int": [1, 6]}),
        ("x=float:0..1/0.1", "x", {"float": [0.0, 1.0], "step": 0.1}),
        ("x=float:-1.5..-.5", "x", {"float": [-1.5, -0.5]}),
        ("batch_size=int:16..256/16", "batch_size", {"int": [16, 256], "step": 16}),
        ("batch_size=int:1..1024/log", "batch_size", {"int": [1, 1024], "log": True}),
        ("clip_norm=choice:null,1,1.5", "clip_norm", {"choice": [None, 1, 1.5]}),
        ("freeze=choice:[],['0.*']", "freeze", {"choice": [[], ["0.*"]]}),
        ("decay_all=choice:true,false", "decay_all", {"choice": [True, False]}),
        ("dropout=choice:null,{float: [0.1, 0.5]}", "dropout", {"choice": [None, {"float": [0.1, 0.5]}]}),
        ("optimizer={choice: {adam: , sgd: {momentum: {float: [0, 0.9]}}}}", "optimizer",
         {"choice": {"adam": {}, "sgd": {"momentum": {"float": [0.0, 0.9]}}}}),
        ("lr=1e-3", "lr", 1e-3),
        ("task.path=C:/data", "task.path", "C:/data"),
        ("lr_multipliers={'head.*': 10}", "lr_multipliers", {"fixed": {"head.*": 10}}),
    ],
)  # fmt: skip
def test_one_line_of_text(text: str, name: str, spec: Any) -> None:
    found = parse_space_text(text)
    assert found[0] == name
    assert text_of(found[1]) == text_of(spec)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr", "'lr' must be one of NAME=log:"),
        ("lr=", "must be one of NAME=log:"),
        ("=log:1..2", "must be one of NAME=log:"),
        ("lr=log:1e-5", "must be one of NAME=log:"),
        ("lr=uniform:0..1", "there is no 'uniform'"),
        ("lr=log:1e-1..1e-5", "did you mean [1e-05, 0.1]?"),
        ("lr=log:a..b", "two finite numbers"),
        ("x=float:0..1/0.3", "does not divide"),
        ("x=choice:a", "leaves nothing to choose"),
        ("x=choice:[", "cannot be read"),
    ],
)
def test_text_that_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_space_text(text)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"lr": {"log": [0, 1]}}, "must lie above 0; low is 0"),
        ({"lr": {"log": [-1, 1]}}, "must lie above 0"),
        ({"lr": {"log": [1, 0.1]}}, "did you mean [0.1, 1.0]?"),
        ({"lr": {"float": [1, 1]}}, "is empty"),
        ({"lr": {"float": [1]}}, "two finite numbers"),
        ({"lr": {"float": [0, float("nan")]}}, "two finite numbers"),
        ({"lr": {"float": [0, float("inf")]}}, "two finite numbers"),
        ({"lr": {"float": [-1e308, 1e308]}}, "as finite numbers"),
        ({"lr": {"float": ["0", "1"]}}, "two finite numbers"),
        ({"lr": {"float": [False, True]}}, "two finite numbers"),
        ({"lr": {"float": 1}}, "two finite numbers"),
        ({"lr": {"uniform": [0, 1]}}, "must be one of {float"),
        ({"lr": {}}, "must be one of {float"),
        ({"lr": {"float": [0, 1], "log": [1, 2]}}, "must be one of {float"),
        ({"lr": {"log": [1, 2], "step": 1}}, "must be one of {float"),
        ({"lr": {"float": [0, 1], "step": 0.3}}, "the step 0.3 does not divide the range"),
        ({"lr": {"float": [0, 1], "step": 2}}, "does not divide"),
        ({"lr": {"float": [0, 1], "step": 0}}, "the step must be a finite number above 0"),
        ({"n": {"int": [1, 2.5]}}, "whole numbers"),
        ({"n": {"int": [1, 5], "step": 0.5}}, "whole numbers"),
        ({"n": {"int": [0, 2**60]}}, "whole numbers up to 9007199254740992"),
        ({"n": {"int": [16, 256], "step": 7}}, "does not divide"),
        ({"n": {"int": [1, 16], "step": 5, "log": True}}, "has a step and is logarithmic"),
        ({"n": {"int": [1, 16], "log": 2}}, "log must be true or false"),
        ({"o": {"choice": []}}, "leaves nothing to choose"),
        ({"o": {"choice": ["a"]}}, "leaves nothing to choose"),
        ({"o": {"choice": {"a": {}}}}, "leaves nothing to choose"),
        ({"o": {"choice": ["a", "a"]}}, 'the value "a" twice'),
        ({"o": {"choice": "ab"}}, "must list values"),
        ({"o": {"choice": ["a", float("nan")]}}, "must be a finite number"),
        ({"o": {"choice": ["a", object]}}, "must be a number, a text"),
        ({"o": {"choice": {True: {}, "b": {}}}}, "the value True is no text"),
        ({"o": {"choice": {"a": 3, "b": {}}}}, "must be a mapping"),
        ({"o": {"choice": {"a": {"o": 1}, "b": {}}}}, "brings o itself along"),
        ({"o": {"choice": {"a": {"x": 1}, "b": {}}}, "x": 2}, "x stands in o and in x"),
        ({1: {"float": [0, 1]}}, "the name 1 must be text"),
        ([1], "must be a mapping"),
    ],
)
def test_spaces_that_make_no_sense(space: Any, words: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_space(space)
    assert words in str(error.value)


def search(space: Any, **settings: Any) -> Sweep:
    plain_settings: dict[str, Any] = {"num_trials": 5, "train": TrainConfig(threads=1), **settings}
    return Sweep(name="s", question="search", task="digits", space=space, **plain_settings)


def test_a_space_that_trials_can_have() -> None:
    """Values that go together only beside others: nesterov with sgd, and with a momentum that is not 0."""
    sweep = search({"optimizer": OPTIMIZERS, "clip_norm": {"choice": [None, 1]}, "task.width": {"int": [4, 32]}})
    assert Sweep.from_dict(json.loads(json.dumps(sweep.to_dict()))) == sweep
    assert search({"epochs": {"int": [2, 9]}}).epochs == 9
    assert largest(parse_space({"epochs": {"choice": [3, {"int": [1, 7]}]}}), "epochs") == [3, 7]


@pytest.mark.parametrize(
    ("space", "settings", "words"),
    [
        ({"lrr": {"log": [1e-3, 1]}}, {}, "unknown parameter 'lrr'; did you mean lr"),
        ({"task.widht": {"int": [1, 4]}}, {}, "did you mean task.width"),
        ({"batch_size": {"int": [0, 8]}}, {}, "batch_size=0 must be at least 1"),
        ({"batch_size": {"float": [1, 8]}}, {}, "must be a whole number"),
        ({"optimizer": {"choice": ["sgd", "sdg"]}}, {}, "sdg"),
        ({"optimizer": {"choice": {"sgd": {"momentum": {"float": [0, 1]}}, "adam": {}}}}, {}, "momentum=1.0 must"),
        ({"optimizer": {"choice": {"adam": {"nesterov": True}, "sgd": {}}}}, {}, "nesterov=true needs"),
        ({"lr": [1, 2]}, {}, "to choose from the list write {choice: [1, 2]}"),
        ({"lr": 0.1}, {}, "there is nothing to search"),
        ({"lr": {"log": [1e-3, 1]}}, {"num_trials": 0}, "num_trials=0 must be at least 1"),
        ({"lr": {"log": [1e-3, 1]}}, {"num_trials": None}, "num_trials=None must be at least 1"),
        ({"lr": {"log": [1e-3, 1]}}, {"sampler": "annealing"}, "must be one of tpe, gp, cmaes"),
        ({"lr": {"log": [1e-3, 1]}}, {"sampler": "grid"}, "grid cannot try all values of lr"),
        ({"seed": {"int": [0, 20000]}}, {"sampler": "grid"}, "20,001 trials, and at most 10,000"),
        ({"optimizer": {"choice": ["sgd", "adam"]}}, {"sampler": "cmaes"}, "only choices"),
        ({"lr": {"log": [1e-3, 1]}}, {"sampler": "cmaes", "metrics": (("a", "min"), ("b", "max"))}, "one objective"),
        ({"lr": {"log": [1e-3, 1]}}, {"pruner": "asha", "metrics": (("a", "min"), ("b", "max"))}, "by one number"),
        ({"lr": {"log": [1e-3, 1]}}, {"metrics": (("a", "min"),)}, "at least two"),
        ({"lr": {"log": [1e-3, 1]}}, {"metrics": (("a", "min"), ("b", "best"))}, "must be min or max"),
        ({"lr": {"log": [1e-3, 1]}}, {"constraints": {"peak_mem_gib": {"below": 2}}}, "at_most"),
        ({"lr": {"log": [1e-3, 1]}}, {"constraints": {"a": {"at_most": float("nan")}}}, "finite number"),
        ({"lr": {"log": [1e-3, 1]}}, {"constraints": {"a": {"at_most": 1, "at_least": 2}}}, "nothing is at least 2"),
        ({"lr": {"log": [1e-3, 1]}}, {"pruner_warmup": -1}, "pruner_warmup=-1"),
        ({"lr": {"log": [1e-3, 1]}}, {"pruner_patience": 0}, "pruner_patience=0"),
        ({"task.width": {"int": [4, 8]}}, {"task_settings": {"width": 5}}, "--set task.width=5 fixes what the space"),
        ({"lr": {"log": [1e-3, 1]}}, {"points": ({"lr": 2.0},)}, "lr=2.0 does not lie in the space; widen"),
        ({"lr": {"log": [1e-3, 1]}}, {"points": ({"momentun": 0.5},)}, "unknown config key 'momentun'"),
        ({"optimizer": OPTIMIZERS}, {"points": ({"optimizer": "sgd", "beta2": 0.95},)}, "beta2 is not in the space"),
        ({"lr": {"log": [1e-3, 1]}}, {"points": ({"lr": 0.1}, {"lr": 0.2}), "num_trials": 1}, "less than the 2 points"),
    ],
)  # fmt: skip
def test_what_no_trial_can_have(space: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as error:
        search(space, **settings)
    assert words in str(error.value)


def test_a_name_that_is_fixed_and_searched() -> None:
    check_conflicts(["lr"], {"momentum": 0.5})
    with pytest.raises(ValueError, match=r"--set lr=0.1 fixes what the space searches"):
        check_conflicts(["batch_size", "lr"], {"lr": 0.1})


FUNCTION = """
def space(trial):
    lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    if trial.suggest_categorical("optimizer", ["sgd", "adamw"]) == "sgd":
        trial.suggest_categorical("nesterov", [True, False])

def renamed(trial):
    return {"lr": 10 ** trial.suggest_int("exponent", -4, -1), "freeze": ["0.*"]}

def bad(trial):
    return [1]

def worse(trial):
    return {"lr": object()}
"""


def test_a_function_as_the_space(tmp_path: Path) -> None:
    """Its code is a part of the definition: other code is another question."""
    file = tmp_path / "spaces.py"
    file.write_text(FUNCTION)
    sweep = search({"function": f"{file}:space"})
    assert set(sweep.space) == {"function", "sha256"}
    assert Sweep.from_dict(json.loads(json.dumps(sweep.to_dict()))) == sweep
    file.write_text(FUNCTION.replace("1e-4", "1e-3"))
    with pytest.raises(ValueError, match="its code is not what it was"):
        Sweep.from_dict(sweep.to_dict())
    assert search({"function": f"{file}:space"}).fingerprint() != sweep.fingerprint()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nowhere.py:space", "there is no file"),
        ("no_such_module_here:space", "importing it failed: ModuleNotFoundError"),
        ("{file}:nothing", "no function 'nothing' there; there are: space, renamed, bad, worse"),
        ("{file}", "must be package.module:function"),
        ("{broken}:space", "importing it failed: ZeroDivisionError"),
    ],
)
def test_a_function_that_cannot_be_had(tmp_path: Path, spec: str, words: str) -> None:
    file, broken = tmp_path / "spaces.py", tmp_path / "broken.py"
    file.write_text(FUNCTION)
    broken.write_text("1 / 0")
    with pytest.raises(ValueError) as error:
        search({"function": spec.format(file=file, broken=broken)})
    assert words in str(error.value)


def test_a_grid_that_is_not_cut_short() -> None:
    """A grid needs no number of trials; a space that can be counted never asks for more than it holds."""
    space = {"optimizer": {"choice": ["sgd", "adam"]}, "batch_size": {"choice": [16, 32, 64]}}
    assert search(space, sampler="grid", num_trials=None).num_planned == 6
    assert search(space, num_trials=100).num_planned == 6
    assert search(space, num_trials=4).num_planned == 4


def test_nothing_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn(parse_space({"x": {"choice": [[1], None, {"float": [0, 1], "step": 0.1}]}}), 0)


def test_the_types_of_entries() -> None:
    entries = parse_space({"a": 1, "b": {"int": [1, 2]}, "c": {"choice": [1, 2]}})
    assert [type(entry) for entry in entries.values()] == [Fixed, Range, Choice]
