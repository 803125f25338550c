"""Out of memory: the same step again in smaller pieces, with the same result, wherever memory ran out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from toys import Toy, finish, resumed, start, stop_at, train

from trainable import loop, memory


@dataclass(frozen=True)
class Tight(Toy):
    """A device with room for `room` samples in training and `eval_room` in evaluation."""

    room: int = 1000
    eval_room: int = 1000
    dropout: float = 0.3
    backward: bool = False  # memory runs out in backward rather than in forward
    error: Any = torch.OutOfMemoryError

    def predict(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        outputs = super().predict(model, batch)  # dropout and BatchNorm have done their work by now
        if len(batch[0]) > (self.room if model.training else self.eval_room):
            if not self.backward:
                raise self.error("CUDA out of memory (simulated)")
            outputs.register_hook(self._fail)
        return outputs

    def _fail(self, gradient: torch.Tensor) -> None:
        raise self.error("CUDA out of memory (simulated)")


@pytest.fixture(autouse=True)
def _no_memory_of_other_tests() -> Iterator[None]:
    memory.forget()
    yield
    memory.forget()


SETTINGS: dict[str, Any] = {"batch_size": 16, "lr": 0.05, "epochs": 2, "optimizer": "adamw", "ema_decay": 0.9}


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError, MemoryError])
def test_the_result_is_that_of_the_small_micro_batch(batch_norm: bool, backward: bool, error: Any) -> None:
    """Generators and buffers that the failed tries used are put back: the rescue leaves no trace."""
    with pytest.warns(UserWarning, match="out of memory with 16 samples at a time; going on with 8"):
        run, reports = train(Tight(room=4, backward=backward, batch_norm=batch_norm, error=error), **SETTINGS)
    asked, asked_reports = train(Toy(dropout=0.3, batch_norm=batch_norm), **SETTINGS, micro_batch=4)
    assert run.state.micro_batch == 4
    assert run.state.weights_sha256() == asked.state.weights_sha256()
    assert [report.curves for report in reports] == [report.curves for report in asked_reports]
    assert reports[0].notes["micro_batch"] == "4, after running out of memory at 8"
    assert ("batch_norm" in reports[0].notes) is batch_norm


GIB = 2**30


def test_the_gradient_is_that_of_the_full_batch() -> None:
    with pytest.warns(UserWarning, match="out of memory"):
        rescued, _ = train(Tight(room=3, dropout=0.0), **SETTINGS)
    plain, _ = train(Toy(), **SETTINGS)
    for ours, theirs in zip(rescued.state.trained, plain.state.trained, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fails_at", [1, 2, 4])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.filterwarnings("ignore:precision=fp16 on a CPU")
def test_in_the_optimizer_step(fails_at: int, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Toy()
    asked = start(task, **SETTINGS, precision=precision)
    stop_at(asked, fails_at - 1)
    asked.state.micro_batch = 8
    finish(asked)

    run = start(task, **SETTINGS, precision=precision)
    update, calls = run.state.optimizer.step, []

    def step(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        if len(calls) == fails_at:
            if fails_at == 1:  # as when the second group's tensors find no room: the first group is updated already
                update(*args, **kwargs)
            raise torch.OutOfMemoryError("simulated")
        return update(*args, **kwargs)

    monkeypatch.setattr(run.state.optimizer, "step", step)
    with pytest.warns(UserWarning, match="out of memory with 16 samples at a time; going on with 8"):
        finish(run)
    assert run.state.weights_sha256() == asked.state.weights_sha256()
    assert run.state.progress.updates == 6


@pytest.mark.parametrize("num_samples", [40, 49])  # 49: the coming step is larger than any before it
def test_half_an_update_is_never_passed_on(num_samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(Toy(num_samples, batch_norm=True), **SETTINGS)
    stop_at(run, 2)
    update = run.state.optimizer.step

    def step() -> None:
        update()
        raise torch.OutOfMemoryError("simulated")

    monkeypatch.setattr(run.state.optimizer, "step", step)
    with pytest.raises(memory.OutOfMemory, match=r"in the middle of an update .* last checkpoint"):
        loop.advance(run)


def test_in_evaluation() -> None:
    with pytest.warns(UserWarning, match="in evaluation with 20 samples at a time; going on with 10"):
        _, reports = train(Tight(eval_room=5), **SETTINGS)
    _, plain = train(Toy(dropout=0.3), **SETTINGS)
    for report, expected in zip(reports, plain, strict=True):
        assert report.metrics == pytest.approx(expected.metrics, rel=1e-6)
    assert reports[0].notes["eval_batch"] == "5, after running out of memory at 10"


def test_one_sample_too_many_fails_with_advice() -> None:
    run = start(Tight(room=0), **SETTINGS)
    with pytest.warns(UserWarning, match="out of memory"), pytest.raises(memory.OutOfMemory) as caught:
        loop.advance(run)
    message = str(caught.value)
    advice = ["one sample at a time", "smaller batch_size", "micro_batch", "precision=bf16", "freeze"]
    places = [message.find(words) for words in advice]
    assert -1 not in places
    assert places == sorted(places)  # the tutorial's order


def test_other_errors_are_not_taken_for_it() -> None:
    run = start(Broken(), **SETTINGS)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        loop.advance(run)
    assert run.state.micro_batch is None


@dataclass(frozen=True)
class Broken(Toy):
    def predict(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return model(batch[0][:, :3])


def test_later_trials_of_the_same_shape_begin_there() -> None:
    task = Tight(room=4)
    with pytest.warns(UserWarning, match="out of memory"):
        fresh, _ = train(task, **SETTINGS, seed=1)
    # No warning now: nothing fails first. And the result is that of a process of its own.
    later, reports = train(task, **SETTINGS, seed=1)
    assert reports[0].notes["micro_batch"] == "4, where an earlier run of the same shape ended up"
    assert later.state.weights_sha256() == fresh.state.weights_sha256()
    assert start(Tight(room=4, batch_norm=True), **SETTINGS).state.micro_batch is None
    assert start(task, **{**SETTINGS, "batch_size": 3}).state.micro_batch is None  # fits as it is


def test_a_resumed_run_keeps_its_micro_batch() -> None:
    with pytest.warns(UserWarning, match="out of memory"):
        unbroken, _ = train(Tight(room=4), **SETTINGS)
    memory.forget()
    run = start(Tight(room=4), **SETTINGS)
    with pytest.warns(UserWarning, match="out of memory"):
        stop_at(run, 2)
    memory.forget()
    run = resumed(run)
    finish(run)
    assert run.state.weights_sha256() == unbroken.state.weights_sha256()


@dataclass(frozen=True)
class Growing(Toy):
    """The batch with sample 0 is ten times as large, and too large: as one long text would be."""

    dropout: float = 0.3

    def augment(self, batch: tuple[torch.Tensor, ...], generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        return (*batch, torch.zeros(len(batch[0]), 100 if 0 in batch[2] else 1))

    def predict(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        outputs = super().predict(model, batch)
        if model.training and batch[3].numel() > 1000:
            raise torch.OutOfMemoryError("simulated")
        return outputs


def test_failing_late_is_undone_as_well() -> None:
    settings = {**SETTINGS, "epochs": 1, "seed": 1}
    Toy.seen.clear()
    with pytest.warns(UserWarning, match="out of memory with 16"):
        run, _ = train(Growing(), **settings)
    steps = [step for step in Toy.seen if 0 in step]
    assert len(steps[0]) == 16
    asked = start(Toy(dropout=0.3), **settings)
    first = next(n for n, batch in enumerate(asked.train.epoch(0, 0)) if 0 in batch[2])
    assert first > 0
    stop_at(asked, first)
    asked.state.micro_batch = 8
    finish(asked)
    assert run.state.weights_sha256() == asked.state.weights_sha256()


def test_a_share_of_a_gpu_caps_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """B54. Less than the share, as each process has a context of its own; no GPU is here: torch is told of one."""
    assert memory.fraction(1.0, 16 * GIB) == memory.fraction(4.0, 16 * GIB) == memory.fraction(0.0, 16 * GIB) == 1.0
    assert memory.fraction(0.25, 16 * GIB) == 0.25 - 0.5 / 16
    assert memory.fraction(0.05, 8 * GIB) == 0.025  # the context alone is more
    for share in (0.1, 0.25, 0.5):
        contexts = 1 / share * 0.5 / 80
        assert 1 / share * memory.fraction(share, 80 * GIB) + contexts <= 1 + 1e-9
    told: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(total_memory=16 * GIB))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", told.append)
    for share in (0.5, 1.0, 0.5):  # a process that is used again
        memory.cap(share)
    assert told == [0.5 - 0.5 / 16, 1.0, 0.5 - 0.5 / 16]
