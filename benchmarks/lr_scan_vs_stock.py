"""`python -m sweeps.lr_scan` against the scan a user would write from the docs, and against a bare loop.

Whole processes, interleaved, each in a fresh folder; equal work is checked by the hash of every trial's final weights.
Bar: the median of the pairwise ratios ours/stock is at most 0.6. The last line printed is one JSON object.
Exit code 1 if a bar is missed.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LRS = ["3e-3", "1e-3", "3e-4"]
NAME = "scan"
OURS_OVER_STOCK = 0.6
TIMEOUT_S = 300

COMMANDS = {
    "ours": ["-m", "sweeps.lr_scan", "--lrs", *LRS, "--epochs", "1", "--name", NAME, "--results", "results", "--json"],
    "stock": [str(HERE / "stock_lr_scan.py"), "--out", ".", "--lrs", *LRS, "--epochs", "1"],
    "bare": [str(HERE / "bare_lr_scan.py"), "--out", ".", "--lrs", *LRS, "--epochs", "1"],
}
# Read by Ray and MLflow: a cluster or a server of whoever runs this must not be drawn in.
FOREIGN_VARIABLES = ("RAY_ADDRESS", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID")


@dataclass
class Run:
    """One process: how long it took, what its trials ended with (lr -> sha256), where its time went."""

    side: str
    wall_s: float
    weights: dict[float, str]
    phases: dict[str, float]


def run(side: str) -> Run:
    """Run one side in a folder of its own, in a process group of its own, and leave neither behind."""
    folder = Path(tempfile.mkdtemp(prefix=f"{side}-"))
    try:
        wall_s = _timed(COMMANDS[side], folder)
        weights, phases = _read_ours(folder) if side == "ours" else _read_plain(folder / f"{side}.json")
        if set(weights) != {float(lr) for lr in LRS}:
            raise SystemExit(f"{side}: expected complete trials of {', '.join(LRS)}, found {sorted(weights)}")
        return Run(side, wall_s, weights, phases)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _timed(arguments: list[str], folder: Path) -> float:
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN_VARIABLES}
    log = folder / "output.txt"
    with log.open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(TIMEOUT_S)
            wall_s = time.perf_counter() - began
        finally:
            _end_group(process)
    if code != 0:
        tail = log.read_text(errors="replace")[-3000:]
        raise SystemExit(f"{' '.join(arguments)} ended with exit code {code}:\n{tail}")
    return wall_s


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """What a run left behind must neither disturb the next one nor stay: a moment to go, then the end."""
    deadline = time.monotonic() + (5 if process.poll() is not None else 0)
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read_ours(folder: Path) -> tuple[dict[float, str], dict[str, float]]:
    results = folder / "results" / NAME
    result = json.loads((results / "result.json").read_text())
    complete = [trial for trial in result["trials"] if trial["state"] == "complete"]
    phases_file = results / "phases.json"
    phases = json.loads(phases_file.read_text()) if phases_file.exists() else {}
    return {float(trial["params"]["lr"]): trial["weights_sha256"] for trial in complete}, phases


def _read_plain(file: Path) -> tuple[dict[float, str], dict[str, float]]:
    result = json.loads(file.read_text())
    return {float(lr): trial["weights_sha256"] for lr, trial in result["lrs"].items()}, result["phases"]


def warm_up() -> None:
    """The first import after a while reads from disk; none of the sides shall pay for that."""
    modules = "torch, ray.tune, optuna, mlflow, sklearn.datasets, torch.utils.tensorboard"
    subprocess.run([sys.executable, "-c", f"import {modules}"], check=False, capture_output=True)


def print_phases(runs: list[Run], side: str) -> None:
    """Medians, and their share of the median process; a name with a colon is a part of the phase before the colon."""
    own = [run for run in runs if run.side == side]
    wall_s = statistics.median(run.wall_s for run in own)
    print(f"\n{side}: {wall_s:.1f} s a process")
    if not all(run.phases for run in own):
        print("  it wrote no phases")
        return
    outside_s = wall_s
    for name in own[0].phases:
        values = [run.phases[name] for run in own if isinstance(run.phases.get(name), int | float)]
        if not values:
            continue
        seconds = statistics.median(values)
        is_part = ":" in name
        outside_s -= 0 if is_part else seconds
        print(f"  {name.removesuffix('_s'):<42}{seconds:6.2f} s {seconds / wall_s:6.0%}{'  (part)' if is_part else ''}")
    if outside_s > 0:
        print(f"  {'not in a phase: interpreter start, exit':<42}{outside_s:6.2f} s {outside_s / wall_s:6.0%}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="runs of each side")
    parser.add_argument("--quick", action="store_true", help="one run of each side, under a minute")
    args = parser.parse_args()
    num_pairs = 1 if args.quick else args.pairs
    if num_pairs < 1:
        parser.error(f"--pairs {num_pairs} must be at least 1")

    packages = ("torch", "ray", "optuna", "mlflow")
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    print(f"{datetime.date.today()}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}")
    warm_up()
    runs: list[Run] = []
    for pair in range(num_pairs):
        for side in COMMANDS:
            runs.append(run(side))
            load = os.getloadavg()[0]
            print(f"pair {pair + 1}: {side:<6}{runs[-1].wall_s:6.2f} s   (load {load:.1f})", flush=True)

    for side in COMMANDS:
        print_phases(runs, side)

    walls = {side: [run.wall_s for run in runs if run.side == side] for side in COMMANDS}
    ratios = {
        other: [ours / theirs for ours, theirs in zip(walls["ours"], walls[other], strict=True)]
        for other in ("stock", "bare")
    }
    print()
    for other, values in ratios.items():
        spread = f"{min(values):.2f} to {max(values):.2f}"
        print(f"ours / {other}: median {statistics.median(values):.2f} ({spread}, {num_pairs} pairs)")
    expected = next(run.weights for run in runs if run.side == "bare")
    num_different = sum(run.weights[lr] != expected[lr] for run in runs for lr in expected)
    num_compared = len(runs) * len(expected)
    print(f"equal work: {num_compared - num_different} of {num_compared} trials end with the bare loop's very weights")

    ratio = round(statistics.median(ratios["stock"]), 3)
    bars = {
        "lr_scan_ours_over_stock": {"value": ratio, "bar": OURS_OVER_STOCK, "met": ratio <= OURS_OVER_STOCK},
        "lr_scan_trials_with_other_weights": {"value": num_different, "bar": 0, "met": num_different == 0},
    }
    print(json.dumps(bars))
    return 0 if all(bar["met"] for bar in bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
