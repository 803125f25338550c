"""Faults that products of this kind had in the step and in evaluation; the right values were worked out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn
from toys import Line, Toy, config, finish, start, stop_at, train, weight_of

from trainable import loop
from trainable.task import Splits, Task


class TestB01LastShortWindow:
    """The last, shorter window of micro-batches is divided by what is in it."""

    @pytest.mark.parametrize("micro_batch", [2, 6, None, 4, 1])
    def test_gradient_and_weight_of_the_full_batch(self, micro_batch: int | None) -> None:
        # 6 samples are less than the 8 of a full step: 3 micro-batches of an allowed 4.
        run, (report,) = train(Line(), lr=0.01, batch_size=8, micro_batch=micro_batch)
        assert report.curves["grad_norm"] == pytest.approx([30.3333], abs=1e-4)  # 2 * (1 + 4 + ... + 36) / 6
        assert weight_of(run) == pytest.approx(0.696667, abs=1e-6)


class TestB02WindowsAndSchedule:
    """Nothing is dropped or leaked at the end of an epoch; the schedule moves once an optimizer step."""

    def test_updates_and_schedule_steps(self) -> None:
        task = Line(inputs=(0.001,) * 40)
        run, reports = train(task, lr=1.0, batch_size=16, micro_batch=4, epochs=2, schedule="one_cycle")
        assert run.state.progress.updates == 6  # 3 an epoch: 16, 16 and 8 samples
        assert [len(report.curves["lr"]) for report in reports] == [3, 3]
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=6)
        expected = []
        for _ in range(6):
            expected.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        assert reports[0].curves["lr"] + reports[1].curves["lr"] == pytest.approx(expected)

    def test_decay_by_half_at_every_step_of_one(self) -> None:
        # One step an epoch, so that a decay an epoch is one a step: 1, 1/2, ... 1/32 are used, 1/64 would be next.
        task = Line(inputs=(0.001,) * 40)
        settings = {"schedule": "step", "decay_epochs": 1, "decay_factor": 0.5}
        _, reports = train(task, lr=1.0, batch_size=40, micro_batch=4, epochs=6, **settings)
        assert [report.curves["lr"] for report in reports] == [[0.5**epoch] for epoch in range(6)]

    def test_window_larger_than_the_epoch(self) -> None:
        run, (report,) = train(Line(), lr=0.01, batch_size=64, micro_batch=4)
        assert len(report.curves["loss"]) == 1
        assert weight_of(run) != 1.0

    @pytest.mark.parametrize("name", ["micro_batch", "batch_size"])
    def test_less_than_one_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"{name}=0 must be at least 1"):
            config(**{name: 0})


@dataclass(frozen=True)
class Half(Task):
    """p = 1 at first; the gradient of its loss is 0.5, or infinite while `overflowing` is among the inputs."""

    inputs: tuple[float, ...] = (0.5,)

    def model(self) -> nn.Module:
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        return model

    def splits(self, seed: int) -> Splits:
        train = torch.tensor(self.inputs).reshape(-1, 1)
        return Splits((train,), (torch.ones(1, 1),))

    def predict(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        (weight,) = model.parameters()
        return weight * batch[0]  # in fp32, whatever autocast does to matrix products

    def loss(self, outputs: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return outputs.sum()


@pytest.mark.filterwarnings("ignore:precision=fp16 on a CPU")
class TestB05ClippingUnderAScaler:
    """Gradients are unscaled once, then clipped; a skipped step still updates the scaler."""

    fp16: ClassVar = {"precision": "fp16", "lr": 1.0, "clip_norm": 1.0}

    def test_a_small_gradient_is_not_clipped(self) -> None:
        run, (report,) = train(Half(), batch_size=1, **self.fp16)
        assert weight_of(run) == 0.5
        assert report.curves["grad_norm"] == [0.5]

    def test_b_accumulation_unscales_once_a_step(self) -> None:
        run, reports = train(Half((0.5, 0.5)), batch_size=2, micro_batch=1, epochs=2, **self.fp16)
        assert weight_of(run) == 0.0
        assert reports[-1].curves["grad_norm_clipped"] == [0.5]

    def test_c_overflow_skips_one_step_and_halves_the_scale(self) -> None:
        # 1e35 times the scale is more than fp32 holds; 0.5 is not. The order of the samples is known.
        run = start(Half((1e35, 0.5)), batch_size=1, report_steps=1, schedule="cosine", **self.fp16)
        order = [batch[0].item() for batch in run.train.epoch(0, 0)]
        weight = 1.0
        for value in order:
            lr = 0.5 * (1 + math.cos(math.pi * run.state.progress.updates / 2))
            report = loop.advance(run)
            assert report.curves["lr"] == pytest.approx([lr])
            if value == 0.5:
                weight -= lr * 0.5
            assert weight_of(run) == pytest.approx(weight)
        assert run.state.scaler.get_scale() == 32768
        assert run.state.progress.updates == 1
        assert run.state.progress.step == 2

    def test_a_step_without_any_gradient(self) -> None:
        run, (report,) = train(Unmoved(), batch_size=2, epochs=1, **self.fp16)
        assert report.diverged is None
        assert run.state.scaler.get_scale() == 65536
        assert weight_of(run) == 1.0


@dataclass(frozen=True)
class Unmoved(Line):
    """A loss that no parameter has a part in."""

    def predict(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return batch[0]


@dataclass(frozen=True)
class FixedLosses(Line):
    """Each sample's loss is the sample; it is a hit where that is 1."""

    val_losses: tuple[float, ...] = (1.0,) * 8 + (4.0,)

    def loss(self, outputs: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return batch[0].sum() + 0 * outputs.sum()

    def metrics(self, outputs: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
        return {"hits": (batch[0] == 1).sum()}


class TestB12MeanOfMeans:
    """The validation loss is one mean over all samples, whatever the batches."""

    @pytest.mark.parametrize("micro_batch", [None, 1])
    @pytest.mark.parametrize("eval_batch_size", [1, 3, 4, 9, None])
    def test_nine_samples(self, eval_batch_size: int | None, micro_batch: int | None) -> None:
        task = FixedLosses()
        _, (report,) = train(task, batch_size=2, eval_batch_size=eval_batch_size, micro_batch=micro_batch)
        assert report.metrics["val_loss"] == pytest.approx(1.3333, abs=1e-4)
        assert report.metrics["val_hits"] == pytest.approx(8 / 9)

    @pytest.mark.parametrize("batch_size", [1, 4, 6])
    def test_the_training_loss_too(self, batch_size: int) -> None:
        _, (report,) = train(FixedLosses(), batch_size=batch_size)
        assert report.metrics["train_loss"] == pytest.approx(3.5)  # the mean of 1 to 6


class TestB28OneSampleLeftOver:
    """BatchNorm cannot train on one sample: the rest joins the step before it, and that is said."""

    @pytest.mark.parametrize(("batch_size", "merged"), [(4, True), (8, True), (16, True), (5, False)])
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_every_sample_is_trained_on(self, batch_size: int, merged: bool, seed: int) -> None:
        Toy.seen.clear()
        task = Toy(num_samples=17, batch_norm=True)
        _, (report,) = train(task, batch_size=batch_size, eval_batch_size=19, seed=seed)
        assert sorted(index for step in Toy.seen for index in step) == list(range(17))
        assert ("merged_rest" in report.notes) is merged
        assert report.notes["train_samples"] == "17"
        assert math.isfinite(report.metrics["val_loss"])

    def test_nor_do_micro_batches_leave_one_alone(self) -> None:
        Toy.seen.clear()
        train(Toy(num_samples=18, batch_norm=True), batch_size=9, micro_batch=4)
        assert [len(step) for step in Toy.seen] == [4, 5, 4, 5]

    def test_without_batch_norm_one_sample_is_a_step(self) -> None:
        run = start(Toy(num_samples=17), batch_size=8)
        stop_at(run, 2)
        assert len(finish(run)[0].curves["loss"]) == 3
        run.close()
