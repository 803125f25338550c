"""What one trial does on an accelerator: AMP, torch.compile, syncs, data, memory, exact resume. Needs torch alone.

    python benchmarks/gpu.py            # full sizes on a GPU (at most 6 minutes on an H200), tiny ones on a CPU
    python benchmarks/gpu.py --quick    # tiny sizes, less than a minute

On a CPU it runs to its end, to show that it would; its speeds mean nothing there and have no bars.
The last line printed is one JSON object {name: {value, bar, met}}; a bar of null is for information.
"""

import argparse
import dataclasses
import io
import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a bare machine has a copy, not an installation

from trainable import loop, memory
from trainable.config import TrainConfig
from trainable.task import Splits, Task

ON_GPU = torch.cuda.is_available()
NUM_CLASSES = 100
SLEEP_S = 0.0005  # what a sample of the slow data set costs


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class SlowSamples(Dataset):
    """Rows of tensors, each of which takes its time."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        until = time.perf_counter() + SLEEP_S
        while time.perf_counter() < until:
            pass
        return tuple(tensor[index] for tensor in self.tensors)


@dataclass(frozen=True)
class Blocks(Task):
    """The feed-forward half of a transformer. inputs: (B, width) float, labels: (B,) long."""

    width: int
    depth: int
    num_samples: int
    dropout: float = 0.1
    slow: bool = False
    room: int = 10**9  # on a CPU: more samples than this "do not fit"

    def model(self) -> nn.Module:
        blocks = [Block(self.width, self.dropout) for _ in range(self.depth)]
        return nn.Sequential(*blocks, nn.Linear(self.width, NUM_CLASSES))

    def splits(self, seed: int) -> Splits:
        draw = torch.Generator().manual_seed(seed)
        inputs = torch.randn(self.num_samples, self.width, generator=draw)
        labels = torch.randint(NUM_CLASSES, (self.num_samples,), generator=draw)
        both = (inputs, labels)
        return Splits(SlowSamples(both) if self.slow else both, (inputs[:64], labels[:64]))

    def predict(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        outputs = model(batch[0])
        if model.training and len(batch[0]) > self.room:
            raise torch.OutOfMemoryError("simulated: there is no GPU here")
        return outputs

    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        return nn.functional.cross_entropy(outputs, batch[1], reduction="sum")


@dataclass(frozen=True)
class Sizes:
    width: int
    depth: int
    batch: int
    num_steps: int


@dataclass
class Timed:
    """A run of some steps: seconds of each report of `report_steps`, the memory it took, its last state."""

    step_ms: float
    first_s: float
    peak_gib: float
    run: loop.Training
    reports: list[loop.Report]


def train(task: Blocks, sizes: Sizes, **settings: Any) -> Timed:
    """One epoch in two halves: the first has all the making and compiling in it, the second is timed."""
    chosen = {"lr": 1e-4, "batch_size": sizes.batch, "report_steps": sizes.num_steps // 2, "eval_every": 99, **settings}
    run = loop.start(task, TrainConfig(**chosen), task.splits(0))
    times, reports = [], []
    while not reports or not reports[-1].done:
        began = time.perf_counter()
        reports.append(loop.advance(run))  # ends with fetching the losses: nothing is left under way
        times.append(time.perf_counter() - began)
    run.close()
    step_ms = 1e3 / (reports[1].samples_per_s / sizes.batch)
    return Timed(step_ms, times[0], reports[-1].peak_mem_gib, run, reports)


def precisions(sizes: Sizes) -> dict[str, Any]:
    """Speed and memory of each precision against fp32."""
    task = Blocks(sizes.width, sizes.depth, sizes.batch * sizes.num_steps)
    kinds = {
        "fp32": {"precision": "fp32"},
        "fp32 with TF32": {"precision": "fp32", "matmul_precision": "high"},
        "bf16": {"precision": "bf16"},
        "fp16 with a scaler": {"precision": "fp16"},
    }
    print(f"{'precision':20} {'ms/step':>9} {'speed-up':>9} {'peak GiB':>9} {'of fp32':>8} {'last loss':>10}")
    exact: Timed | None = None
    found: dict[str, Any] = {}
    for name, settings in kinds.items():
        timed = train(task, sizes, **settings)
        exact = exact or timed
        speed, share = exact.step_ms / timed.step_ms, timed.peak_gib / exact.peak_gib
        loss = timed.reports[-1].curves["loss"][-1]
        print(f"{name:20} {timed.step_ms:9.2f} {speed:9.2f} {timed.peak_gib:9.2f} {share:8.2f} {loss:10.4f}")
        if name == "bf16":
            found = {"bf16_speed_up": round(speed, 2), "bf16_memory_share": round(share, 2)}
    return found


def compiled(sizes: Sizes) -> dict[str, Any]:
    """What torch.compile gains, and after how many steps it has earned its start."""
    task = Blocks(sizes.width, sizes.depth, sizes.batch * sizes.num_steps)
    eager, fast = (train(task, sizes, compile=on) for on in (False, True))
    gain = eager.step_ms / fast.step_ms
    saved_s = (eager.step_ms - fast.step_ms) / 1e3
    paid_s = fast.first_s - eager.first_s + saved_s * (sizes.num_steps // 2)
    even = round(paid_s / saved_s) if saved_s > 0 else None
    note = fast.run.notes.get("compile", "")
    print(
        f"compile: {eager.step_ms:.2f} -> {fast.step_ms:.2f} ms/step ({gain:.2f}x), start costs {paid_s:.1f} s, ",
        end="",
    )
    print(f"earned after {even} steps {note}" if even else f"never earned {note}")
    return {"compile_speed_up": round(gain, 2), "compile_break_even_steps": even}


def syncs(sizes: Sizes) -> dict[str, Any]:
    """Whether any step makes the host wait: CUDA's own check, in its strictest mode."""
    task = Blocks(sizes.width, sizes.depth, sizes.batch * sizes.num_steps)
    config = TrainConfig(batch_size=sizes.batch, epochs=2, ema_decay=0.9, schedule="cosine", eval_every=99)
    run = loop.start(task, config, task.splits(0))
    loop.advance(run)
    started = run.state.progress.step
    if ON_GPU:
        torch.cuda.set_sync_debug_mode("error")
    try:
        loop.advance(run, lambda: run.state.progress.step >= started + sizes.num_steps - 1)
        waited = 0 if ON_GPU else None
    except RuntimeError as error:
        waited = 1
        print(f"a step waited for the device: {error}")
    finally:
        if ON_GPU:
            torch.cuda.set_sync_debug_mode("default")
    print(
        f"syncs: {'none' if not waited else 'some'} in {sizes.num_steps - 1} steps{'' if ON_GPU else ' (not checked)'}"
    )
    return {"syncs_between_reports": waited}


