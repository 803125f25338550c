"""How fast a released model answers: milliseconds by batch size, and the machine that this was measured on.

A fixed piece of arithmetic is timed beside it: a machine that is busy, or slower than it was, is slow at that too.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from trainable.task import Batch, Task

SIZES = (1, 8, 64)  # samples at a time
WARM_UP = 3
LEAST_CALLS, MOST_CALLS = 10, 50
LONGEST_S = 1.0  # for the calls of one batch size, once there are LEAST_CALLS


def measured(task: Task, model: nn.Module, samples: Batch) -> dict[str, Any]:
    """`latency_ms` ({batch size: {p50, p95}}), `throughput` (samples/s of the largest batch), `reference_ms` and
    `machine`. `model` is on the CPU and in evaluation."""
    latency: dict[str, dict[str, float]] = {}
    throughput = 0.0
    with torch.inference_mode():
        for size in sorted({min(size, len(samples[0])) for size in SIZES}):
            batch = tuple(part[:size] for part in samples)
            latency[str(size)] = _quantiles(_timed(lambda batch=batch: task.predict(model, batch)))  # type: ignore[misc]
            throughput = 1000 * size / latency[str(size)]["p50"]
        reference = _quantiles(_timed(_reference(torch.ones(64, 64))))["p50"]
    return {"latency_ms": latency, "throughput": throughput, "reference_ms": reference, "machine": machine()}


def machine() -> dict[str, Any]:
    """What speed depends on: measurements of equal ones can be compared."""
    return {"device": "cpu", "processor": _processor(), "threads": torch.get_num_threads()}


@contextlib.contextmanager
def threads(num: int) -> Iterator[None]:
    """Inside, torch has as many as at acceptance; fewer only where the machine has fewer, which is then another one."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(num, os.cpu_count() or 1)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def best_of(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Of two measurements the faster, number by number: what else a machine does only ever slows down."""
    latency = {
        size: {name: min(found[name], other["latency_ms"][size][name]) for name in found}
        for size, found in one["latency_ms"].items()
    }
    return {
        **one,
        "latency_ms": latency,
        "throughput": max(one["throughput"], other["throughput"]),
        "reference_ms": min(one["reference_ms"], other["reference_ms"]),
    }


def slowdown(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, float]:
    """For each batch size that both have: the median now over the 95th percentile then, less what the machine has
    become slower by at the fixed arithmetic."""
    machine_factor = max(1.0, now["reference_ms"] / then["reference_ms"])
    return {
        size: found["p50"] / then["latency_ms"][size]["p95"] / machine_factor
        for size, found in now["latency_ms"].items()
        if size in then["latency_ms"]
    }


def _reference(square: Tensor) -> Callable[[], Any]:
    """About a millisecond of small products: calls and arithmetic, as a small model's."""

    def work() -> Any:
        found = square
        for _ in range(50):
            found = (found @ square).tanh()
        return found

    return work


def _timed(work: Callable[[], Any]) -> list[float]:
    """Milliseconds of each call."""
    for _ in range(WARM_UP):
        work()
    taken: list[float] = []
    until = time.perf_counter() + LONGEST_S
    while len(taken) < LEAST_CALLS or (len(taken) < MOST_CALLS and time.perf_counter() < until):
        began = time.perf_counter()
        work()
        taken.append(1000 * (time.perf_counter() - began))
    return taken


def _quantiles(taken: list[float]) -> dict[str, float]:
    p50, p95 = numpy.quantile(taken, [0.5, 0.95]).tolist()
    return {"p50": p50, "p95": p95}


def _processor() -> str:
    """The model of the processor, where the system says it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
