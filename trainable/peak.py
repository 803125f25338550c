"""The most memory that a trial's process takes of a GPU, from a few steps and an evaluation of it, for
`--gpus-per-trial auto`.

In a process of its own that ends with it, as CUDA's context stays as long as the process. Trains no trial and writes
nothing. Knows no sweeps.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from trainable.config import TrainConfig
from trainable.task import Splits, Task, load_task


def peak_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """asked: `task` and `trials`, a list of `settings` and `train`. In bytes, `taken` by the one of them that takes
    most, and `total` of the GPU; or an `error`, in a line, where none of them could be tried.

    taken: what torch reserved at its peak, and CUDA's own. What others hold on this GPU counts too: it is not there for
    trials either.
    """
    import torch

    from trainable import memory

    if not torch.cuda.is_available():
        return {"error": "torch sees no GPU there"}
    splits = functools.lru_cache(maxsize=1)(_splits)
    total = int(torch.cuda.get_device_properties(0).total_memory)
    reserved, error = 0, "there was nothing to try"
    for one in asked["trials"]:
        try:
            task, config = load_task(asked["task"], one["settings"]), TrainConfig.from_dict(one["train"])
            reserved = max(reserved, _reserved(task, config, splits(task, config.data_seed)))
        except Exception as raised:  # the task's own code may raise anything; this is the edge of its process
            if memory.is_out_of_memory(raised) or isinstance(raised, memory.OutOfMemory):
                return {"taken": total, "total": total}
            error = " ".join(f"{type(raised).__name__}: {raised}".split())[:300]
    if not reserved:
        return {"error": error}
    free, there = torch.cuda.mem_get_info()
    # At least what `memory.cap` sets aside for it, or the cap would leave less than the peak.
    own = max(there - free - torch.cuda.memory_reserved(), memory.CONTEXT_BYTES)
    return {"taken": reserved + own, "total": total}


def _splits(task: Task, seed: int) -> Splits:
    return task.splits(seed)


def _reserved(task: Task, config: TrainConfig, splits: Splits) -> int:
    """Bytes that torch reserved at the peak of this run: more than its tensors take, as the GPU sees it."""
    import torch

    from trainable.probe import probe

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    probe(task, config, splits)
    return int(torch.cuda.max_memory_reserved())
