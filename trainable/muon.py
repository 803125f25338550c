"""Muon for the weight matrices, AdamW for everything else: one optimizer to the loop.

Muon (Keller Jordan 2024; torch.optim.Muon) orthogonalises the update of a matrix, so it is made for the hidden
weights; its authors give biases, norms, convolutions and embeddings to AdamW. Knows nothing of the loop.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer


class MuonWithAdamW(Optimizer):
    """Two optimizers in one; groups and state are theirs, so what the loop sets there reaches them."""

    def __init__(self, muon: Optimizer, adamw: Optimizer) -> None:
        # Not Optimizer.__init__, which would make groups of its own.
        self.both = (muon, adamw)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return [group for optimizer in self.both for group in optimizer.param_groups]

    @property
    def state(self) -> dict[Any, Any]:  # type: ignore[override]
        return {parameter: values for optimizer in self.both for parameter, values in optimizer.state.items()}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        for optimizer in self.both:
            optimizer.step()

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.both}"


def make_muon(groups: list[dict[str, Any]], lr: float, muon: dict[str, Any], adamw: dict[str, Any]) -> Optimizer:
    """`groups` whose `matrix` is true go to Muon, the others to AdamW; settings as those two take them.

    Raises ValueError where torch has no Muon, or where the model has no matrix for it.
    """
    maker = getattr(torch.optim, "Muon", None)
    if maker is None:
        raise ValueError(f"optimizer=muon is not in torch {torch.__version__}; use adamw")
    matrices = [group for group in groups if group["matrix"]]
    others = [group for group in groups if not group["matrix"]]
    if not matrices:
        raise ValueError("optimizer=muon trains matrices, and this model trains none; use adamw")
    # This scaling of Muon's step makes its lr mean what AdamW's does, so one lr serves both (Liu et al. 2025).
    first = maker(matrices, lr=lr, adjust_lr_fn="match_rms_adamw", **muon)
    if not others:
        return first  # type: ignore[no-any-return]
    return MuonWithAdamW(first, torch.optim.AdamW(others, lr=lr, **adamw))
