"""Report: what a run says at the end of a report interval, and when it counts as diverged.

Knows nothing of how a step is made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

CURVES = ("loss", "lr", "grad_norm", "grad_norm_clipped")
MEASURED = ("num_params", "peak_mem_gib", "latency_ms")  # of a report, beside its metrics
DATA_WAIT_ADVICE_ABOVE = 0.2  # share of the time


@dataclass(frozen=True)
class Report:
    """What a run says at the end of a report interval.

    `metrics`: train_loss, and after an evaluation val_loss and the task's own as val_*; all are means.
    `curves`: one value a step of the interval, beginning with step `first_step` (counted from 0).
    `data_wait_share`: share of the training time in which the loop waited for data; on a GPU, which works on
    meanwhile, an upper bound of the device's own waiting.
    `system`: how the machine was used meanwhile, see system.py; `weight_norm`: of all weights that are trained.
    `num_params`: parameters that are trained; `latency_ms`: of one sample, None where it was not asked for.
    """

    number: int
    epoch: float
    step: int
    total_steps: int
    first_step: int
    metrics: dict[str, float]
    curves: dict[str, list[float]]
    done: bool
    diverged: str | None = None
    weights_sha256: str | None = None
    samples_per_s: float = 0.0
    seconds: float = 0.0
    data_wait_share: float = 0.0
    peak_mem_gib: float = 0.0
    num_params: int = 0
    latency_ms: float | None = None
    notes: dict[str, str] = field(default_factory=dict)
    weight_norm: float | None = None
    system: dict[str, float] = field(default_factory=dict)


def weight_norms(weights: list[Tensor]) -> tuple[float, float]:
    """The largest magnitude among all weights, and their norm. Waits for the device once."""
    detached = [weight.detach() for weight in weights]
    largest, norm = (nn.utils.get_total_norm(detached, norm_type=order) for order in (torch.inf, 2.0))
    found = torch.stack([largest, norm]).tolist()
    return found[0], found[1]


def divergence(curves: dict[str, list[float]], largest_weight: float, scaled: bool, first_step: int) -> str | None:
    """Why the run counts as diverged, or None. With a scaler, overflowing gradients are its daily work."""
    watched = {"loss": "the training loss"}
    if not scaled:
        watched["grad_norm"] = "the gradient norm"
    for step in range(len(curves["loss"])):
        for name, words in watched.items():
            if not math.isfinite(curves[name][step]):
                return f"{words} became {curves[name][step]} at step {first_step + step}; try a smaller lr or clip_norm"
    if scaled and curves["loss"] and not any(map(math.isfinite, curves["grad_norm"])):
        return f"no gradient was finite from step {first_step} on, at any loss scale; try precision=fp32 or bf16"
    # The last update of the interval has no loss after it yet, and its weights would go into a checkpoint.
    if not math.isfinite(largest_weight):
        return f"a weight was no longer finite after step {first_step + len(curves['loss']) - 1}; try a smaller lr"
    return None


def data_wait_advice(share: float, num_workers: int) -> str | None:
    """What to do where much of the time goes into waiting for data."""
    if share <= DATA_WAIT_ADVICE_ABOVE:
        return None
    return (
        f"{share:.0%} of the training time was spent waiting for data: raise num_workers (now {num_workers}), "
        "move work out of __getitem__ (into the data set's making, or into Task.augment, which runs on the device), "
        "or raise resident_gib where the samples are tensors"
    )
