"""A run that was interrupted equals the unbroken one to the bit: weights, optimizer, metrics, order of samples."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from toys import Toy, finish, resumed, start, stop_at

STEPS_AN_EPOCH = 4  # 40 samples in steps of 12, 12, 12 and 4
MID_EPOCH, EPOCH_END = 6, 8

# fp16 starts so high that some of the first steps overflow and are skipped.
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16", "loss_scale": 2.0**18},
}
COMMON: dict[str, Any] = {
    "lr": 0.05,
    "optimizer": "adamw",
    "batch_size": 12,
    "epochs": 4,
    "schedule": "cosine",
    "ema_decay": 0.9,
}


def check(task: Toy, stops: tuple[int, ...], **settings: Any) -> None:
    """Train unbroken and with stops, and compare everything."""
    settings = {**COMMON, **settings}
    Toy.seen.clear()
    unbroken = start(task, **settings)
    reports = finish(unbroken)
    order = list(Toy.seen)

    Toy.seen.clear()
    run = start(task, **settings)
    broken_reports = []
    for stop in stops:
        broken_reports += stop_at(run, stop)
        run = resumed(run)
    broken_reports += finish(run)

    assert Toy.seen == order
    ours = [(report.step, report.metrics, report.curves, report.epoch) for report in broken_reports]
    assert ours == [(report.step, report.metrics, report.curves, report.epoch) for report in reports]
    assert run.state.weights_sha256() == unbroken.state.weights_sha256()
    saved, expected = run.state.save(), unbroken.state.save()
    for part in ("optimizer", "scaler", "average", "interval", "best"):
        assert_same(saved[part], expected[part], part)
    assert_same(saved["random"], expected["random"], "random")
    unbroken.close()
    run.close()


def assert_same(ours: Any, theirs: Any, where: str) -> None:
    """Equal to the bit, through dicts and lists."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs), where
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        for key in ours:
            assert_same(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), where
        for position, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, f"{where}[{position}]")
    else:
        assert ours == theirs, where


@pytest.mark.parametrize(
    ("stop", "micro_batch", "clip_norm", "precision"),
    list(itertools.product([MID_EPOCH, EPOCH_END], [None, 3], [None, 0.5], PRECISIONS)),
)
@pytest.mark.filterwarnings("ignore:precision=fp16 on a CPU")
def test_resident_samples_with_dropout_and_augmentation(
    stop: int, micro_batch: int | None, clip_norm: float | None, precision: str
) -> None:
    task = Toy(dropout=0.3, augmenting=True)
    check(task, (stop,), micro_batch=micro_batch, clip_norm=clip_norm, **PRECISIONS[precision])


@pytest.mark.parametrize(("stop", "clip_norm"), list(itertools.product([MID_EPOCH, EPOCH_END], [None, 0.5])))
def test_nothing_random_but_the_order(stop: int, clip_norm: float | None) -> None:
    check(Toy(), (stop,), clip_norm=clip_norm)


@pytest.mark.parametrize(
    ("stop", "num_workers", "micro_batch"),
    [
        *itertools.product([MID_EPOCH, EPOCH_END], [0], [None, 3]),
        (MID_EPOCH, 2, None),
        (EPOCH_END, 2, 3),
        pytest.param(MID_EPOCH, 2, 3, marks=pytest.mark.slow),
        pytest.param(EPOCH_END, 2, None, marks=pytest.mark.slow),
    ],
)
def test_samples_through_a_loader(stop: int, num_workers: int, micro_batch: int | None) -> None:
    check(Toy(dropout=0.3, augmenting=True, loaded=True), (stop,), num_workers=num_workers, micro_batch=micro_batch)


@pytest.mark.parametrize("stop", [MID_EPOCH, EPOCH_END])
def test_running_statistics_and_a_merged_rest(stop: int) -> None:
    check(Toy(num_samples=37, batch_norm=True, dropout=0.3), (stop,))


@dataclass(frozen=True)
class Transformed(Toy):
    """torchvision's transforms draw from torch's global generator, not from one of ours."""

    def augment(self, batch: tuple[torch.Tensor, ...], generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        from torchvision.transforms import v2

        images = batch[0].reshape(-1, 1, 2, 3)
        changed = v2.Compose([v2.RandomHorizontalFlip(), v2.GaussianNoise(sigma=0.1, clip=False)])(images)
        return (changed.reshape(-1, 6), *batch[1:])


def test_transforms_of_torchvision() -> None:
    pytest.importorskip("torchvision")
    check(Transformed(dropout=0.3), (MID_EPOCH,))


def test_two_interruptions_in_one_epoch_and_one_more() -> None:
    check(Toy(dropout=0.3, augmenting=True), (5, 7, 13), report_steps=3)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop", "muon"])
def test_every_optimizer(optimizer: str) -> None:
    check(Toy(dropout=0.3), (MID_EPOCH,), optimizer=optimizer, momentum=0.9)


def test_plateau_and_patience_remember() -> None:
    settings = {"schedule": "plateau", "plateau_patience": 0, "patience": 3, "lr": 0.3, "epochs": 12, "ema_decay": None}
    check(Toy(dropout=0.5), (9, 13), **settings)


def test_compiled_stopped_before_the_short_step() -> None:
    # The resumed process compiles for the last, shorter step first.
    check(Toy(dropout=0.3), (STEPS_AN_EPOCH + 3,), compile=True, epochs=3)


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "micro_batch"), list(itertools.product([MID_EPOCH, EPOCH_END], [None, 3])))
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_compiled_with_everything(stop: int, micro_batch: int | None, precision: str) -> None:
    task = Toy(dropout=0.3, augmenting=True)
    check(task, (stop,), compile=True, micro_batch=micro_batch, clip_norm=0.5, **PRECISIONS[precision])


@pytest.mark.slow
def test_compiled_with_workers() -> None:
    check(Toy(dropout=0.3, augmenting=True, loaded=True), (MID_EPOCH,), compile=True, num_workers=2)
