"""Between two reports the host never waits for the device (tutorial, first anti-pattern)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from toys import Toy, start

from trainable import loop

WAITING = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_assert_async", "item")


class SyncCounter(TorchDispatchMode):
    """Counts what would wait for a device: values fetched, sizes that depend on values, copies to the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        options = kwargs or {}
        casts = options.get("dtype") not in (None, args[0].dtype if args and hasattr(args[0], "dtype") else None)
        to_cpu = name == "_to_copy" and options.get("device") == torch.device("cpu") and not casts
        if name in WAITING or to_cpu:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def syncs(num_steps: int, task: Toy, **settings: Any) -> int:
    """How often one report's worth of `num_steps` steps waits, evaluation included."""
    run = start(task, batch_size=2, epochs=10, report_steps=num_steps, lr=0.01, **settings)
    with SyncCounter() as counter:
        report = loop.advance(run)
    assert len(report.curves["loss"]) == num_steps
    return len(counter.found)


def test_the_counter_counts() -> None:
    with SyncCounter() as counter:
        value = torch.ones(3).sum()
        float(value)
        bool(value)
        value.item()
        torch.ones(3).nonzero()
    assert len(counter.found) == 4


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adamw"},
        {"optimizer": "adamw", "clip_norm": 1.0, "ema_decay": 0.9, "schedule": "cosine", "warmup_steps": 3},
        {"optimizer": "sgd", "momentum": 0.9, "clip_value": 0.1, "micro_batch": 1},
        {"optimizer": "adam", "precision": "bf16"},
        {"optimizer": "rmsprop"},
        {"optimizer": "muon", "momentum": 0.9},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_no_sync_for_any_step(settings: dict[str, Any]) -> None:
    task = Toy(dropout=0.3, augmenting=True)
    at_a_report = syncs(2, task, **settings)
    assert at_a_report > 0  # a report does fetch
    assert syncs(17, task, **settings) == at_a_report
    assert syncs(45, task, **settings) == at_a_report  # over the ends of two epochs


@pytest.mark.filterwarnings("ignore:precision=fp16 on a CPU")
def test_fp16_asks_once_a_step_more_than_torch_does() -> None:
    """The schedule moves on only where the scaler did not skip the step, so the host must know."""
    task, settings = Toy(), {"precision": "fp16", "optimizer": "adamw"}
    ours = syncs(12, task, **settings) - syncs(2, task, **settings)
    assert ours <= 10 * (syncs_of_torch(task) + 1)


def syncs_of_torch(task: Toy) -> int:
    """How often a bare step with torch's scaler waits; the CPU's kernels do so inside."""
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu")
    batch = tuple(tensor[:2] for tensor in task.splits(0).train)
    for _ in range(2):  # the second step is like all later ones
        with SyncCounter() as counter:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = task.loss(model(batch[0]), batch) / 2
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return len(counter.found)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_nothing_waits_between_reports() -> None:
    run = start(Toy(dropout=0.3, augmenting=True), batch_size=2, epochs=3, lr=0.01, device="cuda", optimizer="adamw")
    loop.advance(run)
    torch.cuda.set_sync_debug_mode("error")
    try:
        steps = iter(range(100))
        assert loop.advance(run, lambda: next(steps) == 15) is None
    finally:
        torch.cuda.set_sync_debug_mode("default")
