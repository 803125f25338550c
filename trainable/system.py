"""How the machine was used while a trial trained on it: CPU, memory, GPU, under the names that MLflow has for them.

Means from one report to the next. No step pays for it: the CPU's counters are read at both ends, and a GPU, which
counts nothing, is looked at once a second from a thread. Knows nothing of runs.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

SAMPLE_S = 1.0  # a GPU's own figure for its use is of its last second, or less


class System:
    """The use of this machine, and of a GPU where the run is on one, since `begin`. Mutable; `close` ends its thread.

    What cannot be read, or where the package that reads it is not there (psutil, nvidia-ml-py), is left out.
    """

    def __init__(self, device: torch.device, look: Callable[[torch.device], dict[str, float]] | None = None) -> None:
        self._device = device
        self._look = look or look_at_gpu
        self._psutil = _optional("psutil")
        self._process = self._psutil.Process() if self._psutil else None
        self._samples: list[Mapping[str, float]] = []
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if device.type == "cuda":
            self._thread = threading.Thread(target=self._watch, name="system", daemon=True)
            self._thread.start()

    def begin(self) -> None:
        """From now on."""
        self._samples = []
        self._cpu()

    def said(self) -> dict[str, float]:
        """What was used since `begin`. The GPU's figures are called `gpu_0_*`: there is one, as the process sees it."""
        found, samples = self._cpu(), self._samples
        if self._thread is not None and not samples:  # shorter than the thread's pause
            samples = [self._look(self._device)]
        for name in {name for sample in samples for name in sample}:
            values = [sample[name] for sample in samples if name in sample]
            found[f"gpu_0_{name}"] = round(sum(values) / len(values), 1)
        return found

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _cpu(self) -> dict[str, float]:
        """Of the machine since this was last asked, and of this process without its loader processes."""
        if self._psutil is None or self._process is None:
            return {}
        memory = self._psutil.virtual_memory()
        return {
            "cpu_utilization_percentage": self._psutil.cpu_percent(),
            "system_memory_usage_megabytes": round(memory.used / 1e6, 1),
            "system_memory_usage_percentage": round(memory.used / memory.total * 100, 1),
            "process_cpu_utilization_percentage": self._process.cpu_percent(),  # of one CPU
            "process_memory_usage_megabytes": round(self._process.memory_info().rss / 1e6, 1),
        }

    def _watch(self) -> None:
        while not self._closed.wait(SAMPLE_S):
            self._samples.append(self._look(self._device))


def look_at_gpu(device: torch.device) -> dict[str, float]:
    """One look at a GPU by its driver, which the device's work does not wait for; whatever it does not say is left out.

    utilization_percentage, memory_usage_megabytes, memory_usage_percentage (of all processes), power_usage_watts.
    """
    found: dict[str, float] = {}
    readings: dict[str, Callable[[], float]] = {
        "utilization_percentage": lambda: torch.cuda.utilization(device),
        "memory_usage_megabytes": lambda: torch.cuda.device_memory_used(device) / 1e6,
        "memory_usage_percentage": lambda: (
            torch.cuda.device_memory_used(device) / torch.cuda.get_device_properties(device).total_memory * 100
        ),
        "power_usage_watts": lambda: torch.cuda.power_draw(device) / 1000,
    }
    for name, read in readings.items():
        try:
            found[name] = float(read())
        except Exception:  # the edge to a driver; its package may be missing, and a figure may not exist on this GPU
            continue
    return found


def _optional(name: str) -> Any:
    try:
        found: ModuleType = importlib.import_module(name)
    except ImportError:
        return None
    return found
