"""Laws: batches, micro-batches, short rests and weights never change a gradient or a mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from toys import Toy, start, stop_at, train

from trainable.data import step_sizes
from trainable.task import Splits, Task

LAWS = settings(max_examples=25, deadline=None)


@dataclass(frozen=True)
class Tokens(Task):
    """Sequences of which only the first tokens count. tokens: (B, 5, 3) float, lengths: (B,) long."""

    lengths: tuple[int, ...] = (5, 1)

    def model(self) -> nn.Module:
        return nn.Linear(3, 1).double()

    def splits(self, seed: int) -> Splits:
        draw = torch.Generator().manual_seed(seed)
        tokens = torch.randn(len(self.lengths), 5, 3, generator=draw, dtype=torch.float64)
        both = (tokens, torch.tensor(self.lengths))
        return Splits(both, both)

    def _mask(self, batch: tuple[Tensor, ...]) -> Tensor:
        return torch.arange(5) < batch[1][:, None]

    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        return (((outputs.squeeze(2) - 1) ** 2) * self._mask(batch)).sum()

    def weight(self, batch: tuple[Tensor, ...]) -> Tensor:
        return self._mask(batch).sum()


def gradient_by_hand(task: Tokens, indices: list[int]) -> list[Tensor]:
    """Of the mean over all tokens that count of these sequences, one by one and without padding."""
    torch.manual_seed(0)
    model = task.model()
    tokens, lengths = task.splits(0).train
    terms = [(model(tokens[i, : lengths[i]]) - 1).square().sum() for i in indices]
    total = max(1, int(lengths[indices].sum()))
    (sum(terms) / total).backward()
    return [parameter.grad for parameter in model.parameters()]


@LAWS
@given(
    lengths=st.lists(st.integers(0, 5), min_size=2, max_size=9).filter(any),
    batch_size=st.integers(1, 10),
    micro_batch=st.none() | st.integers(1, 10),
)
def test_one_step_has_the_gradient_of_its_tokens(lengths: list[int], batch_size: int, micro_batch: int | None) -> None:
    task = Tokens(tuple(lengths))
    run = start(task, batch_size=batch_size, micro_batch=micro_batch, lr=0.1)
    order = next(iter(run.train.epoch(0, 0)))
    tokens = task.splits(0).train[0]
    indices = [int((tokens == row).all(2).all(1).nonzero()[0]) for row in order[0]]
    stop_at(run, 1)
    for parameter, expected in zip(run.state.trained, gradient_by_hand(task, indices), strict=True):
        torch.testing.assert_close(parameter.grad, expected)


@LAWS
@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=9).filter(any),
    eval_batch_size=st.integers(1, 10),
)
def test_evaluation_is_the_mean_over_tokens(lengths: list[int], eval_batch_size: int) -> None:
    task = Tokens(tuple(lengths))
    run, reports = train(task, batch_size=20, lr=0.1, eval_batch_size=eval_batch_size)
    tokens, counts = task.splits(0).val
    with torch.no_grad():
        terms = torch.cat(
            [(run.state.model(tokens[i, : counts[i]]) - 1).square().reshape(-1) for i in range(len(counts))]
        )
    assert reports[-1].metrics["val_loss"] == pytest.approx(terms.mean().item())


@LAWS
@given(num_samples=st.integers(2, 30), batch_size=st.integers(1, 31), micro_batch=st.integers(1, 31))
def test_micro_batches_train_the_same_model(num_samples: int, batch_size: int, micro_batch: int) -> None:
    whole, whole_reports = train(Toy(num_samples), batch_size=batch_size, lr=0.1)
    pieces, reports = train(Toy(num_samples), batch_size=batch_size, micro_batch=micro_batch, lr=0.1)
    for ours, theirs in zip(pieces.state.trained, whole.state.trained, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert reports[0].curves["loss"] == pytest.approx(whole_reports[0].curves["loss"], rel=1e-4)
    assert reports[0].curves["grad_norm"] == pytest.approx(whole_reports[0].curves["grad_norm"], rel=1e-3)


@given(num_samples=st.integers(1, 500), batch_size=st.integers(1, 500), merge_single=st.booleans())
def test_steps_are_all_samples(num_samples: int, batch_size: int, merge_single: bool) -> None:
    sizes = step_sizes(num_samples, batch_size, merge_single)
    assert sum(sizes) == num_samples
    assert all(size == batch_size for size in sizes[:-1])
    assert 1 <= sizes[-1] <= batch_size + merge_single
    if merge_single and num_samples > 1 and batch_size > 1:
        assert 1 not in sizes
