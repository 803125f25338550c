"""When a run ends: early, diverged, or at its end; and what the best was."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toys import Line, Scripted, Toy, finish, resumed, start, train

from trainable import loop
from trainable.task import Splits

SETTINGS: dict[str, Any] = {"batch_size": 6, "lr": 1e-3, "epochs": 10}


def test_early_stopping_counts_evaluations_without_a_new_best() -> None:
    script = (3.0, 2.0, 2.5, 1.0, 1.5, 1.0, 1.2, 0.5, 0.4, 0.3)
    run, reports = train(Scripted(script=script), **SETTINGS, patience=3)
    assert len(reports) == 7
    assert reports[-1].done
    assert (run.state.best.value, run.state.best.step) == (1.0, 4)
    assert reports[-1].notes["stopped_early"] == "no better val_loss for 3 evaluations"


def test_more_patience_goes_on_from_there() -> None:
    script = (3.0, 2.0, 2.5, 1.0, 1.5, 1.0, 1.2, 0.5, 0.4, 0.3)
    run, _ = train(Scripted(script=script), **SETTINGS, patience=3)
    still = loop.advance(resumed(run))
    assert (still.done, still.step) == (True, 7)
    assert "stopped_early" in still.notes
    again = resumed(run, patience=9)
    assert [report.step for report in finish(again)] == [8, 9, 10]
    assert again.state.best.value == pytest.approx(0.3)


def test_evaluation_every_third_report_and_at_the_last() -> None:
    _, reports = train(Line(), **SETTINGS, eval_every=3)
    evaluated = [report.number for report in reports if "val_loss" in report.metrics]
    assert evaluated == [3, 6, 9, 10]


@pytest.mark.parametrize(("report_steps", "steps"), [(None, [4, 8]), (3, [3, 6, 8]), (5, [5, 8]), (99, [8])])
def test_reports_fall_where_asked(report_steps: int | None, steps: list[int]) -> None:
    _, reports = train(Toy(), batch_size=10, epochs=2, report_steps=report_steps)
    assert [report.step for report in reports] == steps
    assert [report.first_step for report in reports] == [0, *steps[:-1]]
    assert [len(report.curves["loss"]) for report in reports] == [
        after - before for before, after in zip([0, *steps], steps, strict=False)
    ]
    assert [report.epoch for report in reports] == [step / 4 for step in steps]


@pytest.mark.parametrize("clip_norm", [None, 1e30])
def test_divergence_ends_the_run_at_its_report(clip_norm: float | None) -> None:
    _, reports = train(Line(), **{**SETTINGS, "batch_size": 1, "lr": 1e6, "clip_norm": clip_norm})
    last = reports[-1]
    assert last.done
    assert last.diverged
    assert "smaller lr" in last.diverged
    assert all(report.diverged is None for report in reports[:-1])
    assert last.step < last.total_steps


@dataclass(frozen=True)
class Exploding(Line):
    """A finite loss and a finite gradient, but an update that no weight survives."""

    def loss(self, outputs: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        return outputs.sum()


def test_the_last_update_before_a_report_counts_too() -> None:
    """Its loss is never seen, but a checkpoint would hold its weights."""
    _, (report,) = train(Exploding(inputs=(1e30,)), batch_size=1, lr=1e30, eval_every=9, report_steps=1)
    assert math.isfinite(report.curves["loss"][0])
    assert math.isfinite(report.curves["grad_norm"][0])
    assert report.diverged
    assert "a weight was no longer finite after step 0" in report.diverged


@dataclass(frozen=True)
class BadVal(Line):
    def loss(self, outputs: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        return (outputs**2).sum() * (1.0 if outputs.requires_grad else math.nan)


def test_a_validation_loss_that_is_no_number() -> None:
    run, (report,) = train(BadVal(), **SETTINGS)
    assert report.diverged == "the validation loss became nan at step 1"
    assert run.state.best.value is None


@dataclass(frozen=True)
class NoGradient(Line):
    """The loss is finite, its gradient is not (the square root at 0)."""

    inputs: tuple[float, ...] = (0.0, 0.0)

    def loss(self, outputs: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        return outputs.square().sqrt().sum()


def test_a_gradient_that_is_no_number() -> None:
    _, (report,) = train(NoGradient(), **SETTINGS)
    assert report.diverged
    assert report.diverged.startswith("the gradient norm became nan at step 0")


@pytest.mark.filterwarnings("ignore:precision=fp16 on a CPU")
def test_with_a_scaler_no_finite_gradient_at_all() -> None:
    _, (report,) = train(NoGradient(), **SETTINGS, precision="fp16")
    assert report.diverged
    assert "at any loss scale" in report.diverged


def test_a_new_run_depends_on_nothing_before_it() -> None:
    """A trial in a reused process equals one in a fresh process, bit for bit."""
    first = train(Toy(dropout=0.4, augmenting=True), batch_size=7, epochs=2, seed=5)[0].state.weights_sha256()
    torch.manual_seed(99)
    train(Toy(batch_norm=True), batch_size=3, lr=1e9, seed=1)
    nn.Linear(3, 3)
    again = train(Toy(dropout=0.4, augmenting=True), batch_size=7, epochs=2, seed=5)[0].state.weights_sha256()
    other = train(Toy(dropout=0.4, augmenting=True), batch_size=7, epochs=2, seed=6)[0].state.weights_sha256()
    assert first == again != other


def test_no_samples() -> None:
    with pytest.raises(ValueError, match="0 train and 20 val samples; both need some"):
        start(Toy(num_samples=0))


@dataclass(frozen=True)
class Ragged(Toy):
    def splits(self, seed: int) -> Splits:
        parts = super().splits(seed)
        return Splits((parts.train[0], parts.train[1][:-1], parts.train[2]), parts.val)


def test_samples_and_labels_that_do_not_match() -> None:
    with pytest.raises(ValueError, match=r"differ in length: \[40, 39, 40\]"):
        start(Ragged())
