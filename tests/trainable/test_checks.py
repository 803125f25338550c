"""The checks: a sound task passes every question, and each broken one is named by the right line."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from trainable.checks import all_checks, quick_checks
from trainable.checks.__main__ import main
from trainable.checks.findings import Finding
from trainable.config import TrainConfig
from trainable.task import Splits, Task, load_task

CONFIG = TrainConfig(lr=1e-2, batch_size=16, epochs=2, threads=1)
QUESTIONS = [
    "Does one batch load?",
    "Do shapes and dtypes fit model and loss?",
    "Are model and data on one device?",
    "Is the loss finite?",
    "Are the gradients sound?",
    "Do parameters move after a step?",
    "Do eval() and no_grad() work?",
    "Does one batch overfit?",
    "Is the split disjoint?",
    "Does a resume give the same next step?",
    "Does the loader keep up?",
]


@dataclass(frozen=True)
class Sound(Task):
    """Nothing is wrong with it. inputs: (B, 4) float, labels: (B,) long in 0..2."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))

    def data(self) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(0)
        labels = torch.arange(120) % 3
        return torch.randn(120, 4, generator=draw) + functional.one_hot(labels, 4), labels

    def indices(self) -> dict[str, list[int]]:
        return {"train": list(range(80)), "val": list(range(80, 120))}

    def splits(self, seed: int) -> Splits:
        tensors, indices = self.data(), self.indices()
        train, val = (tuple(tensor[indices[name]] for tensor in tensors) for name in ("train", "val"))
        return Splits(train, val, indices)

    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        return functional.cross_entropy(outputs, batch[1], reduction="sum")


def failed(findings: list[Finding]) -> list[str]:
    return [finding.question for finding in findings if finding.passed is False]


def test_a_sound_task_passes_all_questions_in_the_tutorials_order() -> None:
    findings = all_checks(Sound(), CONFIG)
    assert [(finding.question, finding.passed) for finding in findings] == [(question, True) for question in QUESTIONS]


@pytest.mark.parametrize("config", [{"precision": "bf16"}, {"micro_batch": 5}, {"ema_decay": 0.9}, {"report_steps": 1}])
def test_a_sound_task_passes_with_other_settings_too(config: dict[str, Any]) -> None:
    findings = all_checks(Sound(), TrainConfig(**{"lr": 1e-2, "batch_size": 16, "epochs": 2, "threads": 1, **config}))
    assert [str(finding) for finding in findings if not finding.passed] == []


def test_the_built_in_task_passes_and_the_quick_part_is_the_first_seven() -> None:
    began = time.perf_counter()
    findings = quick_checks(load_task("digits"), TrainConfig(threads=1))
    assert [finding.question for finding in findings] == QUESTIONS[:7]
    assert failed(findings) == []
    assert time.perf_counter() - began < 20  # it stands before every sweep


# Each broken task: what it changes about the sound one, the question that must fail first, and what is said.


class NoSamples(Sound):
    def splits(self, seed: int) -> Splits:
        raise FileNotFoundError("no data in /data/images")


class Unequal(Sound):
    def splits(self, seed: int) -> Splits:
        inputs, labels = self.data()
        return Splits((inputs[:80], labels[:70]), (inputs[80:], labels[80:]))


class NanInputs(Sound):
    def data(self) -> tuple[Tensor, Tensor]:
        inputs, labels = super().data()
        inputs[:, 2] = float("nan")
        return inputs, labels


class FloatLabels(Sound):
    def data(self) -> tuple[Tensor, Tensor]:
        inputs, labels = super().data()
        return inputs, labels.float()


class LabelsFromOne(Sound):
    def data(self) -> tuple[Tensor, Tensor]:
        inputs, labels = super().data()
        return inputs, labels + 1


class DoubleInputs(Sound):
    def data(self) -> tuple[Tensor, Tensor]:
        inputs, labels = super().data()
        return inputs.double(), labels


class WrongWidth(Sound):
    def model(self) -> nn.Module:
        return nn.Linear(5, 3)


class ModelRaises(Sound):
    def model(self) -> nn.Module:
        raise KeyError("backbone")


class Broadcast(Sound):
    def model(self) -> nn.Module:
        return nn.Linear(4, 1)

    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        return functional.mse_loss(outputs, batch[1].float(), reduction="sum")  # (B, 1) against (B,)


