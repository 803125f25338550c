"""Outcomes sample by sample: they add up to what evaluation says, and vary as the samples do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional

from tests.trainable.toys import Toy
from trainable import loop
from trainable.config import TrainConfig
from trainable.release.outcomes import fingerprint_of, outcomes_of
from trainable.task import Splits, Task
from trainable.tasks.char_lm import CharLm
from trainable.tasks.digits import Digits

CONFIG = TrainConfig(threads=1, device="cpu")


def model_of(task: Task) -> nn.Module:
    torch.manual_seed(0)
    return task.model().eval()


def means(outcomes: Any) -> dict[str, float]:
    return {name: found["mean"] for name, found in outcomes.metrics().items()}


@pytest.mark.parametrize("task", [Digits(width=16), CharLm(width=16, depth=1, num_heads=2, context=16)], ids=type)
@pytest.mark.parametrize("batch", [None, 7])
def test_the_means_are_those_of_evaluation(task: Task, batch: int | None) -> None:
    splits = task.splits(0)
    if isinstance(task, CharLm):
        splits = replace(splits, val=(splits.val[0][-40:],))  # the last window is filled up
    config = replace(CONFIG, eval_batch_size=batch)
    run = loop.start(task, config, splits)
    theirs = loop.evaluate(run)
    run.close()
    run.state.model.eval()
    ours = outcomes_of(task, run.state.model, splits.val, config)
    assert {f"val_{name}": mean for name, mean in means(ours).items()} == pytest.approx(theirs, rel=1e-5)
    assert len(ours.weight) == ours.num_samples == len(splits.val[0])


def test_each_sample_has_its_own_outcome_in_its_place() -> None:
    task = Digits(width=16)
    images, labels = task.splits(0).val
    model = model_of(task)
    ours = outcomes_of(task, model, (images, labels), CONFIG)
    with torch.inference_mode():
        losses = functional.cross_entropy(model(images), labels, reduction="none").double().numpy()
        said = model(images).argmax(1)
    assert ours.sums["loss"] == pytest.approx(losses, rel=1e-4, abs=1e-6)
    assert ours.sums["accuracy"].tolist() == (said == labels).double().tolist()
    assert ours.answers is not None
    assert ours.answers.tolist() == said.tolist()
    hits = int((said == labels).sum())
    theirs = stats.binomtest(hits, len(labels)).proportion_ci(0.95, method="wilson")
    found = ours.metrics()["accuracy"]
    assert (found["low"], found["high"], found["method"]) == (
        pytest.approx(theirs.low),
        pytest.approx(theirs.high),
        "wilson",
    )


def test_characters_of_one_window_are_not_taken_for_independent() -> None:
    """Wilson over all characters would claim more than windows can tell: the unit is the window."""
    task = CharLm(width=16, depth=1, num_heads=2, context=16)
    (windows,) = task.splits(0).val
    found = outcomes_of(task, model_of(task), (windows[:60],), CONFIG).metrics()["accuracy"]
    assert (found["method"], found["num_units"]) == ("bootstrap", 60)


@pytest.mark.parametrize("seed", range(3))
def test_shuffled_labels_leave_chance(seed: int) -> None:
    """A model that has learned something is right by chance alone once the labels are shuffled: of 40 intervals 38
    hold a tenth on average; fewer than 34 come about once in 10,000 times."""
    task = Digits(width=16)
    run = loop.start(task, replace(CONFIG, lr=1e-2, epochs=1), task.splits(0))
    loop.advance(run)
    run.close()
    model = run.state.model.eval()
    images, labels = task.splits(0).val
    assert means(outcomes_of(task, model, (images, labels), CONFIG))["accuracy"] > 0.6
    random, held = torch.Generator().manual_seed(seed), 0
    with torch.inference_mode():
        outputs = model(images)
    given = _Given(outputs)
    for _ in range(40):
        shuffled = labels[torch.randperm(len(labels), generator=random)]
        found = outcomes_of(given, nn.Identity(), (torch.arange(len(labels)), shuffled), CONFIG).metrics()["accuracy"]
        held += found["low"] <= 0.1 <= found["high"]
    assert held >= 34


@dataclass(frozen=True, eq=False)
class _Given(Task):
    """Outputs that are there already."""

    outputs: Tensor

    def model(self) -> nn.Module:
        return nn.Identity()

    def splits(self, seed: int) -> Splits:
        raise NotImplementedError

    def predict(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return self.outputs[batch[0]]

    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        return functional.cross_entropy(outputs, batch[1], reduction="sum")

    def metrics(self, outputs: Any, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return {"accuracy": (outputs.argmax(1) == batch[1]).sum()}


@dataclass(frozen=True, eq=False)
class _Contrast(_Given):
    """A loss of pairs, which no sample has by itself."""

    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        return (outputs - outputs.mean(0)).square().sum()

    def metrics(self, outputs: Any, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return {}


def test_a_loss_of_whole_batches_is_measured_by_batches() -> None:
    task = _Contrast(torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)))
    found = outcomes_of(task, nn.Identity(), (torch.arange(1000), torch.zeros(1000).long()), CONFIG)
    assert len(found.weight) == 200
    assert set(found.weight) == {5.0}
    # Of normal numbers, the squares about the mean of 5 are 4/5 of those about the true one; 3 of each.
    assert found.metrics()["loss"]["mean"] == pytest.approx(3 * 4 / 5, rel=0.06)


def test_what_is_not_finite_is_named() -> None:
    task = Digits(width=16)
    images, labels = (part.clone() for part in task.splits(0).val)
    images[17, 3] = float("nan")
    with pytest.raises(ValueError, match=r"loss is nan for 1 of 270 \(the first is number 17"):
        outcomes_of(task, model_of(task), (images, labels), CONFIG)


def test_no_samples_and_samples_that_weigh_nothing_are_refused() -> None:
    task = CharLm(width=16, depth=1, num_heads=2, context=16)
    (windows,) = task.splits(0).val
    with pytest.raises(ValueError, match="no samples"):
        outcomes_of(task, model_of(task), (windows[:0],), CONFIG)
    with pytest.raises(ValueError, match="weight is 0"):
        outcomes_of(task, model_of(task), (torch.full_like(windows[:4], -1),), CONFIG)


def test_samples_of_a_dataset_are_read_and_known_again() -> None:
    task = Toy(loaded=True)
    val = task.splits(0).val
    found = outcomes_of(task, model_of(task), val, CONFIG)
    assert found.num_samples == len(val)  # type: ignore[arg-type]
    assert fingerprint_of(val, CONFIG) == fingerprint_of(val, CONFIG) != fingerprint_of(task.splits(1).val, CONFIG)


def test_a_fingerprint_is_that_of_the_values_in_their_order() -> None:
    images, labels = Digits().splits(0).val
    assert fingerprint_of((images, labels), CONFIG) == fingerprint_of((images.clone(), labels.clone()), CONFIG)
    changed = [(images.flip(0), labels.flip(0)), (images, labels.int()), (images[1:], labels[1:])]
    assert len({fingerprint_of(examples, CONFIG) for examples in [(images, labels), *changed]}) == 4


def test_more_samples_than_can_be_told_apart_are_taken_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainable.release import outcomes

    task = Digits(width=16)
    val, model = task.splits(0).val, model_of(task)
    alone = outcomes_of(task, model, val, CONFIG)
    monkeypatch.setattr(outcomes, "MOST_UNITS", 50)
    grouped = outcomes_of(task, model, val, CONFIG)
    assert len(grouped.weight) == 45  # 270 in groups of 6
    assert means(grouped) == pytest.approx(means(alone), rel=1e-5)
    narrow, wide = alone.metrics()["loss"], grouped.metrics()["loss"]
    assert wide["high"] - wide["low"] == pytest.approx(narrow["high"] - narrow["low"], rel=0.35)
    assert numpy.isclose(grouped.weight.sum(), 270)
