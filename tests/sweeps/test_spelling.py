"""What MLflow is told, and the one rule for what it would refuse; its own validation is the judge."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mlflow.entities import Metric, Param, RunTag
from mlflow.utils.validation import _validate_batch_log_data

from sweeps.tracking.spelling import LONGEST_NAME, number_of, points, renamed, spelled, value_text

TABLE = {
    "val_loss": "val_loss",
    "task.opt.lr": "task.opt.lr",
    "a b": "a b",
    "a/b": "a/b",
    "a:b": "a:b",
    "准确率": "准确率",
    "acc@1": "acc_1",
    "f1(macro)": "f1_macro_",
    "a//b": "a__b",
    "/a": "_a",
    "a/": "a_",
    "../a": "___a",
    "..": "__",
    ".": "_",
    "./a": "__a",
    "": "_",
    "a\x00b\n": "a_b_",
    "lr_multipliers.2.*": "lr_multipliers.2._",
}


@pytest.mark.parametrize("name", TABLE)
def test_names(name: str) -> None:
    """B25: each of these is a name that somebody's task gave, or could give."""
    assert spelled([name]) == {name: TABLE[name]}
    assert renamed([name]) == ({} if TABLE[name] == name else {TABLE[name]: name})


def test_two_names_never_become_one() -> None:
    found = spelled(["acc@1", "acc_1", "acc(1"])
    assert found["acc_1"] == "acc_1"
    assert found["acc(1"].startswith("acc_1-")
    assert len(set(found.values())) == 3
    long = spelled(["x" * 300, "x" * 301])
    assert all(len(text) == LONGEST_NAME for text in long.values())
    assert len(set(long.values())) == 2


@settings(deadline=None)
@given(st.lists(st.text(max_size=400), max_size=6), st.text(max_size=50))
def test_mlflow_takes_every_name_and_value(names: list[str], value: str) -> None:
    found = spelled(names)
    assert set(found) == set(names)
    assert len(set(found.values())) == len(set(names))
    text = value_text(value * 200)
    _validate_batch_log_data(
        metrics=[Metric(name, 1.0, 0, 0) for name in found.values()],
        params=[Param(name, text) for name in found.values()],
        tags=[RunTag(f"steadysweep.name.{name}", text) for name in found.values()],
    )
    text.encode()


def test_values() -> None:
    assert [value_text(value) for value in (None, True, 0.1 + 0.2, ["a"])] == [
        "None", "True", "0.30000000000000004", "['a']",
    ]  # fmt: skip
    assert value_text("x" * 7000) == "x" * 5000 + "... (7000 characters, whole in config.json)"
    assert value_text(torch.tensor([1.0])) == "tensor([1.])"


@pytest.mark.parametrize("value", [None, "fast", math.nan, math.inf, -math.inf, torch.ones(2), torch.tensor(math.nan)])
def test_what_is_no_number(value: object) -> None:
    """B47: inf came back as 1.8e308, NaN as 0, and None ended the run."""
    assert number_of(value) is None


def test_numbers() -> None:
    assert [number_of(value) for value in (1, True, 0.5, torch.tensor(0.25), 2**70)] == [1, 1, 0.5, 0.25, 2**70]
    assert number_of(10**400) is None


def test_the_epoch_comes_last() -> None:
    """Its presence says that the whole report is there."""
    report = {
        "time_ms": 5, "step": 2, "first_step": 0, "epoch": 1.0, "metrics": {"acc@1": 0.5, "bad": None},
        "curves": {"loss": [1.0, math.nan]}, "samples_per_s": None, "data_wait_share": 0.0, "peak_mem_gib": 0.0,
    }  # fmt: skip
    assert list(points(report)) == [
        ("loss", 1.0, 5, 1),
        ("acc_1", 0.5, 5, 2),
        ("data_wait_share", 0.0, 5, 2),
        ("peak_mem_gib", 0.0, 5, 2),
        ("epoch", 1.0, 5, 2),
    ]