class MeanLoss(Sound):
    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        return functional.cross_entropy(outputs, batch[1])


class LossPerSample(Sound):
    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        return functional.cross_entropy(outputs, batch[1], reduction="none")


class NoWeight(Sound):
    def weight(self, batch: tuple[Tensor, ...]) -> int:
        return 0


class ElsewhereModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.shift = torch.zeros(4, device="meta")  # neither parameter nor buffer: .to(device) leaves it where it is

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(torch.add(inputs, self.shift))


class TwoDevices(Sound):
    def model(self) -> nn.Module:
        return ElsewhereModel()


class NanLoss(Sound):
    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        return (outputs * 0).log().sum() * 0


class Detached(Sound):
    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        return super().loss(outputs.detach(), batch)


class SpareLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.used(inputs)


class UnusedParameter(Sound):
    def model(self) -> nn.Module:
        return SpareLayer()


class Exploding(Sound):
    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        return super().loss(outputs, batch) * 1e7


class InfiniteSlope(Sound):
    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        return super().loss(outputs, batch) + (outputs * 0).square().sqrt().sum()


class IgnoresOutputs(Sound):
    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        return (outputs * 0).sum() + len(outputs)


class IgnoresEval(nn.Sequential):
    def train(self, mode: bool = True) -> IgnoresEval:
        super().train(True)
        return self


class DropoutStaysOn(Sound):
    def model(self) -> nn.Module:
        return IgnoresEval(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3))


