"""Which device a run uses, and why: cuda, else mps, else cpu (tutorial lab 1).

Knows nothing of precision or models.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from trainable.config import Device, TrainConfig

NUM_KERNELS = 4096  # compiled shapes that one process may hold


@dataclass(frozen=True)
class Probe:
    """What this process can compute on. Tests make their own."""

    cuda: bool
    mps: bool
    compute_capability: tuple[int, int] | None = None

    @classmethod
    def here(cls) -> Probe:
        """What torch finds in this process."""
        cuda = torch.cuda.is_available()
        return cls(
            cuda=cuda,
            mps=torch.backends.mps.is_available(),
            compute_capability=torch.cuda.get_device_capability() if cuda else None,
        )


def choose_device(wanted: Device, probe: Probe) -> tuple[torch.device, str]:
    """The device and the reason for it.

    Raises ValueError when a device is asked for by name and is missing: training on another one
    in silence would waste hours before anybody noticed.
    """
    available = {"cuda": probe.cuda, "mps": probe.mps, "cpu": True}
    if wanted != "auto":
        if not available[wanted]:
            present = ", ".join(name for name, there in available.items() if there)
            raise ValueError(f"device={wanted} was asked for, but this process sees only: {present}; use device=auto")
        return torch.device(wanted), "asked for"
    if probe.cuda:
        return torch.device("cuda"), "a CUDA device was found"
    if probe.mps:
        return torch.device("mps"), "no CUDA device, but Apple's GPU was found"
    return torch.device("cpu"), "no CUDA device and no Apple GPU were found"


def configure_backends(config: TrainConfig) -> None:
    """Set torch's process-wide switches from the config, so that a reused process equals a fresh one."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    torch.set_float32_matmul_precision(config.matmul_precision)
    torch.backends.cudnn.benchmark = config.cudnn_benchmark
    torch.backends.cudnn.deterministic = config.deterministic
    # warn_only: some operators have no deterministic kernel, and refusing to train is worse than saying so.
    torch.use_deterministic_algorithms(config.deterministic, warn_only=True)
    # That switch also fills every new tensor with NaN to expose reads of uninitialised memory: a debugging
    # aid that costs a kernel per allocation and decides nothing about order.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if config.deterministic:
        # cuBLAS reads it when it is first used; without it torch warns at every matrix product.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if config.compile:
        _allow_kernels_for_many_runs()


def _allow_kernels_for_many_runs() -> None:
    """All compiled models of a process share one count of compiled shapes, by default 8 (measured on 2.14).

    After those, later models run in eager mode without a word: a trial in a reused process would be slower
    than in a fresh one, and differ from it in the last bits.
    """
    import torch._dynamo  # takes a second, so only where it is needed

    torch._dynamo.config.recompile_limit = NUM_KERNELS
    torch._dynamo.config.accumulated_recompile_limit = NUM_KERNELS
