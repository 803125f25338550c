"""Muon for the weight matrices, AdamW for everything else: one optimizer to the loop.

Muon (Keller Jordan 2024; torch.optim.Muon) orthogonalises the update of a matrix, so it is made for the hidden
weights; its authors give biases, norms, convolutions and embeddings to AdamW. Knows nothing of the loop.
"""

from __future__ import annotations

import collections
from typing import Any

import torch
from torch.optim import Optimizer


class MuonWithAdamW(Optimizer):
    """Two optimizers in one; the parameter groups are theirs, so what the loop sets there reaches them."""

    def __init__(self, muon: Optimizer, adamw: Optimizer) -> None:
        # Not Optimizer.__init__, which would make groups of its own: the two have theirs.
        self._both = (muon, adamw)
        self.defaults = {}
        self._share()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        for optimizer in self._both:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self._both:
            optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        muon, adamw = (optimizer.state_dict() for optimizer in self._both)
        return {"muon": muon, "adamw": adamw}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, optimizer in zip(("muon", "adamw"), self._both, strict=True):
            optimizer.load_state_dict(state_dict[name])
        self._share()  # loading makes new groups

    def _share(self) -> None:
        muon, adamw = self._both
        self.param_groups = muon.param_groups + adamw.param_groups
        self.state = collections.ChainMap(muon.state, adamw.state)  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self._both}"


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
