"""The baseline: plain values, of the train part alone, with what the model costs on this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from tests.trainable.toys import Toy
from trainable.config import TrainConfig
from trainable.release import baseline
from trainable.release.baseline import baseline_of, columns_of, some_samples
from trainable.release.drift import compared
from trainable.tasks.digits import Digits


def made(task: Any, train: Any) -> dict[str, Any]:
    found = baseline_of(
        task=task,
        preparing=task.preparing(0),
        train_examples=train,
        test_examples=task.splits(0).val,
        model=task.model().eval(),
        config=TrainConfig(),
        metrics={"loss": {"mean": 1.0}},
        size_bytes=4242,
    )
    return dict(json.loads(json.dumps(found, allow_nan=False)))


def test_it_is_plain_and_says_what_it_saw() -> None:
    task = Digits()
    images = task.splits(0).train[0]
    found = made(task, task.splits(0).train)
    assert list(found["features"]) == [f"input {pixel}" for pixel in range(64)]
    pixel = found["features"]["input 20"]
    assert pixel["mean"] == pytest.approx(images[:, 20].mean().item(), rel=1e-5)
    assert pixel["median"] == pytest.approx(numpy.median(images[:, 20]), rel=1e-5)
    assert sum(pixel["counts"]) == found["num_samples"] == len(images)
    assert (found["size_bytes"], found["metrics"]["loss"]["mean"]) == (4242, 1.0)
    assert found["num_params"] == 64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10
    speed = found["speed"]
    assert list(speed["latency_ms"]) == ["1", "8", "64"]
    assert all(0 < times["p50"] <= times["p95"] for times in speed["latency_ms"].values())
    assert speed["throughput"] == pytest.approx(64_000 / speed["latency_ms"]["64"]["p50"])
    assert speed["machine"]["threads"] == torch.get_num_threads()


def test_the_train_part_has_not_drifted_from_itself() -> None:
    task = Digits()
    train = task.splits(0).train
    found = compared(made(task, train)["features"], columns_of(task, train, task.preparing(0)))
    assert {column.level for column in found} == {"none"}
    assert max(column.psi for column in found) == 0


def test_a_dataset_is_looked_at_sample_by_sample() -> None:
    """The same columns as of its tensors."""
    tensors, loaded = Toy(num_samples=300), Toy(num_samples=300, loaded=True)
    assert not isinstance(loaded.splits(0).train, tuple)
    columns = [columns_of(task, task.splits(0).val, task.preparing(0)) for task in (tensors, loaded)]
    assert columns[0].keys() == columns[1].keys()
    assert [len(values) for values in columns[0].values()] == [len(values) for values in columns[1].values()]
    assert len(some_samples(loaded.splits(0).train, 5)[0]) == 5


def test_of_very_many_samples_some_are_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that follow each other, as texts need them; by a seed, so that the same ones are looked at again."""
    monkeypatch.setattr(baseline, "MOST_ROWS", 1024)
    rows = torch.arange(10_000.0)[:, None]
    found, again, other = (columns_of(Toy(), (rows,), {}, seed)["input 0"] for seed in (0, 0, 1))
    assert numpy.array_equal(found, again)
    assert not numpy.array_equal(found, other)
    assert len(numpy.unique(found)) == 1024
    assert (numpy.diff(found).reshape(-1)[numpy.arange(1023) % 256 != 255] == 1).all()


@dataclass(frozen=True)
class Wrong(Toy):
    def features(self, batch: tuple[Tensor, ...], preparing: Any) -> dict[str, Tensor]:
        return {"square": torch.zeros(len(batch[0]), 2, 2)}


def test_a_column_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match=r"Wrong.features gives 'square' with the shape \(\d+, 2, 2\)"):
        columns_of(Wrong(), Wrong().splits(0).train, {})
