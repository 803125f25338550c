"""Finding a task by name, its settings as its fields declare them, its default space, and what it freezes."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.trainable.toys import Toy, start, train
from trainable.config import TrainConfig
from trainable.declared import as_declared
from trainable.task import Task, absolute_settings, load_task
from trainable.tasks.digits import Digits

USERS_FILE = """
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Optional

import torch
from trainable.task import Splits, Task


@dataclass(frozen=True)
class Mine(Task):
    data: Path
    width: int = 8
    rate: float = 0.5
    flag: bool = False
    label: str = "a"
    sizes: tuple[int, ...] = (8, 8)
    pair: tuple[int, float] = (1, 0.5)
    limit: Optional[int] = None
    either: int | str = 1
    kind: Literal["relu", "tanh"] = "relu"
    plain: tuple = ()
    cache: Path | None = None

    def model(self): return torch.nn.Linear(1, 1)
    def splits(self, seed): return Splits((torch.ones(4, 1),), (torch.ones(4, 1),))
    def loss(self, outputs, batch): return outputs.sum()
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(USERS_FILE)
    return f"{tmp_path / 'mine.py'}:Mine"


def test_fields_of_the_usual_types_take_what_yaml_gives(mine: str) -> None:
    task: Any = load_task(
        mine,
        {
            "data": "~/here",
            "width": 1e3,
            "rate": 2,
            "flag": True,
            "sizes": [1, 2, 3],
            "pair": [3, 4],
            "limit": 7,
            "either": "x",
            "kind": "tanh",
            "plain": [1, "b"],
        },
    )
    assert task.data == Path.home() / "here"
    assert (task.width, type(task.width)) == (1000, int)
    assert (task.rate, type(task.rate)) == (2.0, float)
    assert (task.sizes, task.pair, type(task.pair[1])) == ((1, 2, 3), (3, 4.0), float)
    assert (task.flag, task.limit, task.either, task.kind, task.plain) == (True, 7, "x", "tanh", (1, "b"))
    assert json.loads(json.dumps(task.settings()))["data"] == str(Path.home() / "here")  # plain values
    assert load_task(mine, task.settings()) == task
    hash(task)  # a process keeps the samples of a task by the task itself


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("width", "wide", "task.width='wide' must be a whole number"),
        ("width", 1.5, "task.width=1.5 must be a whole number"),
        ("width", True, "task.width=True must be a whole number"),
        ("width", None, "task.width=None must be a whole number"),
        ("rate", "fast", "task.rate='fast' must be a number"),
        ("rate", False, "task.rate=False must be a number"),
        ("flag", 1, "task.flag=1 must be true or false"),
        ("label", 3, "task.label=3 must be a text"),
        ("sizes", 8, r"task.sizes=8 must be a list, e.g. \[1, 2\]"),
        ("sizes", [1, "b"], r"task.sizes\[1\]='b' must be a whole number"),
        ("pair", [1], r"task.pair=\[1\] must have 2 entries"),
        ("limit", "many", "task.limit='many' must be a whole number, or null to switch it off"),
        ("either", [1], r"task.either=\[1\] must be a whole number, or must be a text"),
        ("kind", "gelu", "task.kind='gelu' must be one of relu, tanh"),
        ("data", 5, "task.data=5 must be a path"),
        ("widht", 3, "did you mean task.width"),
    ],
)
def test_a_wrong_type_is_refused_in_words(mine: str, name: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_task(mine, {"data": "x", name: value})


def test_a_missing_setting_is_named_with_how_to_say_it(mine: str) -> None:
    with pytest.raises(ValueError, match=r"needs task.data: say --set task.data=\.\.\."):
        load_task(mine)


def test_a_type_that_only_type_checkers_see(tmp_path: Path) -> None:
    text = USERS_FILE.replace("    width: int = 8", '    width: "Unseen" = 8')
    (tmp_path / "hidden.py").write_text(text)
    with pytest.raises(ValueError, match="the type of a field cannot be read: name 'Unseen' is not defined"):
        load_task(f"{tmp_path / 'hidden.py'}:Mine", {"data": "x"})


def test_a_task_that_may_change_is_refused(tmp_path: Path) -> None:
    """The samples of a task are kept by the task itself, so it must stay what it is."""
    text = USERS_FILE.replace("sizes: tuple[int, ...] = (8, 8)", "sizes: list[int] = field(default_factory=list)")
    (tmp_path / "lists.py").write_text(text)
    with pytest.raises(ValueError, match="the field sizes is a list, which may change: make it a tuple"):
        load_task(f"{tmp_path / 'lists.py'}:Mine", {"data": "x", "sizes": [1, 2]})
    (tmp_path / "thawed.py").write_text(USERS_FILE.replace("@dataclass(frozen=True)", "@dataclass"))
    with pytest.raises(ValueError, match=r"must be a class that .* is marked @dataclass\(frozen=True\)"):
        load_task(f"{tmp_path / 'thawed.py'}:Mine", {"data": "x"})


def test_paths_among_settings_mean_the_same_everywhere(mine: str, launch_folder: Path) -> None:
    found = absolute_settings(mine, {"data": "a/b.csv", "cache": "c", "label": "d", "width": 3})
    assert found == {
        "data": str(launch_folder / "a/b.csv"),
        "cache": str(launch_folder / "c"),
        "label": "d",
        "width": 3,
    }
    assert absolute_settings(mine, {"cache": None}) == {"cache": None}


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()))
def test_a_value_of_a_declared_type_stays_as_it_is(value: Any) -> None:
    """The union holds every plain type, so each value must keep its own: True is not 1, and 1 is not 1.0."""
    found = as_declared("x", value, bool | int | float | str | None)
    assert found == value
    assert type(found) is type(value)


