"""What it costs to have a trial's reports in MLflow: ours beside Ray's MLflowLoggerCallback, into SQLite.

One trial, from its start until all of it can be read back: 200 reports of 12 metrics, made as fast as each side takes
them. Beside the time in all it is measured how long the driver's loop waits at each report: in it, every other trial
waits too. Each side has a new database, made before its clock starts. Equal work: every point is read back and
compared. Bars: ours takes at most 0.1x of the time, and 0.02x of the time in the loop. The last line printed is one
JSON object.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sweeps.record.history import History
from sweeps.record.store import Folder
from sweeps.record.trial import TrialRecord
from sweeps.sweep import Sweep
from sweeps.tracking.client import import_client, make_database
from sweeps.tracking.tracker import Tracker
from trainable.config import TrainConfig

NUM_METRICS = 12  # the number of the report is one of them: Ray logs it beside the others
PARAMS = {"lr": 1e-3, "batch_size": 32}
WAIT_S = 300.0
BARS = {"wall": 0.1, "loop": 0.02}


@dataclass(frozen=True)
class Took:
    """Seconds: in all, of the loop at its reports in all and at the slowest of them, and, beside it, of the record."""

    wall_s: float
    loop_s: float
    slowest_s: float
    record_s: float = 0.0


def metrics_of(report: int) -> dict[str, float]:
    return {f"metric_{index}": report / (index + 1) for index in range(NUM_METRICS - 1)}


def ours(uri: str, folder: Path, reports: int, pause_s: float) -> tuple[Took, str, str]:
    """How long it took, the trial's run, and what the number of a report is called."""
    history = History(Folder(folder).history)
    sweep = Sweep(name="tracked", question="lr_scan", task="digits", train=TrainConfig(threads=1), points=(PARAMS,))
    waits, records = [], []
    began = time.perf_counter()
    tracker = Tracker(uri, sweep, "tracked", Folder(folder), tags={}, parent_run_id=None, run_ids={})
    tracker.start()
    for report in range(1, reports + 1):
        state: Any = "running" if report < reports else "complete"
        record = TrialRecord(0, PARAMS, state, 1, report, float(report), {}, None, {}, None, None, None)
        at = time.perf_counter()
        # On the disk, whether MLflow is there or not: the report of the sweep's own record, and not of tracking.
        said: dict[str, Any] = {"epoch": float(report), "step": report, "first_step": report - 1, "curves": {}}
        said |= {"report": report, "time_ms": int(time.time() * 1000), "metrics": metrics_of(report)}
        history.append(0, said)
        records.append(time.perf_counter() - at)
        at = time.perf_counter()
        tracker.update(record)
        waits.append(time.perf_counter() - at)
        time.sleep(pause_s)
    if problem := tracker.close("FINISHED", [], WAIT_S):
        raise SystemExit(problem)
    took = Took(time.perf_counter() - began, sum(waits), max(waits), sum(records))
    return took, tracker.run_ids()[0], "epoch"


def rays(uri: str, folder: Path, reports: int, pause_s: float) -> tuple[Took, str, str]:
    from ray.air.integrations.mlflow import MLflowLoggerCallback
    from ray.tune.experiment import Trial

    trial = Trial("tracked", stub=True, config=dict(PARAMS))
    waits = []
    began = time.perf_counter()
    callback = MLflowLoggerCallback(tracking_uri=uri, experiment_name="tracked")
    callback.setup()
    callback.log_trial_start(trial)
    for report in range(1, reports + 1):
        result = {**metrics_of(report), "training_iteration": report}
        at = time.perf_counter()
        callback.log_trial_result(report, trial, result)
        waits.append(time.perf_counter() - at)
        time.sleep(pause_s)
    callback.log_trial_end(trial)
    took = Took(time.perf_counter() - began, sum(waits), max(waits))
    return took, callback._trial_runs[trial], "training_iteration"


Side = Callable[[str, Path, int, float], tuple[Took, str, str]]
SIDES: dict[str, Side] = {"ours": ours, "ray": rays}


def measured(side: str, reports: int, pause_s: float) -> Took:
    """One trial tracked in a fresh folder, with what arrived compared to what was said."""
    folder = Path(tempfile.mkdtemp(prefix=f"tracking-{side}-"))
    try:
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        make_database(uri, "part")
        took, run_id, number = SIDES[side](uri, folder, reports, pause_s)
        client = import_client()(tracking_uri=uri)
        names = {*metrics_of(1), number}
        found = client.get_run(run_id).data.metrics.keys()
        if found != names:
            raise SystemExit(f"{side} logged {sorted(found)}, and was told {sorted(names)}")
        for name in names:
            points = sorted((point.step, point.value) for point in client.get_metric_history(run_id, name))
            if points != [(step, {**metrics_of(step), number: step}[name]) for step in range(1, reports + 1)]:
                raise SystemExit(f"{side}: the points of {name} are not what was said: {points[:5]} ...")
        return took
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def show(words: str, found: dict[str, list[Took]]) -> None:
    print(f"\n{words}\n{'':<6}{'wall s':>24}{'loop ms':>24}{'slowest report ms':>20}")
    for side, times in found.items():
        wall = " ".join(f"{took.wall_s:.2f}" for took in times)
        loop = " ".join(f"{took.loop_s * 1e3:.1f}" for took in times)
        print(f"{side:<6}{wall:>24}{loop:>24}{max(took.slowest_s for took in times) * 1e3:>20.1f}")
    own = statistics.median(took.record_s for took in found["ours"])
    print(f"beside it, ours: {own * 1e3:.0f} ms for the sweep's own record, each report on the disk before it counts")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one pair, without the slower reports")
    args = parser.parse_args()
    pairs, reports = (1 if args.quick else args.pairs), 200
    for side in SIDES:  # whoever comes first would pay for the imports
        measured(side, 2, 0.0)
    found: dict[str, list[Took]] = {side: [] for side in SIDES}
    for pair in range(pairs):
        for side in sorted(SIDES, reverse=bool(pair % 2)):
            found[side].append(measured(side, reports, 0.0))
    show(f"{reports} reports of {NUM_METRICS} metrics, as fast as they are taken, {pairs} pair(s)", found)
    if not args.quick:
        show("the same, 20 ms apart", {side: [measured(side, reports, 0.02)] for side in SIDES})
    load = os.getloadavg()[0]
    print(f"\nload {load:.1f}; every point was read back and is what was said")
    bars = {}
    for name, bar in BARS.items():
        ratios = [getattr(a, f"{name}_s") / getattr(b, f"{name}_s") for a, b in zip(*found.values(), strict=True)]
        value = statistics.median(ratios)
        bars[f"tracking_{name}_ours_to_ray"] = {"value": round(value, 4), "bar": bar, "met": value <= bar}
    print(json.dumps(bars))
    return 0 if all(bar["met"] for bar in bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
