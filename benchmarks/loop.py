"""One trial's loop against a hand-written one; its data, and its checkpoints, against what a user would write.

Interleaved, equal work checked by bit-equal weights. Ratios are medians of pairs. The last line printed is one JSON
object {name: {value, bar, met}}; exit code 1 if a bar is missed. `--quick` takes less than a minute.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import loop_sides as sides
import torch
from torch.utils.data import DataLoader, TensorDataset

from trainable import checkpoint
from trainable.data import ResidentBatches, step_sizes
from trainable.saving import Saver

BARS = {
    "loop_over_hand_written": ("<=", 1.05),
    "weights_bit_equal": ("==", True),
    "resident_over_loader": (">=", 10.0),
    "checkpoint_blocks_share": ("<=", 0.15),
    "verification_share_of_load": ("<=", 0.10),
}
CHECKPOINT_MB = 50


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer epochs, 3 pairs")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} CPUs, one thread used\n")
    found = {**loops(quick), **batches(quick), **checkpoints(quick)}
    result = {}
    for name, value in found.items():
        relation, bar = BARS[name]
        met = {"<=": value <= bar, ">=": value >= bar, "==": value == bar}[relation]
        result[name] = {"value": value, "bar": bar, "met": met}
        print(f"{'met   ' if met else 'MISSED'}  {name}: {value} {relation} {bar}")
    print(json.dumps(result))
    return 0 if all(entry["met"] for entry in result.values()) else 1


def loops(quick: bool) -> dict[str, object]:
    """Ours and the hand-written loop in pairs; beside them what else there is."""
    num_epochs, num_pairs = (20, 3) if quick else (60, 5)
    num_steps = num_epochs * len(step_sizes(len(sides.splits().train[0]), sides.BATCH, merge_single=False))
    others: dict[str, Callable[[int], sides.Outcome]] = {
        "ours, default (no decay on biases)": sides.ours_by_default,
        "hand-written with a DataLoader": sides.by_hand_with_loader,
    }
    for name, side in (("accelerate", sides.with_accelerate), ("lightning", sides.with_lightning)):
        if sides.INSTALLED[name]:
            others[name] = side
    for side in (sides.ours, sides.by_hand, *others.values()):
        side(2)  # warm
    seconds: dict[str, list[float]] = {"hand-written": [], "ours": [], **{name: [] for name in others}}
    equal = True
    for pair in range(num_pairs):
        both = {"ours": sides.ours, "hand-written": sides.by_hand}
        outcomes = {name: both[name](num_epochs) for name in (both if pair % 2 else reversed(both))}
        for name, outcome in outcomes.items():
            seconds[name].append(outcome.seconds)
        weights = [outcome.weights for outcome in outcomes.values()]
        equal &= all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
        for name, side in others.items():
            seconds[name].append(side(num_epochs).seconds)
    print(f"digits MLP, batch {sides.BATCH}, {num_epochs} epochs, {num_pairs} interleaved rounds, evaluation included")
    print(f"{'loop':38} {'us/step':>8} {'x hand-written':>15}   of each pair")
    for name, times in seconds.items():
        ratios = [ours / theirs for ours, theirs in zip(times, seconds["hand-written"], strict=True)]
        micros = statistics.median(times) / num_steps * 1e6
        print(f"{name:38} {micros:8.0f} {statistics.median(ratios):15.3f}   {' '.join(f'{r:.2f}' for r in ratios)}")
    for name, there in sides.INSTALLED.items():
        if not there:
            print(f"{name:38} not installed")
    print(f"final weights of ours and of the hand-written loop: {'equal to the bit' if equal else 'DIFFERENT'}\n")
    ratio = statistics.median(o / h for o, h in zip(seconds["ours"], seconds["hand-written"], strict=True))
    return {"loop_over_hand_written": round(ratio, 3), "weights_bit_equal": equal}


def batches(quick: bool) -> dict[str, object]:
    """Batches a second without any training: resident ones against DataLoader(TensorDataset)."""
    tensors = sides.splits().train
    num_epochs, num_pairs = (20, 3) if quick else (50, 5)
    sizes = step_sizes(len(tensors[0]), sides.BATCH, merge_single=False)
    resident = ResidentBatches(tensors, sizes, torch.device("cpu"), seed=0)
    loader = DataLoader(TensorDataset(*tensors), sides.BATCH, shuffle=True)

    def rate(epoch: Callable[[int], object]) -> float:
        began = time.perf_counter()
        count = sum(1 for number in range(num_epochs) for _ in epoch(number))
        return count / (time.perf_counter() - began)

    pairs = [(rate(lambda e: resident.epoch(e, 0)), rate(lambda e: loader)) for _ in range(num_pairs)]
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(f"batches/s: resident {ours:,.0f}, DataLoader(TensorDataset) {theirs:,.0f}: {ratio:.0f}x\n")
    return {"resident_over_loader": round(ratio, 1)}


def checkpoints(quick: bool) -> dict[str, object]:
    """How long a save blocks the loop against a save that waits; what verification adds to a load."""
    num_tensors = 50
    state = {f"layer{n}": torch.randn(CHECKPOINT_MB * 2**20 // 4 // num_tensors) for n in range(num_tensors)}
    num_rounds = 5 if quick else 11
    blocked, waited, plain, shares, loads = [], [], [], [], []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        saver = Saver(root / "beside")
        for number in range(num_rounds + 1):
            began = time.perf_counter()
            saver.save(state, step=number, config={})
            blocked.append(time.perf_counter() - began)
            saver.wait()  # not counted: an epoch lies between two saves
            waited.append(_timed(lambda n=number: checkpoint.write(root / f"sync{n}", state, step=n, config={})))
            plain.append(_timed(lambda: torch.save(state, root / "plain.pt")))
            folder = root / f"sync{number}"
            verified = _timed(lambda f=folder: checkpoint.read(f))
            bare = _timed(lambda f=folder: torch.load(f / checkpoint.STATE, map_location="cpu", weights_only=True))
            loads.append(verified)
            shares.append((verified - bare) / verified)
        saver.close()
    first, blocked, waited, plain, shares = blocked[0], blocked[1:], waited[1:], plain[1:], shares[1:]
    share = statistics.median(b / w for b, w in zip(blocked, waited, strict=True))
    plain_share = statistics.median(b / p for b, p in zip(blocked, plain, strict=True))
    verification = statistics.median(shares)
    print(
        f"checkpoint of {CHECKPOINT_MB} MB: blocks {statistics.median(blocked) * 1e3:.1f} ms (the first "
        f"{first * 1e3:.1f} ms), a durable save that waits {statistics.median(waited) * 1e3:.1f} ms, "
        f"a bare torch.save {statistics.median(plain) * 1e3:.1f} ms ({plain_share:.2f}x)\n"
        f"load {statistics.median(loads[1:]) * 1e3:.1f} ms, of which verification {verification:.1%} "
        "(hashing goes on beside the load, so this needs a second core that is free)\n"
    )
    return {"checkpoint_blocks_share": round(share, 3), "verification_share_of_load": round(verification, 3)}


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
