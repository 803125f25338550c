"""How long a model takes for one sample: the median over a few calls, for objectives and limits of a search.

Called in evaluation, and only where it is asked for. Knows nothing of training.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import torch

from trainable.training import Training

if TYPE_CHECKING:
    from trainable.task import Batch

WARM_UP, CALLS = 3, 20


def latency_ms(run: Training, batch: Batch) -> float:
    """Milliseconds of one forward pass for the first sample of `batch`, in eval() and the run's precision.

    The caller is in inference mode. The device is waited for before and after each call.
    """
    one = tuple(part[:1] for part in batch)
    taken = []
    with run.autocast():
        for _ in range(WARM_UP + CALLS):
            _wait_for(run.numerics.device)
            began = time.perf_counter()
            run.task.predict(run.state.evaluated, one)
            _wait_for(run.numerics.device)
            taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken[WARM_UP:])


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
