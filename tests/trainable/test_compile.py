"""torch.compile in place: raw keys, a fall back that is said once, and nothing compiled anew when lr changes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from toys import Toy, finish, start, stop_at, train

SETTINGS: dict[str, Any] = {"batch_size": 20, "lr": 0.05, "epochs": 3, "optimizer": "adamw", "schedule": "cosine"}


@pytest.fixture
def _eager_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracing of torch.compile without its code generation, which takes most of the time."""
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *args, **kwargs: compile_(*args, **{**kwargs, "backend": "eager"}))


@pytest.mark.usefixtures("_eager_kernels")
def test_nothing_is_compiled_anew_after_the_first_epoch() -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    run = start(Toy(), **SETTINGS, compile=True)
    stop_at(run, 3)
    counters.clear()
    finish(run)
    assert counters["stats"]["unique_graphs"] == 0
    assert "compile" not in run.notes


@dataclass(frozen=True)
class Wide(Toy):
    width: int = 8

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, self.width), nn.ReLU(), nn.Linear(self.width, 2))


@pytest.mark.usefixtures("_eager_kernels")
def test_later_trials_of_a_process_are_compiled_too() -> None:
    """torch stops compiling after 8 shapes in a process, of all models together, and says so only in its log."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    compiled = []
    for width in (8, 9, 10, 11, 8):
        counters.clear()
        train(Wide(width=width), **SETTINGS, compile=True)
        compiled.append(counters["stats"]["unique_graphs"])
    assert compiled[0] >= 2  # training and evaluation
    assert compiled == [compiled[0]] * 4 + [0]  # and what is compiled already is used again


def broken_compiler(graph: Any, inputs: Any) -> Any:
    raise FileNotFoundError("no C++ compiler was found")


def test_a_compiler_that_fails_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: compile_(f, **{**options, "backend": broken_compiler}))
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run, reports = train(Toy(dropout=0.3, batch_norm=True), **SETTINGS, compile=True)
    said = [str(warning.message) for warning in caught if "torch.compile failed" in str(warning.message)]
    assert len(said) == 1
    assert "no C++ compiler was found" in reports[-1].notes["compile"]
    eager, _ = train(Toy(dropout=0.3, batch_norm=True), **SETTINGS)
    assert run.state.weights_sha256() == eager.state.weights_sha256()  # dropout's draws were put back


@dataclass(frozen=True)
class Wrong(Toy):
    def predict(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return model(batch[0][:, :2])


@pytest.mark.usefixtures("_eager_kernels")
def test_an_error_of_the_model_is_still_an_error() -> None:
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match=r"torch\.compile failed"), pytest.raises(RuntimeError, match="cannot be mult"):
        train(Wrong(), **SETTINGS, compile=True)
