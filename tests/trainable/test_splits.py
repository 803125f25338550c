"""Splits are disjoint, complete, stratified, and the same for the same seed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainable.data import stratified_split
from trainable.tasks.digits import Digits


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(-2, 5), min_size=1, max_size=120),
    parts=st.lists(st.integers(1, 10), min_size=1, max_size=4),
    seed=st.integers(0, 2**62),
)
def test_laws(labels: list[int], parts: list[int], seed: int) -> None:
    shares = {f"part{number}": part / sum(parts) for number, part in enumerate(parts)}
    classes = torch.tensor(labels)
    split = stratified_split(classes, shares, seed)
    everything = torch.cat(list(split.values())).tolist()
    assert sorted(everything) == list(range(len(labels)))  # complete, and none twice
    for label in set(labels):
        count = labels.count(label)
        for name, share in shares.items():
            assert abs((classes[split[name]] == label).sum().item() - share * count) <= 1
    again = stratified_split(classes, shares, seed)
    assert all(torch.equal(split[name], again[name]) for name in shares)


def test_another_seed_gives_another_split() -> None:
    labels = torch.arange(300) % 3
    first, second = (stratified_split(labels, {"a": 0.5, "b": 0.5}, seed) for seed in (0, 1))
    assert not torch.equal(first["a"], second["a"])


def test_shares_must_add_up() -> None:
    with pytest.raises(ValueError, match="must add up to 1"):
        stratified_split(torch.zeros(4), {"a": 0.5, "b": 0.4}, 0)


def test_digits_record_their_indices() -> None:
    task = Digits()
    splits = task.splits(3)
    num_test = len(task.test(3)[0])
    train, val = (set(splits.indices[name]) for name in ("train", "val"))
    assert len(train) + len(val) + num_test == 1797
    assert (len(train) / 1797, len(val) / 1797) == pytest.approx((0.7, 0.15), abs=0.003)
    assert not train & val
    assert splits.fingerprint() == task.splits(3).fingerprint() != task.splits(4).fingerprint()
