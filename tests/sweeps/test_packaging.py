"""A model that takes two tensors and gives back two, packed up, loaded back and called as before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow.models import Model
from torch import Tensor, nn

from sweeps.release.packaging import load_folder, pack
from trainable.config import TrainConfig
from trainable.release.export import call_of, first_batch, inputs_of
from trainable.task import Splits, Task

CONFIG = TrainConfig(threads=1, device="cpu")


class _Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.kinds = nn.Linear(4, 2), nn.Embedding(5, 2)

    def forward(self, inputs: Tensor, kinds: Tensor) -> dict[str, Tensor]:
        return {"logits": self.linear(inputs) + self.kinds(kinds), "norm": inputs.norm(dim=1)}


@dataclass(frozen=True)
class _Two(Task):
    def model(self) -> nn.Module:
        return _Both()

    def splits(self, seed: int) -> Splits:
        draw = torch.Generator().manual_seed(seed)
        both = torch.randn(60, 4, generator=draw), torch.randint(0, 5, (60,), generator=draw)
        return Splits(both, both)

    def predict(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Any:
        return model(*batch)

    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        return outputs["logits"].square().sum()


@pytest.mark.slow
def test_several_tensors_in_and_out(tmp_path: Path) -> None:
    task, folder = _Two(), tmp_path / "model"
    val, model = task.splits(0).val, task.model().eval()
    batches = [inputs_of(task, model, first_batch(val, size, CONFIG)) for size in (1, 2, 7)]
    packed = pack(folder, model, call_of(task, model, val, CONFIG), "two.py:Two", {}, batches)
    assert (packed.kind, packed.reason) == ("pt2", None)
    loaded = load_folder(folder)
    for batch in (val, tuple(part[:11] for part in val)):
        ours, theirs = model(*batch), loaded(*batch)
        assert list(theirs) == ["logits", "norm"]
        assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in ours)
    signature = Model.load(str(folder)).signature
    assert [spec.shape for spec in signature.inputs.inputs] == [(-1, 4), (-1,)]
    assert [spec.shape for spec in signature.outputs.inputs] == [(-1, 2), (-1,)]
    with pytest.raises(ValueError, match="is no model folder"):
        load_folder(tmp_path / "nowhere")
