"""A sweep's definition: what it refuses, what it is as plain values, and when two are the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sweeps.sweep import Sweep, describe, split_params
from trainable.config import TrainConfig


def sweep_of(**changes: Any) -> Sweep:
    plain: dict[str, Any] = {
        "name": "asked",
        "question": "lr_scan",
        "task": "digits",
        "train": TrainConfig(threads=1),
        "points": ({"lr": 1e-3}, {"lr": 3e-3}),
    }
    return Sweep(**{**plain, **changes})


def test_there_and_back_through_json() -> None:
    """A resume compares the stored definition with the new one: a tuple that came back as a list, or 1 as 1.0,
    would be a change that nobody made."""
    sweep = sweep_of(
        train=TrainConfig(freeze=("0.*",), lr_multipliers={"2.*": 10}, clip_norm=None, epochs=3),
        task_settings={"width": 32},
        points=({"lr": 0.1 + 0.2, "task.depth": 1}, {"lr": 1e-3, "task.depth": 2}),
        pruner="median",
    )
    back = Sweep.from_dict(json.loads(json.dumps(sweep.to_dict())))
    assert back == sweep
    assert back.fingerprint() == sweep.fingerprint()


@pytest.mark.parametrize(
    "changes",
    [
        {"question": "search"},
        {"train": TrainConfig(threads=2)},
        {"train": TrainConfig(threads=1, seed=1)},
        {"points": ({"lr": 1e-3}, {"lr": 0.0030000000000000005})},
        {"points": ({"lr": 3e-3}, {"lr": 1e-3})},  # the numbers of the trials mean something else
        {"points": ({"lr": 1e-3},)},
        {"task_settings": {"width": 32}},
        {"metric": "val_accuracy"},
        {"mode": "max"},
        {"pruner": "median"},
        {"pruner_startup": 2},
    ],
)
def test_the_fingerprint_tells_what_decides_the_answer(changes: dict[str, Any]) -> None:
    """Two sweeps with one fingerprint give the same answer; a setting left out of it would break that."""
    assert sweep_of(**changes).fingerprint() != sweep_of().fingerprint()
    assert sweep_of(name="other").fingerprint() == sweep_of().fingerprint()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"points": ()}, "the sweep has no trials"),
        ({"points": ({"lr": 1e-3}, {"lr": 0.001})}, "lr=0.001 is asked for twice"),
        ({"points": ({"lrr": 1e-3},)}, "unknown config key 'lrr'"),
        ({"points": ({"lr": -1.0},)}, "lr=-1.0 must be above 0"),
        ({"points": ({"task.widht": 3},)}, "task.widht"),
        ({"points": ({"task.width": 0},)}, "width=0"),
        ({"task": "nope"}, "unknown task 'nope'"),
        ({"mode": "best"}, "mode='best' must be min or max"),
        ({"pruner": "bohb"}, "pruner='bohb' must be one of none, median, asha, hyperband"),
    ],
)
def test_what_it_refuses(changes: dict[str, Any], words: str) -> None:
    """B06: before anything runs; an empty grid elsewhere gave 'pop from empty list'."""
    with pytest.raises(ValueError) as error:
        sweep_of(**changes)
    assert words in str(error.value)


def test_the_config_of_a_trial() -> None:
    """A point wins over what all trials share, and only where it says something."""
    sweep = sweep_of(
        train=TrainConfig(lr=0.5, batch_size=16, epochs=2),
        task_settings={"width": 32, "depth": 1},
        points=({"lr": 1e-3, "task.width": 8, "epochs": 5}, {"lr": 3e-3}),
    )
    config, settings = sweep.trial_config(sweep.points[0])
    assert (config.lr, config.batch_size, config.epochs, settings) == (1e-3, 16, 5, {"width": 8, "depth": 1})
    config, settings = sweep.trial_config(sweep.points[1])
    assert (config.lr, config.epochs, settings) == (3e-3, 2, {"width": 32, "depth": 1})
    assert sweep.epochs == 5
    assert split_params({"lr": 1, "task.width": 2}) == ({"lr": 1}, {"width": 2})


def test_describe() -> None:
    assert describe({"lr": 0.003, "batch_size": 64, "clip_norm": None, "decay_all": True, "optimizer": "sgd"}) == (
        "lr=0.003, batch_size=64, clip_norm=None, decay_all=True, optimizer=sgd"
    )