def loaders(sizes: Sizes) -> dict[str, Any]:
    """Share of the time that goes into waiting for data, for samples that each cost half a millisecond."""
    batch = min(64, sizes.batch)
    small = dataclasses.replace(sizes, batch=batch)
    task = Blocks(sizes.width, sizes.depth, batch * sizes.num_steps)
    shares = {"resident": train(task, small).reports[-1].data_wait_share}
    for num_workers in (0, 2, 8) if ON_GPU else (0, 2):
        slow = train(dataclasses.replace(task, slow=True), small, num_workers=num_workers)
        shares[f"{num_workers} workers"] = slow.reports[-1].data_wait_share
    print("waiting for data: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items()))
    return {"wait_share_resident": round(shares["resident"], 3), "wait_share_2_workers": round(shares["2 workers"], 3)}


def rescue(sizes: Sizes) -> dict[str, Any]:
    """A batch that does not fit: the result must be that of the micro-batch it ends with."""
    memory.forget()
    task = Blocks(sizes.width, sizes.depth, sizes.batch * sizes.num_steps)
    roomy = train(task, sizes)
    tight = task
    if ON_GPU:
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory / 2**30
        held = train(task, sizes, micro_batch=max(1, sizes.batch // 16)).peak_gib  # mostly weights and moments
        room = held + 0.4 * (roomy.peak_gib - held)
        del roomy
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(min(1.0, room / total))
    else:
        room, tight = 0.0, dataclasses.replace(task, room=sizes.batch // 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rescue warns, as it should
        try:
            rescued = train(tight, sizes)
        finally:
            if ON_GPU:
                torch.cuda.set_per_process_memory_fraction(1.0)
    fits = rescued.run.state.micro_batch
    memory.forget()
    asked = train(task, sizes, micro_batch=fits)
    equal = rescued.run.state.weights_sha256() == asked.run.state.weights_sha256()
    late = rescued.first_s - asked.first_s
    where = f"room for {room:.2f} GiB" if ON_GPU else "simulated"
    print(f"out of memory ({where}): {sizes.batch} -> {fits} samples at a time, {late:.2f} s lost, equal: {equal}")
    return {"rescue_equals_the_small_micro_batch": equal and fits is not None and fits < sizes.batch}


def resume(sizes: Sizes) -> dict[str, Any]:
    """Stopped in mid-epoch and gone on with from a file: the same weights, in each precision."""
    equal = {}
    for precision in ("fp32", "bf16", "fp16"):
        task = Blocks(sizes.width, sizes.depth, sizes.batch * sizes.num_steps - 1)
        config = TrainConfig(batch_size=sizes.batch, epochs=2, ema_decay=0.9, precision=precision, clip_norm=0.5)
        hashes = []
        for stop in (None, sizes.num_steps + 2):
            run = loop.start(task, config, task.splits(0))
            if stop is not None:
                while run.state.progress.step < stop:
                    loop.advance(run, lambda run=run, stop=stop: run.state.progress.step >= stop)
                file = io.BytesIO()
                torch.save(run.state.save(), file)
                file.seek(0)
                run.close()
                run = loop.start(task, config, task.splits(0))
                run.load(torch.load(file, weights_only=True, map_location="cpu"))
            while not loop.advance(run).done:
                pass
            hashes.append(run.state.weights_sha256())
            run.close()
        equal[precision] = hashes[0] == hashes[1]
    print(f"exact resume on the device: {equal}")
    return {"resume_bit_equal": all(equal.values())}


BARS: dict[str, tuple[Callable[[Any, Any], bool], Any]] = {
    "wait_share_resident": (lambda value, bar: value <= bar, 0.01),
    "rescue_equals_the_small_micro_batch": (lambda value, bar: value is bar, True),
    "resume_bit_equal": (lambda value, bar: value is bar, True),
}
GPU_BARS: dict[str, tuple[Callable[[Any, Any], bool], Any]] = {
    "syncs_between_reports": (lambda value, bar: value == bar, 0),
    "bf16_speed_up": (lambda value, bar: value >= bar, 2.0),  # the tutorial: about twice as fast
    "bf16_memory_share": (lambda value, bar: value <= bar, 0.9),  # weights and moments stay fp32
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    quick = parser.parse_args().quick or not ON_GPU
    warnings.filterwarnings("ignore", message="precision=fp16 on a CPU")
    tiny = Sizes(width=32, depth=2, batch=32, num_steps=8)
    large = tiny if quick else Sizes(width=2048, depth=12, batch=8192, num_steps=24)
    small = tiny if quick else Sizes(width=512, depth=8, batch=1024, num_steps=60)
    name = torch.cuda.get_device_name() if ON_GPU else "CPU: tiny sizes, no speed means anything"
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {name}\n")
    began = time.perf_counter()
    found: dict[str, Any] = {}
    for part, sizes in (
        (precisions, large), (compiled, small), (syncs, small), (loaders, small), (rescue, large), (resume, small)
    ):  # fmt: skip
        found |= part(sizes)
    found["seconds"] = round(time.perf_counter() - began, 1)
    bars = {**BARS, **(GPU_BARS if ON_GPU and not quick else {}), "seconds": (lambda value, bar: value <= bar, 360)}
    result = {}
    for key, value in found.items():
        holds, bar = bars.get(key, (lambda value, bar: True, None))
        result[key] = {"value": value, "bar": bar, "met": holds(value, bar)}
    print()
    for key, entry in result.items():
        said = "      " if entry["bar"] is None else "met   " if entry["met"] else "MISSED"
        print(f"{said}  {key}: {entry['value']} (bar: {entry['bar']})")
    print(json.dumps(result))
    return 0 if all(entry["met"] for entry in result.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