def test_every_class_is_where_its_name_says() -> None:
    from trainable.task import known_tasks

    given_settings: dict[str, dict[str, Any]] = {
        "table": {"path": "x.csv", "target": "y"},
        "image_folder": {"root": "x"},
    }
    for name in known_tasks():
        task = load_task(name, given_settings.get(name))
        assert task.__class__.__name__ == "".join(word.capitalize() for word in name.split("_"))
        assert task.space(), f"{name} has no default space"


def test_naming_a_task_imports_no_torch(tmp_path: Path) -> None:
    import subprocess

    from tests.helpers.drivers import environment

    code = """
import sys
from trainable.task import known_tasks, load_task
settings = {"table": {"path": "x.csv", "target": "y"}, "image_folder": {"root": "x"}}
for name in known_tasks():
    load_task(name, settings.get(name)).space()
assert not {"torch", "torchvision", "sklearn", "pandas", "PIL", "ray", "optuna"} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_spaces_of_a_task() -> None:
    assert Toy().space() == {}
    space = Digits().space()
    assert space["lr"] == {"log": [1e-4, 1e-1]}
    assert set(space) - set(TrainConfig.names()) == {"task.width", "task.depth", "task.dropout"}


@dataclass(frozen=True)
class HalfFrozen(Toy):
    """Its first layer and its BatchNorm stay as they are."""

    batch_norm: bool = True

    def frozen(self) -> tuple[str, ...]:
        return ("0", "1")


def test_what_the_task_freezes_stays_buffers_too() -> None:
    run = start(HalfFrozen(), lr=0.1)
    before = {name: tensor.clone() for name, tensor in run.state.model.state_dict().items()}
    run.close()
    run, _ = train(HalfFrozen(), lr=0.1, epochs=2)
    moved = {name for name, tensor in run.state.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == {"4.weight", "4.bias"}
    norm = run.state.model.get_submodule("1")
    assert isinstance(norm, nn.BatchNorm1d)
    assert not norm.training


def test_config_and_task_freeze_together() -> None:
    with pytest.raises(ValueError, match="nothing is left to train"):
        start(HalfFrozen(), freeze=["4"])


def test_a_pattern_of_the_task_that_names_nothing() -> None:
    @dataclass(frozen=True)
    class Wrong(Toy):
        def frozen(self) -> tuple[str, ...]:
            return ("backbone.*",)

    with pytest.raises(ValueError, match=r"freeze pattern 'backbone\.\*' matches nothing"):
        start(Wrong())


def test_source_is_part_of_the_fingerprint() -> None:
    from dataclasses import replace

    splits = Toy().splits(0)
    assert replace(splits, source="a").fingerprint() != replace(splits, source="b").fingerprint()


def test_a_task_is_abstract() -> None:
    with pytest.raises(TypeError):
        Task()  # type: ignore[abstract]
