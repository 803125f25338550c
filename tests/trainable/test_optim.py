"""Optimizers against torch's own; decay, multipliers, freezing, averages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from toys import Toy, config, resumed, start, stop_at, train

from trainable import loop
from trainable.optim import make_optimizer, no_decay_names


def by_hand(
    task: Toy, optimizer: Any, num_steps: int, batches: list[tuple[Tensor, ...]], clip: float | None
) -> nn.Module:
    torch.manual_seed(0)
    model = task.model()
    update = optimizer(model)
    model.train()
    for batch in batches[:num_steps]:
        update.zero_grad()
        (task.loss(model(batch[0]), batch) / len(batch[0])).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        update.step()
    return model


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "adamw": (lambda m: torch.optim.AdamW(m.parameters(), 0.01, weight_decay=0.1, fused=True), {}),
    "adam": (lambda m: torch.optim.Adam(m.parameters(), 0.01, weight_decay=0.1, fused=True), {}),
    "sgd": (lambda m: torch.optim.SGD(m.parameters(), 0.01, 0.8, weight_decay=0.1, nesterov=True), {"nesterov": True}),
    "rmsprop": (lambda m: torch.optim.RMSprop(m.parameters(), 0.01, momentum=0.8, weight_decay=0.1), {}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_the_textbook_loop_to_the_bit(name: str, clip_norm: float | None) -> None:
    maker, settings = OPTIMIZERS[name]
    run = start(
        Toy(), batch_size=7, lr=0.01, optimizer=name, momentum=0.8, weight_decay=0.1, decay_all=True,
        clip_norm=clip_norm, **settings,
    )  # fmt: skip
    batches = list(run.train.epoch(0, 0))
    loop.advance(run)
    model = by_hand(Toy(), maker, len(batches), batches, clip_norm)
    for ours, theirs in zip(run.state.trained, model.parameters(), strict=True):
        if name == "sgd":  # ours is fused, and rounds otherwise
            torch.testing.assert_close(ours, theirs)
        else:
            assert torch.equal(ours, theirs)


def test_clipping_of_gradients_of_two_kinds() -> None:
    """Not all of one dtype: torch's own function does it."""
    _, (report,) = train(Mixed(), batch_size=40, lr=0.1, clip_norm=1e-3)
    assert report.curves["grad_norm_clipped"] == [pytest.approx(1e-3, rel=1e-2)]


@dataclass(frozen=True)
class Mixed(Toy):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2).double())

    def predict(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return model[2](model[1](model[0](batch[0])).double())


def test_clipping_by_value() -> None:
    run = start(Toy(), batch_size=40, lr=0.01, clip_value=0.01)
    report = loop.advance(run)
    assert max(parameter.grad.abs().max() for parameter in run.state.trained) <= 0.01
    (before,), (after,) = report.curves["grad_norm"], report.curves["grad_norm_clipped"]
    norms = [parameter.grad.norm() for parameter in run.state.trained]
    assert after == pytest.approx(torch.stack(norms).norm().item())
    assert after < before


def test_tutorial_clipping_lab() -> None:
    """Lab 2: the gradient norm is 38.7677 before clipping and 1.0 after."""
    _, (report,) = train(ClippingLab(), batch_size=32, lr=1e-3, clip_norm=1.0, seed=42)
    assert report.curves["grad_norm"] == [pytest.approx(38.7677, abs=1e-4)]
    assert report.curves["grad_norm_clipped"] == [pytest.approx(1.0, abs=1e-4)]


@dataclass(frozen=True)
class ClippingLab(Toy):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1))

    def splits(self, seed: int) -> Any:
        torch.manual_seed(42)
        self.model()  # the lab draws its weights first
        inputs, targets = torch.randn(32, 10), torch.randn(32, 1) * 50
        both = (inputs, targets, torch.arange(32))
        return type(super().splits(0))(both, both)

    def loss(self, outputs: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        return ((outputs - batch[1]) ** 2).sum()

    def metrics(self, outputs: Tensor, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return {}


def test_no_decay_on_biases_and_norms() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.BatchNorm1d(4), nn.Embedding(5, 4))
    assert no_decay_names(model) == {"0.bias", "1.weight", "1.bias", "2.weight", "2.bias"}
    spared = {id(p) for g in make_optimizer(model, config(weight_decay=0.1)).param_groups
              if g["weight_decay"] == 0 for p in g["params"]}  # fmt: skip
    assert spared == {id(p) for name, p in model.named_parameters() if name in no_decay_names(model)}
    everywhere = make_optimizer(model, config(weight_decay=0.1, decay_all=True)).param_groups
    assert [group["weight_decay"] for group in everywhere] == [0.1]


def test_multipliers() -> None:
    run = start(Toy(), batch_size=40, lr=0.01, lr_multipliers={"3.*": 10.0}, schedule="cosine", epochs=2)
    stop_at(run, 2)
    assert {group["lr_multiplier"]: group["lr"] for group in run.state.optimizer.param_groups} == pytest.approx(
        {1.0: 0.005, 10.0: 0.05}
    )
    with pytest.raises(ValueError, match=r"'4\.\*' matches no trained parameter"):
        start(Toy(), lr_multipliers={"4.*": 2.0})


@dataclass(frozen=True)
class Backbone(Toy):
    def model(self) -> nn.Module:
        backbone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.BatchNorm1d(8, affine=False), nn.Dropout(0.5))
        return nn.Sequential(backbone, nn.Linear(8, 2))


