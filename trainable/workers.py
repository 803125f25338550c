"""Whether this process may have the loader workers that are asked for, before they hang or die of it.

Batches travel from a worker in shared memory, each tensor through a file descriptor; containers often
allow 64 MB of the one and some hundreds of the other. Knows nothing of data sets.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

PREFETCHED = 2  # batches that each worker prepares ahead: DataLoader's prefetch_factor
PIPES = 8  # descriptors of a worker's pipes, queues and locks
SPARE = 32  # descriptors for everything else the process may open meanwhile
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Limits:
    """What this process may use; None where the system does not say. Tests make their own."""

    open_files: int | None  # how many may be open
    open_now: int
    shared_bytes: int | None  # free shared memory

    @classmethod
    def here(cls) -> Limits:
        open_files: int | None = None
        if sys.platform != "win32":
            import resource

            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            open_files = None if soft == resource.RLIM_INFINITY else soft
        descriptors = Path("/proc/self/fd")
        return cls(
            open_files=open_files,
            open_now=len(os.listdir(descriptors)) if descriptors.is_dir() else SPARE,
            shared_bytes=shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None,
        )


def check_limits(num_workers: int, batch: Iterable[Tensor], limits: Limits) -> None:
    """`batch`: one like the largest. Raises ValueError that names the limit, and the settings to change."""
    tensors = list(batch)
    in_flight = num_workers * PREFETCHED + 1
    num_files = limits.open_now + num_workers * PIPES + in_flight * len(tensors) + SPARE
    if limits.open_files is not None and num_files > limits.open_files:
        raise ValueError(
            f"num_workers={num_workers} needs about {num_files} open files and the limit is {limits.open_files}: "
            f"raise it (`ulimit -n {max(4096, 2 * num_files)}`) or lower num_workers"
        )
    num_bytes = in_flight * sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if limits.shared_bytes is not None and num_bytes > limits.shared_bytes:
        raise ValueError(
            f"num_workers={num_workers} keeps about {num_bytes / 2**20:.0f} MiB of batches in shared memory and "
            f"{SHARED_MEMORY} has {limits.shared_bytes / 2**20:.0f} MiB free: raise it (docker run --shm-size=2g), "
            "or lower num_workers or batch_size"
        )
