"""What a trial and a report cost the driver of a cluster: 100 and 1,000 short trials on 1, 4 and 16 nodes.

The nodes are real raylets on this machine (Ray's own tool for tests), joined by `--address` with a token; the work is
fake: steps that sleep, so that the machine is free for what is measured. Slots are the same for any number of nodes:
the first nodes have a CPU each, or several, the others none. Driver cost is the CPU time of the driver's process.
Bars: what one more trial costs grows at most 1.3x from the first 100 to 1,000; all trials together take at most 1.15x
of work / slots. The last line printed is one JSON object.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STEPS = 3  # an epoch of 1,257 samples in batches of 512
BARS = {"growth": 1.3, "total": 1.15}


@dataclass(frozen=True)
class Took:
    """One sweep: CPU seconds of its driver, wall seconds of its trials from the first actor to the last report."""

    trials: int
    epochs: int
    driver_s: float
    trials_s: float
    total: float
    """`trials_s` over what the sleeping alone takes in that many slots."""


def sweep(address: str, place: Path, *, trials: int, epochs: int, slots: int, work_s: float) -> Took:
    """A scan of `trials` learning rates whose steps sleep `work_s` seconds a trial in all; checked for completeness."""
    place.mkdir(parents=True)
    arguments = ["--name", "s", "--task", f"{ROOT / 'benchmarks/sleepy.py'}:Sleepy", "--lrs", f"1e-6..1e-2:{trials}"]
    arguments += ["--epochs", str(epochs), "--set", "batch_size=512", "--set", "threads=1"]
    arguments += ["--set", f"task.step_s={work_s / STEPS / epochs}", "--address", address, "--progress", "none"]
    arguments += ["--trials-at-once", str(slots), "--cpus-per-trial", "1", "--json"]
    with (place / "out.json").open("w") as out, (place / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "sweeps.lr_scan", *arguments],
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=out,
            stderr=log,
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"the sweep in {place} ended with {process.returncode}:\n{(place / 'log').read_text()[-2000:]}")
    result = json.loads((place / "results/s/result.json").read_text())
    complete = sum(trial["state"] == "complete" and trial["epochs"] == epochs for trial in result["trials"])
    if complete != trials:
        sys.exit(f"{complete} of {trials} trials are complete in {place}")
    trials_s = json.loads((place / "results/s/phases.json").read_text())["trials_s"]
    took = Took(trials, epochs, used.ru_utime + used.ru_stime, trials_s, trials_s / (trials * work_s / slots))
    print(
        f"  {trials:5d} trials of {epochs:2d} report(s): driver {took.driver_s:6.1f} s of CPU, "
        f"trials {took.trials_s:6.1f} s, {took.total:.2f}x of work / slots",
        flush=True,
    )
    return took


def on_nodes(
    num_nodes: int, place: Path, sizes: tuple[int, ...], reports: int, slots: int, work_s: float
) -> tuple[list[Took], Took | None]:
    """Sweeps of so many trials with one report each, then the middle size again with `reports` each, if more than 1."""
    from ray.cluster_utils import Cluster

    shares = [slots // num_nodes + (index < slots % num_nodes) for index in range(num_nodes)]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": shares[0], "include_dashboard": False})
    try:
        for share in shares[1:]:
            cluster.add_node(num_cpus=share)
        print(f"{num_nodes} node(s), {slots} slots, {work_s:g} s of work a trial", flush=True)
        took = [sweep(cluster.address, place / str(n), trials=n, epochs=1, slots=slots, work_s=work_s) for n in sizes]
        longer = None
        if reports > 1:
            size = sizes[1]
            longer = sweep(cluster.address, place / "longer", trials=size, epochs=reports, slots=slots, work_s=work_s)
    finally:
        cluster.shutdown()
    return took, longer


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--quick", action="store_true", help="one node, 60 trials at most, one report each; says little")
    flags.add_argument("--nodes", type=int, nargs="+", default=[1, 4, 16], help="default: 1 4 16")
    flags.add_argument("--work-s", type=float, default=2.0, help="sleep of each trial (default: 2)")
    flags.add_argument("--slots", type=int, default=8, help="trials at a time (default: 8)")
    asked = flags.parse_args()
    nodes, sizes, slots, work_s = asked.nodes, (20, 100, 1000), asked.slots, asked.work_s
    reports = 11
    if asked.quick:
        nodes, sizes, slots, work_s, reports = [1], (4, 20, 60), 2, 0.2, 1
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    said: dict[str, dict[str, Any]] = {}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
        for num_nodes in nodes:
            (few, some, many), longer = on_nodes(
                num_nodes, Path(folder) / str(num_nodes), sizes, reports, slots, work_s
            )
            first_ms = 1000 * (some.driver_s - few.driver_s) / (some.trials - few.trials)
            later_ms = 1000 * (many.driver_s - some.driver_s) / (many.trials - some.trials)
            print(
                f"  one more trial: {first_ms:.1f} ms up to {some.trials}, {later_ms:.1f} ms up to {many.trials}",
                flush=True,
            )
            growth = later_ms / first_ms if first_ms > 0 else float("inf")
            for name, value in (("growth", growth), ("total", many.total)):
                said[f"{name}_{num_nodes}"] = {
                    "value": round(value, 3),
                    "bar": BARS[name],
                    "met": value <= BARS[name],
                }
            if longer is not None:
                report_ms = 1000 * (longer.driver_s - some.driver_s) / (some.trials * (reports - 1))
                print(f"  one more report: {report_ms:.1f} ms", flush=True)
    print(f"{time.perf_counter() - began:.0f} s in all, load {os.getloadavg()[0]:.1f}")
    print(json.dumps(said))
    return 0 if all(entry["met"] for entry in said.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