@pytest.mark.parametrize("patterns", [["0"], ["0.*"]])
def test_what_is_frozen_keeps_its_buffers_still(patterns: list[str]) -> None:
    run = start(Backbone(), batch_size=10, lr=0.1, epochs=2, freeze=patterns)
    before = {name: tensor.clone() for name, tensor in run.state.model.state_dict().items()}
    loop.advance(run)
    loop.advance(run)  # and after an evaluation too
    assert not any(module.training for module in run.state.model[0].modules())
    changed = {name for name, tensor in run.state.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"1.weight", "1.bias"}


def test_freezing_is_checked() -> None:
    with pytest.raises(ValueError, match="'backbone' matches nothing"):
        start(Toy(), freeze=["backbone"])
    with pytest.raises(ValueError, match="nothing is left to train"):
        start(Toy(), freeze=["*"])


def test_unfreezing_goes_on_from_the_weights() -> None:
    run = start(Toy(), batch_size=10, lr=0.1, epochs=2, freeze=["0"], optimizer="adamw")
    loop.advance(run)
    run = resumed(run, freeze=[])
    assert loop.advance(run).diverged is None


def test_the_average_is_torchs() -> None:
    run = start(Toy(batch_norm=True), batch_size=10, lr=0.1, epochs=2, report_steps=1, ema_decay=0.7)
    average = AveragedModel(run.state.model, multi_avg_fn=get_ema_multi_avg_fn(0.7))
    done = False
    while not done:
        done = loop.advance(run).done
        average.update_parameters(run.state.model)
        for ours, theirs in zip(run.state.evaluated.parameters(), average.module.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    assert not torch.equal(run.state.trained[0], run.state.evaluated[0].weight)
    assert torch.equal(run.state.evaluated[1].running_mean, run.state.model[1].running_mean)


def test_evaluation_looks_at_the_average() -> None:
    run = start(Toy(), batch_size=20, lr=10.0, epochs=1, ema_decay=0.999999)
    report = loop.advance(run)
    task = Toy()
    inputs, labels, _ = task.splits(0).val
    expected = nn.functional.cross_entropy(run.state.evaluated(inputs), labels).item()
    assert report.metrics["val_loss"] == pytest.approx(expected)
    assert nn.functional.cross_entropy(run.state.model(inputs), labels).item() != pytest.approx(expected, rel=0.01)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_has_the_matrices_and_adamw_the_rest() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.inner, self.norm = nn.Embedding(7, 4), nn.Linear(4, 4), nn.LayerNorm(4)

    torch.manual_seed(0)
    model = Model()
    reference = Model()
    reference.load_state_dict(model.state_dict())
    ours = make_optimizer(model, config(optimizer="muon", lr=0.02, weight_decay=0.1, momentum=0.95, nesterov=True))
    muon = torch.optim.Muon([reference.inner.weight], 0.02, 0.1, 0.95, True, adjust_lr_fn="match_rms_adamw")
    decayed = [reference.words.weight]
    others = [reference.inner.bias, *reference.norm.parameters()]
    adamw = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], 0.02, weight_decay=0.1)
    for _ in range(3):
        for parameter, twin in zip(model.parameters(), reference.parameters(), strict=True):
            parameter.grad = torch.randn_like(parameter)
            twin.grad = parameter.grad.clone()
        ours.step()
        muon.step()
        adamw.step()
    for parameter, twin in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter, twin)


def test_muon_without_a_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match="optimizer=muon trains matrices"):
        make_optimizer(nn.LayerNorm(3), config(optimizer="muon"))