class FunctionalDropout(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return functional.dropout(super().forward(inputs), 0.5)  # training=True is its default


class ForgottenFlag(Sound):
    def model(self) -> nn.Module:
        return FunctionalDropout(4, 3)


class PredictTrains(Sound):
    def predict(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Any:
        model.train()
        return model(batch[0])


class Counting(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(inputs)


class BufferMoves(Sound):
    def model(self) -> nn.Module:
        return Counting()


class SharedIndices(Sound):
    def indices(self) -> dict[str, list[int]]:
        return {"train": list(range(80)), "val": list(range(79, 120))}


class SharedContent(Sound):
    def splits(self, seed: int) -> Splits:
        inputs, labels = self.data()
        return Splits((inputs[:80], labels[:80]), (inputs[60:], labels[60:]))  # and no indices to see it by


class HiddenCounter(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)
        self.calls = 0  # grows while training, and no checkpoint holds it

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += self.training
        return super().forward(inputs) / (1 + self.calls)


class ForgetsOnResume(Sound):
    def model(self) -> nn.Module:
        return HiddenCounter()


class SlowSamples(Dataset[Any]):
    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        time.sleep(1e-3)
        return tuple(tensor[index] for tensor in self.tensors)


class SlowLoader(Sound):
    def splits(self, seed: int) -> Splits:
        whole = super().splits(seed)
        assert isinstance(whole.train, tuple)
        assert isinstance(whole.val, tuple)
        return Splits(SlowSamples(whole.train), SlowSamples(whole.val))


class Uphill(Sound):
    """The gradient points up: the loss of a batch rises with training."""

    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        loss = super().loss(outputs, batch)
        return 2 * loss.detach() - loss if outputs.requires_grad else loss


BROKEN: list[tuple[type[Sound], str, str]] = [
    (NoSamples, QUESTIONS[0], "FileNotFoundError: no data in /data/images"),
    (Unequal, QUESTIONS[0], "the parts of train have 80, 70 samples"),
    (NanInputs, QUESTIONS[0], "part 0 of the batch holds 16 values that are NaN or infinite"),
    (FloatLabels, QUESTIONS[1], "class labels must be int64 (.long())"),
    (LabelsFromOne, QUESTIONS[1], "labels must be 0 up to the number of the model's outputs - 1"),
    (DoubleInputs, QUESTIONS[1], "float32 (.float())"),
    (WrongWidth, QUESTIONS[1], "make the model's first and last layer fit the data"),
    (ModelRaises, QUESTIONS[1], "KeyError: 'backbone'"),
    (Broadcast, QUESTIONS[1], "outputs (16, 1) float32 and targets (16,) int64 differ in shape and are broadcast"),
    (MeanLoss, QUESTIONS[1], "loss() returns a mean"),
    (LossPerSample, QUESTIONS[1], "loss() returns (16,) float32"),
    (NoWeight, QUESTIONS[1], "weight() returns 0"),
    (TwoDevices, QUESTIONS[2], "register_buffer"),
    (NanLoss, QUESTIONS[3], "the loss is nan"),
    (Detached, QUESTIONS[4], "cut off from the model"),
    (UnusedParameter, QUESTIONS[4], "2 of 4 parameters get no gradient: spare.weight, spare.bias"),
    (Exploding, QUESTIONS[4], "it explodes"),
    (InfiniteSlope, QUESTIONS[4], "the gradient norm is nan, though the loss is finite"),
    (IgnoresOutputs, QUESTIONS[4], "every gradient is 0"),
    (DropoutStaysOn, QUESTIONS[6], "these stay in training mode under eval()"),
    (ForgottenFlag, QUESTIONS[6], "two evaluations of one batch differ"),
    (PredictTrains, QUESTIONS[6], "these stay in training mode under eval()"),
    (BufferMoves, QUESTIONS[6], "evaluation changes the model: calls"),
    (Uphill, QUESTIONS[7], "it does not fall"),
    (SharedIndices, QUESTIONS[8], "train and val share 1 samples of the source: [79]"),
    (SharedContent, QUESTIONS[8], "20 of 60 val samples stand in train too, by content"),
    (ForgetsOnResume, QUESTIONS[9], "one step after a resume state['model']['weight'] differs"),
    (SlowLoader, QUESTIONS[10], "of the time is spent waiting for data"),
]


@pytest.mark.parametrize(("task", "question", "said"), BROKEN, ids=[task.__name__ for task, _, _ in BROKEN])
def test_a_broken_task_is_named_by_the_right_line(task: type[Sound], question: str, said: str) -> None:
    findings = all_checks(task(), CONFIG)
    assert [finding.question for finding in findings] == QUESTIONS
    assert failed(findings)[0] == question
    line = str(next(finding for finding in findings if finding.question == question))
    assert said in line
    assert "->" in line
    earlier = findings[: QUESTIONS.index(question)]
    assert all(finding.passed for finding in earlier if question != QUESTIONS[2])


def test_an_update_below_the_last_bit_is_noticed() -> None:
    findings = quick_checks(Sound(), TrainConfig(lr=1e-30, batch_size=16, weight_decay=0, threads=1))
    assert failed(findings) == [QUESTIONS[5]]
    assert "raise lr" in str(findings[5])


def test_a_frozen_parameter_needs_no_gradient() -> None:
    assert failed(all_checks(UnusedParameter(), TrainConfig(batch_size=16, epochs=2, freeze=("spare",)))) == []


def test_what_cannot_be_asked_says_which_question_comes_first() -> None:
    findings = {finding.question: finding for finding in all_checks(FloatLabels(), CONFIG)}
    for question in (*QUESTIONS[3:8], *QUESTIONS[9:]):
        assert findings[question].passed is None
        assert findings[question].answer == f"could not be asked; first: {QUESTIONS[1]}"
    assert findings[QUESTIONS[8]].passed is True  # the split needs no model


def test_an_error_of_the_task_is_shown_with_its_place() -> None:
    line = str(all_checks(NoSamples(), CONFIG)[0])
    assert f"({__file__}:" in line


def test_command_prints_a_line_each_and_tells_the_outcome_by_its_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--task", "digits", "--set", "task.width=16", "--set", "threads=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[6 : 6 + len(question)] for line, question in zip(lines, QUESTIONS, strict=False)] == QUESTIONS
    assert all(line.startswith("ok    ") for line in lines[:-1])
    assert lines[-1] == "11 yes, 0 no, 0 not asked"

    assert main(["--task", f"{__file__}:MeanLossTask"]) == 1
    shown = capsys.readouterr().out
    assert "FAIL  Do shapes and dtypes fit model and loss?" in shown
    assert "      -> return the sum (reduction='sum')" in shown


@dataclass(frozen=True)
class MeanLossTask(MeanLoss):
    pass


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--task"),
        (["--task", "digist"], "did you mean digits"),
        (["--task", "digits", "--set", "lr=-1"], "lr=-1.0 must be above 0"),
        (["--task", "digits", "--set", "task.depht=1"], "did you mean task.depth"),
    ],
)
def test_bad_input_is_one_message(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1


def test_it_runs_as_a_module_and_writes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainable.checks", "--task", "digits"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
