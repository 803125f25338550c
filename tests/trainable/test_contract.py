"""The contract: a good task keeps every law, and whoever breaks one is told so in words."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from tests.trainable.toys import Toy
from trainable.contract import TaskContract
from trainable.task import Splits
from trainable.tasks.digits import Digits

LAWS = sorted(name for name in vars(TaskContract) if name.startswith("test_"))


class TestDigits(TaskContract):
    task = Digits()


class TestToy(TaskContract):
    """Through a Dataset, with noise and augmentation of its own."""

    task = Toy(num_samples=64, loaded=True, augmenting=True, batch_norm=True, dropout=0.1)
    config: ClassVar[dict[str, Any]] = {"lr": 0.01}


@dataclass(frozen=True)
class OtherSplit(Toy):
    def splits(self, seed: int) -> Splits:
        return super().splits(random.randrange(10**9))


@dataclass(frozen=True)
class Overlapping(Toy):
    def splits(self, seed: int) -> Splits:
        return replace(super().splits(seed), indices={"train": [1, 2, 3], "val": [3, 4]})


@dataclass(frozen=True)
class TestInTrain(Toy):
    __test__ = False

    def test(self, seed: int) -> tuple[Tensor, ...]:
        return super().splits(seed).train


@dataclass(frozen=True)
class Mean(Toy):
    def loss(self, outputs: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        return nn.functional.cross_entropy(outputs, batch[1])


@dataclass(frozen=True)
class ConstantWeight(Toy):
    def weight(self, batch: tuple[Tensor, ...]) -> int:
        return 32


@dataclass(frozen=True)
class NoWeight(Toy):
    def weight(self, batch: tuple[Tensor, ...]) -> int:
        return 0


@dataclass(frozen=True)
class MeanMetric(Toy):
    def metrics(self, outputs: Tensor, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return {"accuracy": (outputs.argmax(1) == batch[1]).float().mean()}


@dataclass(frozen=True)
class MetricPerSample(Toy):
    def metrics(self, outputs: Tensor, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return {"hits": outputs.argmax(1) == batch[1]}


@dataclass(frozen=True)
class MetricLoss(Toy):
    def metrics(self, outputs: Tensor, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return {"loss": outputs.sum()}


@dataclass(frozen=True)
class OneAnswerForAll(Toy):
    def answers(self, outputs: Tensor, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        return outputs.argmax(), batch[1]


@dataclass(frozen=True)
class OwnRandomness(Toy):
    def model(self) -> nn.Module:
        model = super().model()
        own = torch.Generator()
        own.seed()
        nn.init.normal_(model[0].weight, generator=own)
        return model


@dataclass(frozen=True)
class GlobalAugment(Toy):
    def augment(self, batch: tuple[Tensor, ...], generator: torch.Generator) -> tuple[Tensor, ...]:
        return (batch[0] + torch.randn_like(batch[0]), *batch[1:])


@dataclass(frozen=True)
class AugmentInPlace(Toy):
    def augment(self, batch: tuple[Tensor, ...], generator: torch.Generator) -> tuple[Tensor, ...]:
        return (batch[0].add_(1), *batch[1:])


@dataclass(frozen=True)
class Normalising(Toy):
    """Makes of a setting another one, so that what is recorded is not what was asked for."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", self.scale * 2)


@dataclass(frozen=True)
class UnknownInSpace(Toy):
    def space(self) -> dict[str, Any]:
        return {"task.dropuot": {"float": [0.0, 0.5]}}


@dataclass(frozen=True)
class BadSpace(Toy):
    def space(self) -> dict[str, Any]:
        return {"lr": {"log": [-1.0, 0.1]}}


@dataclass(frozen=True)
class TensorsInPreparing(Toy):
    def preparing(self, seed: int) -> dict[str, Any]:
        return {"means": torch.zeros(2)}


@dataclass(frozen=True)
class OneRowForAll(Toy):
    def features(self, batch: tuple[Tensor, ...], preparing: Any) -> dict[str, Tensor]:
        return {"mean": batch[0].mean().reshape(1)}


@dataclass(frozen=True)
class Useless(Toy):
    def loss(self, outputs: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        return outputs.sum() * 0 + len(batch[0])


def law(task: Toy, name: str) -> Callable[[], None]:
    contract = type("Contract", (TaskContract,), {"task": task})()
    method: Callable[[], None] = getattr(contract, name)
    return method


@pytest.mark.parametrize(
    ("task", "name", "words"),
    [
        (OtherSplit(), "test_the_same_seed_gives_the_same_split", "differs between two calls"),
        (Overlapping(), "test_the_parts_are_disjoint", r"share samples of the source: \[3\]"),
        (TestInTrain(), "test_the_parts_are_disjoint", "40 of 40 test samples stand in train too"),
        (Mean(), "test_the_loss_is_a_sum", "return the sum"),
        (ConstantWeight(), "test_the_weight_is_positive_and_adds_up", "weighs 32, the same batch twice over 32"),
        (NoWeight(), "test_the_weight_is_positive_and_adds_up", r"weight\(\) is 0"),
        (MeanMetric(), "test_metrics_are_sums", "metric 'accuracy' .* return the sum"),
        (MetricPerSample(), "test_metrics_are_sums", r"metric 'hits' is no single number but \(8,\)"),
        (MetricLoss(), "test_metrics_are_sums", "call the metric another name"),
        (OneAnswerForAll(), "test_answers_are_one_for_each_sample", "one number for each"),
        (OwnRandomness(), "test_the_model_is_a_function_of_the_global_seed", "0.weight differs"),
        (GlobalAugment(), "test_augment_draws_from_its_generator_only", "draws from a global generator"),
        (AugmentInPlace(), "test_augment_draws_from_its_generator_only", "changes the batch in place"),
        (Normalising(), "test_settings_come_back_through_load_task", "make another task"),
        (UnknownInSpace(), "test_the_space_names_what_there_is", "did you mean task.dropout"),
        (BadSpace(), "test_the_space_names_what_there_is", "lr=-1.0 must be above 0"),
        (TensorsInPreparing(), "test_a_released_model_can_be_watched", "kept as JSON, and holds what JSON has not"),
        (OneRowForAll(), "test_a_released_model_can_be_watched", "gives 1 of 8 rows of 'mean'"),
        (Useless(), "test_the_checks_say_yes", "Are the gradients sound"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Toy) else "",
)
def test_a_broken_law_is_named(task: Toy, name: str, words: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=words):
        law(task, name)()


def test_every_law_has_a_task_that_breaks_it() -> None:
    broken = {mark.args[1][position][1] for mark in test_a_broken_law_is_named.pytestmark for position in range(19)}
    assert broken == set(LAWS)


# Training seeds the global generators: that is what a run begins with.
@pytest.mark.parametrize("name", [name for name in LAWS if name != "test_the_checks_say_yes"])
def test_laws_leave_no_trace_in_the_global_generators(name: str) -> None:
    """A user's other tests must not depend on these having run."""
    torch.manual_seed(3)
    law(Toy(augmenting=True), name)()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    law(Toy(augmenting=True), name)()
    assert torch.equal(torch.get_rng_state(), state)
