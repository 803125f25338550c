"""Faults that products of this kind had when a run was interrupted and went on."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, ClassVar

import pytest
import torch
from toys import Line, Toy, finish, resumed, start, stop_at, through_file, train

from trainable import loop
from trainable.state import StateMismatch

PER_EPOCH = {"batch_size": 8, "lr": 0.01}


def orders(stops: list[int], num_epochs: int, num_samples: int, batch_size: int, **task: Any) -> list[list[int]]:
    """The indices of every step of a run that is stopped and resumed at `stops`."""
    Toy.seen.clear()
    run = start(Toy(num_samples=num_samples, **task), batch_size=batch_size, epochs=num_epochs, lr=0.01)
    for stop in stops:
        stop_at(run, stop)
        run = resumed(run)
    finish(run)
    run.close()
    return [list(step) for step in Toy.seen]


class TestB04OrderOfTheFirstEpochReplayed:
    @pytest.mark.parametrize("loaded", [False, True])
    def test_each_epoch_has_the_order_of_the_unbroken_run(self, loaded: bool) -> None:
        unbroken = orders([], 4, 8, 1, loaded=loaded)
        assert orders([8, 16, 24], 4, 8, 1, loaded=loaded) == unbroken
        epochs = [tuple(step[0] for step in unbroken[first : first + 8]) for first in (0, 8, 16, 24)]
        assert len(set(epochs)) == 4
        assert all(sorted(epoch) == list(range(8)) for epoch in epochs)

    def test_in_a_new_process(self) -> None:
        """What a process prints for epoch 1 does not depend on what it did before."""
        program = "from trainable.seeding import permutation; print(permutation(8, 0, {}).tolist())"
        second = subprocess.run(
            [sys.executable, "-c", program.format(1)], capture_output=True, text=True, check=True
        ).stdout
        run = start(Toy(num_samples=8), batch_size=8, epochs=2, lr=0.01)
        Toy.seen.clear()
        finish(run)
        assert str(Toy.seen[1]) == second.strip()


class TestB08CompiledAndNot:
    """Keys are raw whether or not the model is compiled, so each can go on from the other's checkpoint."""

    def test_both_directions_and_twice(self) -> None:
        settings = {"batch_size": 20, "lr": 0.05, "epochs": 4}
        task = Toy()
        _, reports = train(task, **settings)
        run = start(task, **settings, compile=True)
        losses = [loop.advance(run).metrics["train_loss"]]
        assert not [key for key in through_file(run)["model"] if "_orig_mod" in key]
        for compiled in (False, True, True):
            run = resumed(run, compile=compiled)
            losses.append(loop.advance(run).metrics["train_loss"])
        assert "compile" not in run.notes
        assert losses == pytest.approx([report.metrics["train_loss"] for report in reports], rel=1e-5)


class TestB10ScheduleOneEpochBehind:
    @pytest.mark.parametrize("stop", [None, 1, 2, 3])
    def test_step_decay(self, stop: int | None) -> None:
        settings = {"schedule": "step", "decay_epochs": 2, "decay_factor": 0.1}
        run = start(Line(inputs=(0.001,) * 6), batch_size=6, lr=1.0, epochs=4, **settings)
        reports = []
        if stop is not None:
            reports = stop_at(run, stop)
            run = resumed(run)
        reports += finish(run)
        assert [report.curves["lr"][0] for report in reports] == pytest.approx([1.0, 1.0, 0.1, 0.1])

    @pytest.mark.parametrize("schedule", ["cosine", "one_cycle"])
    @pytest.mark.parametrize("stop", [1, 3, 5, 8])
    def test_schedules_by_step(self, schedule: str, stop: int) -> None:
        settings = {"batch_size": 2, "lr": 1e-4, "epochs": 4, "schedule": schedule, "warmup_steps": 2}
        _, unbroken = train(Line(), **settings)
        run = start(Line(), **settings)
        reports = stop_at(run, stop)
        run = resumed(run)
        reports += finish(run)
        assert [report.curves["lr"] for report in reports] == [report.curves["lr"] for report in unbroken]

    @pytest.mark.parametrize("schedule", ["constant", "step", "cosine", "one_cycle"])
    def test_more_epochs_follow_the_longer_schedule(self, schedule: str) -> None:
        settings = {"batch_size": 2, "lr": 1e-4, "schedule": schedule}
        _, longer = train(Line(), epochs=6, **settings)
        run, _ = train(Line(), epochs=4, **settings)
        run = resumed(run, epochs=6)
        reports = finish(run)
        assert [report.step for report in reports] == [15, 18]
        assert [report.curves["lr"] for report in reports] == [report.curves["lr"] for report in longer[4:]]

    def test_a_finished_run_trains_no_more(self) -> None:
        run, _ = train(Line(), epochs=2, batch_size=6, lr=1e-3)
        run = resumed(run)
        before = run.state.weights_sha256()
        report = loop.advance(run)
        assert report.done
        assert report.step == 2
        assert run.state.weights_sha256() == before


