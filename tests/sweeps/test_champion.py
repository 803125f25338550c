"""Who is champion, and what is said of it: pure functions of what two acceptances tell."""

from __future__ import annotations

import re
from typing import Any

import numpy
import pytest

from sweeps.release.champion import Side, standing
from sweeps.release.registry import default_model_name
from sweeps.release.words import openings_words, validation_words
from trainable.release.outcomes import Outcomes

THEM = "the champion (version 1)"


def side(hits: list[int], *, mode: str = "max", fingerprint: str = "f", outcomes: bool = True) -> Side:
    values = numpy.array(hits, dtype=float)
    found = Outcomes(numpy.ones(len(values)), {"score": values}, len(values))
    told = {
        "metric": {"name": "score", "mode": mode},
        "test": {"fingerprint": fingerprint, "metrics": found.metrics()},
    }
    return Side(told, found if outcomes else None)


GOOD, POOR = [1] * 90 + [0] * 10, [1] * 60 + [0] * 40


@pytest.mark.parametrize(
    ("ours", "theirs", "alias", "words"),
    [
        (side(GOOD), side(POOR), "champion", "0.9 against 0.6 .* better, which is more than noise"),
        (side(POOR), side(GOOD), "challenger", "worse, which is more than noise"),
        (side(POOR, mode="min"), side(GOOD, mode="min"), "champion", "better, which is more than noise"),
        (side([*GOOD[:-1], 1]), side(GOOD), "champion", "better, which is within the noise"),
        (side(GOOD), side(GOOD[::-1]), "challenger", "no better"),
        (side(GOOD), side(POOR, fingerprint="g"), "challenger", "tested on other samples"),
        (side(GOOD), side(POOR, outcomes=False), "champion", "the outcomes of each sample are gone"),
        (side(GOOD), side([1] * 30 + [0] * 20), "champion", "measured in other units"),
        (side(GOOD), None, "challenger", "does not say on which test samples"),
    ],
)
def test_better_on_the_same_samples_is_champion(ours: Side, theirs: Side | None, alias: str, words: str) -> None:
    found = standing(ours, theirs, THEM)
    assert found.alias == alias
    assert re.search(words, found.why), found.why


def test_another_metric_is_no_ground() -> None:
    theirs = side(POOR)
    del theirs.told["test"]["metrics"]["score"]
    assert "has no test score" in standing(side(GOOD), theirs, THEM).why


def told(val: float, *, mode: str = "max", val_ends: tuple[float, float] = (0.0, 0.0)) -> dict[str, Any]:
    test = {"mean": 0.8, "low": 0.75, "high": 0.85, "level": 0.95}
    beside = {"mean": val, "low": val_ends[0] or val, "high": val_ends[1] or val}
    return {
        "metric": {"name": "score", "mode": mode},
        "test": {"metrics": {"score": test}},
        "val": {"metrics": {"score": beside}},
    }


@pytest.mark.parametrize(
    ("val", "mode", "word"),
    [
        (0.78, "max", "about right"),
        (0.9, "max", "optimistic"),
        (0.7, "max", "pessimistic"),
        (0.9, "min", "pessimistic"),
        (0.7, "min", "optimistic"),
    ],
)
def test_validation_beside_the_interval_of_the_test(val: float, mode: str, word: str) -> None:
    assert f"validation was {word}" in validation_words(told(val, mode=mode))


def test_few_validation_samples_may_be_off_by_chance() -> None:
    assert "may be chance" in validation_words(told(0.9, val_ends=(0.84, 0.95)))
    assert "may be chance" not in validation_words(told(0.9, val_ends=(0.86, 0.95)))


def test_each_look_is_counted() -> None:
    looks = [{"time": f"2026-01-0{day}T10:00:00+00:00", "trial": day} for day in (1, 2, 3)]
    (first,) = openings_words({"openings": looks[:1], "opened_by_others": []})
    assert "for the first time by this sweep" in first
    third, others = openings_words(
        {"openings": looks, "opened_by_others": [{"sweep": "a"}, {"sweep": "b"}, {"sweep": "a"}]}
    )
    assert "for time 3" in third
    assert "2026-01-01 10:00 for trial 1, 2026-01-02 10:00 for trial 2" in third
    assert "opened 3 time(s) by other sweeps of this folder: a, b" in others


@pytest.mark.parametrize(
    ("task", "settings", "name"),
    [
        ("digits", {}, "digits"),
        ("table", {"path": "/data/house prices.csv"}, "table-house-prices"),
        ("char_lm", {"path": None}, "char_lm"),
        ("/home/me/my_task.py:Sine", {}, "sine"),
    ],
)
def test_a_model_is_called_after_its_task_and_file(task: str, settings: dict[str, Any], name: str) -> None:
    assert default_model_name(task, settings) == name
