"""Where every random number comes from (tutorial lab 1).

A stream is named by what it is for and derived from the run's seed, never from who drew before it.
Knows nothing of models or data.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

try:
    import numpy
except ImportError:  # torch works without it, and so do we: then nobody draws from its generator
    numpy = None  # type: ignore[assignment]


def derive_seed(seed: int, *labels: str | int) -> int:
    """A 63-bit seed for the stream that `labels` name; neighbouring seeds give unrelated streams."""
    text = ":".join(str(label) for label in (seed, *labels))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators, on every device.

    `seed_everything(42); torch.randn(3)` is 0.3367, 0.1288, 0.2345 on the CPU (tutorial lab 1).
    """
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # cuda and mps too


def generator(device: torch.device, seed: int, *labels: str | int) -> torch.Generator:
    """A generator on `device` for the stream that `labels` name."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, *labels))


def permutation(num_samples: int, seed: int, epoch: int) -> Tensor:
    """The order of samples in `epoch`: (num_samples,) long, a function of (seed, epoch) alone.

    So resuming in mid-epoch needs nothing but an index, and costs nothing.
    """
    order = generator(torch.device("cpu"), seed, "order", epoch)
    return torch.randperm(num_samples, generator=order)


def global_state(device: torch.device) -> dict[str, Any]:
    """The state of the global generators, as tensors and numbers only (it goes into a checkpoint)."""
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "internal": torch.tensor(internal, dtype=torch.int64), "gauss": gauss},
        "torch": torch.get_rng_state(),
    }
    if numpy is not None:
        _, keys, position, has_gauss, cached = cast(tuple[Any, ...], numpy.random.get_state(legacy=True))
        state["numpy"] = {
            "keys": torch.tensor(keys.tolist(), dtype=torch.int64),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_global_state(state: dict[str, Any], device: torch.device) -> None:
    """Put back what `global_state` gave. A state of another kind of device is left out."""
    python = state["python"]
    random.setstate((python["version"], tuple(python["internal"].tolist()), python["gauss"]))
    if numpy is not None and "numpy" in state:
        legacy = state["numpy"]
        keys = numpy.array(legacy["keys"].tolist(), dtype=numpy.uint32)
        numpy.random.set_state(("MT19937", keys, legacy["position"], legacy["has_gauss"], legacy["cached"]))
    torch.set_rng_state(state["torch"].cpu())
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
    elif device.type == "mps" and "mps" in state:
        torch.mps.set_rng_state(state["mps"].cpu())


def seed_cpu(seed: int) -> None:
    """Seed the generators that a data set's transforms may draw from; never a GPU's, which a worker must not touch."""
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


@contextmanager
def isolated(seed: int | None = None) -> Iterator[None]:
    """Inside, the global CPU generators may be seeded (from `seed` on) and drawn from; outside, they never notice."""
    python, cpu = random.getstate(), torch.get_rng_state()
    legacy = None if numpy is None else numpy.random.get_state()
    if seed is not None:
        seed_cpu(seed)
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(cpu)
        if legacy is not None:
            numpy.random.set_state(legacy)