@pytest.mark.filterwarnings("ignore:precision=fp16 on a CPU")
class TestB15ScalerLost:
    settings: ClassVar = {"batch_size": 10, "lr": 0.01, "epochs": 2}

    def test_the_scale_survives(self) -> None:
        run = start(Toy(), **self.settings, precision="fp16", loss_scale=2.0**30)
        loop.advance(run)
        scale = run.state.scaler.get_scale()
        assert scale < 2.0**30  # it overflowed
        assert resumed(run).state.scaler.get_scale() == scale

    def test_growth_goes_on_counting(self) -> None:
        run = start(Toy(), **self.settings, precision="fp16", loss_scale=64.0)
        run.state.scaler.set_growth_interval(4)
        stop_at(run, 3)
        run = resumed(run)
        assert run.state.scaler.get_scale() == 64.0
        stop_at(run, 4)
        assert run.state.scaler.get_scale() == 128.0

    @pytest.mark.parametrize(("before", "after"), [("fp32", "fp16"), ("fp16", "fp32")])
    def test_with_and_without_a_scaler(self, before: str, after: str) -> None:
        run = start(Toy(), **self.settings, precision=before)
        loop.advance(run)
        run = resumed(run, precision=after)
        (report,) = finish(run)
        assert report.diverged is None
        assert run.state.scaler.get_scale() == (65536 if after == "fp16" else 1)


class TestB43NewLearningRate:
    @pytest.mark.parametrize("lr", [3e-3, 1e-3, 3e-4, 1e-4])
    @pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
    def test_the_configuration_decides(self, lr: float, optimizer: str) -> None:
        run = start(Toy(), batch_size=40, epochs=2, lr=3e-3, optimizer=optimizer, momentum=0.9)
        loop.advance(run)
        run = resumed(run, lr=lr, weight_decay=0.5)
        report = loop.advance(run)
        assert report.curves["lr"] == [lr]
        assert {group["lr"] for group in run.state.optimizer.param_groups} == {lr}
        assert max(group["weight_decay"] for group in run.state.optimizer.param_groups) == 0.5

    def test_another_optimizer_is_refused(self) -> None:
        run = start(Toy(), batch_size=40, lr=3e-3, optimizer="sgd")
        loop.advance(run)
        with pytest.raises(StateMismatch, match="optimizer=sgd, the configuration says adamw"):
            resumed(run, optimizer="adamw")


class TestB60PositionInTheEpoch:
    @pytest.mark.parametrize("stops", [[1], [5], [9], [10], [11], [20], [3, 7]])
    @pytest.mark.parametrize("loaded", [False, True])
    def test_every_stop(self, stops: list[int], loaded: bool) -> None:
        reference = orders([], 4, 40, 4, loaded=loaded)
        assert len(reference) == 40
        for first in range(0, 40, 10):
            assert sorted(index for step in reference[first : first + 10] for index in step) == list(range(40))
        assert orders(stops, 4, 40, 4, loaded=loaded) == reference

    def test_with_workers(self) -> None:
        run_settings = {"batch_size": 4, "epochs": 2, "lr": 0.01, "num_workers": 2}
        Toy.seen.clear()
        run = start(Toy(loaded=True), **run_settings)
        stop_at(run, 7)
        run = resumed(run)
        finish(run)
        run.close()
        assert Toy.seen == orders([], 2, 40, 4, loaded=True)


class TestForeignCheckpoints:
    def test_first_differences_are_named(self) -> None:
        run = start(Toy(batch_norm=True), batch_size=20)
        saved = through_file(run)
        with pytest.raises(StateMismatch, match=r"\d+ differences\): .*1\.weight"):
            start(Toy(), batch_size=20).load(saved)

    def test_shape(self) -> None:
        saved = through_file(start(Toy(), batch_size=20))
        saved["model"]["0.weight"] = torch.zeros(8, 7)
        with pytest.raises(StateMismatch, match=r"0\.weight has shape \(8, 7\) in the checkpoint, \(8, 6\)"):
            start(Toy(), batch_size=20).load(saved)

    def test_two_runs_from_one_state_do_not_share_it(self) -> None:
        first = start(Toy(), batch_size=10, epochs=3, optimizer="adamw")
        loop.advance(first)
        second = start(Toy(), batch_size=10, epochs=3, optimizer="adamw")
        second.load(first.state.save())
        assert [report.metrics for report in finish(first)] == [report.metrics for report in finish(second)]
        assert first.state.weights_sha256() == second.state.weights_sha256()
