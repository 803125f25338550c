"""Out of memory: halve the micro-batch and do the same step again; the gradient stays what it was.

The tutorial's rescue order is the advice once one sample at a time does not fit either.
Knows nothing of the loop.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Hashable

import torch

RESCUE_ORDER = (
    "in this order: a smaller batch_size; micro_batch below it (accumulation); precision=bf16 or fp16 on a GPU; "
    "freeze layers; a smaller model"
)

CONTEXT_BYTES = 512 * 2**20  # CUDA's own, in each process: kernels, cuBLAS and cuDNN handles

# What fitted after a run of some shape ran out of memory, for the later runs of this process: they need not
# fail first. The one thing here that outlives a run; it spares time and changes no result, because a run that
# does fail first makes the same step again with the same micro-batch.
_REMEMBERED: dict[Hashable, int] = {}


class OutOfMemory(RuntimeError):
    """Even the smallest micro-batch does not fit."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the host ran out of memory; older backends say so only in words."""
    if isinstance(error, OutOfMemory):
        return False  # our own last word on it
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    signs = ("out of memory", "can't allocate memory", "cublas_status_alloc_failed")
    return isinstance(error, RuntimeError) and any(sign in text for sign in signs)


def smaller(samples: int, reason: str) -> int:
    """Half as many samples at a time, with the memory of the failed try given back.

    To be called when the error is no longer handled: its traceback keeps the failed try's tensors alive.
    Raises OutOfMemory, with the tutorial's advice, when one sample was already too much.
    """
    if samples <= 1:
        raise OutOfMemory(f"one sample at a time does not fit in memory ({reason}); try, {RESCUE_ORDER}")
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()
    return (samples + 1) // 2


def cap(share: float) -> None:
    """From now on this process may fill so much of a GPU, as Ray's fractions alone are only a promise; in a process
    that is used again too. Without a GPU nothing happens."""
    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(fraction(share, total))


def fraction(share: float, total_bytes: int) -> float:
    """Of a GPU's memory, what the tensors of a process with this share of it may take: a process needs some for itself,
    which torch does not count. At least half of its share."""
    if not 0 < share < 1:
        return 1.0
    return max(share - CONTEXT_BYTES / total_bytes, share / 2)


def remember(shape: Hashable, samples: int) -> None:
    """Note that runs of this shape have room for so many samples at a time."""
    _REMEMBERED[shape] = samples


def remembered(shape: Hashable) -> int | None:
    """How many samples at a time fitted for an earlier run of this shape that ran out of memory."""
    return _REMEMBERED.get(shape)


def forget() -> None:
    """Forget all of it: the memory is another now (a neighbour on the GPU has ended, say)."""
    _REMEMBERED.clear()


def reset_peak(device: torch.device) -> None:
    """Count the peak of the GPU's memory from now on: a reused process has a past."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> float:
    """The most memory held so far: on a GPU by this run, or else by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    if sys.platform == "win32":
        return 0.0  # not known there without another package
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 2**30
