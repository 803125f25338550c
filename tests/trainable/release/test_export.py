"""How a task calls its model, and why some cannot be exported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.trainable.toys import Toy
from trainable.config import TrainConfig
from trainable.release.export import NotExportable, call_of, difference, inputs_of
from trainable.tasks.char_lm import CharLm
from trainable.tasks.digits import Digits

CONFIG = TrainConfig(threads=1, device="cpu")


def test_the_batch_is_the_dimension_that_grows() -> None:
    for task, given, came in (
        (Digits(width=16), ((-1, 64),), ((-1, 10),)),
        (CharLm(width=16, depth=1, num_heads=2, context=16), ((-1, 16),), None),
    ):
        call = call_of(task, task.model().eval(), task.splits(0).val, CONFIG)
        assert call.input_shapes == given
        assert came is None or call.output_shapes == came
        assert call.output_shapes[0][0] == -1


def test_the_inputs_are_those_of_predict_and_not_the_batch() -> None:
    """char_lm hands the model the windows less their last character, as long."""
    task = CharLm(width=16, depth=1, num_heads=2, context=16)
    (windows,) = task.splits(0).val
    (tokens,) = inputs_of(task, task.model().eval(), (windows[:4],))
    assert torch.equal(tokens, windows[:4, :-1].clamp(min=0).long())


@dataclass(frozen=True)
class _Odd(Toy):
    how: str = "twice"

    def predict(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Any:
        if self.how == "twice":
            return model(batch[0]) + model(batch[0])
        if self.how == "inside":
            return nn.Sequential(*model.children())(batch[0])
        return model(input=batch[0])


@pytest.mark.parametrize(
    ("how", "why"), [("twice", "2 times and not once"), ("inside", "0 times and not once"), ("named", "by position")]
)
def test_a_model_that_is_called_otherwise_is_not_exported(how: str, why: str) -> None:
    task = _Odd(how=how)
    with pytest.raises(NotExportable, match=why):
        call_of(task, task.model().eval(), task.splits(0).val, CONFIG)


def test_too_few_samples_do_not_show_the_batch() -> None:
    task = Digits(width=16)
    with pytest.raises(NotExportable, match="do not show"):
        call_of(task, task.model().eval(), tuple(part[:1] for part in task.splits(0).val), CONFIG)


def test_differences_are_of_the_worst_number() -> None:
    one = {"a": torch.tensor([1.0, float("inf"), float("nan")]), "b": [torch.tensor([2])]}
    assert difference(one, one) == 0
    other = {"a": torch.tensor([1.5, float("inf"), float("nan")]), "b": [torch.tensor([5])]}
    assert difference(one, other) == 3
    assert difference(torch.ones(2), torch.ones(3)) == float("inf")
    assert difference(torch.ones(1), torch.tensor([float("nan")])) == float("inf")
