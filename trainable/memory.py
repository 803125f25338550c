"""Out of memory: halve the micro-batch and do the same step again; the gradient stays what it was.

The tutorial's rescue order is the advice once one sample at a time does not fit either.
Knows nothing of the loop.
"""

from __future__ import annotations

import gc
import resource
import sys

import torch

RESCUE_ORDER = (
    "in this order: a smaller batch_size; micro_batch below it (accumulation); precision=bf16 or fp16 on a GPU; "
    "freeze layers; a smaller model"
)


class OutOfMemory(RuntimeError):
    """Even the smallest micro-batch does not fit."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the host ran out of memory; older backends say so only in words."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def smaller(samples: int, error: BaseException) -> int:
    """Half as many samples at a time, with the memory of the failed try given back.

    Raises OutOfMemory, with the tutorial's advice, when one sample was already too much.
    """
    if samples <= 1:
        raise OutOfMemory(f"one sample at a time does not fit in memory ({error}); try, {RESCUE_ORDER}") from error
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return (samples + 1) // 2


def peak_gib(device: torch.device) -> float:
    """The most memory the run has held so far: of the GPU, or else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 2**30
