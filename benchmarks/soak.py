"""A random soak: small sweeps, faults drawn at random, each sweep compared with the one that nothing happened to.

Faults: SIGKILL of the driver at random times and at crash points, SIGTERM, killed workers, torn checkpoints, full
disks, a tracking store that fails, damage to what lies in the folder while nobody runs. A sweep is Equal when params,
histories, decisions, best and weights are those of the unbroken one, and nothing is left RUNNING or shown twice.
The last line printed is one JSON object. Exit code 1 if a bar is missed.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.faults.helper import (
    STEPS,
    STEPS_PER_EPOCH,
    Facts,
    arguments,
    assert_all_points_are_shown,
    assert_equal_to_unbroken,
    facts,
    finished_trials,
    folder_in,
    log_of,
    resumed,
    run,
    started,
    steps_taken,
)
from tests.helpers.drivers import TIMEOUT_S, kill

# How likely each fault is drawn, and how many intervals of training it may cost for each running trial.
FAULTS = {
    "driver killed at a random time": (5, 1),
    "driver killed while it starts": (2, 1),
    "driver killed at a crash point": (5, 1),
    "driver asked to stop (SIGTERM)": (2, 0),
    "worker killed at a crash point": (4, 1),
    "checkpoint torn, worker killed": (2, 1),
    "disk full in the ledger": (1, 1),
    "tracking store fails twice": (1, 0),
    "newest checkpoint damaged": (2, 3),  # at worst a trial begins again
    "Tune's files damaged": (1, 0),
}
IN_DRIVER = ("ask", "report", "ledger-before-commit", "ledger-after-commit", "ship", "tell")
IN_WORKER = ("trial-start", "step", "checkpoint-before-manifest", "checkpoint-after-manifest")


@dataclass
class Sweep:
    """One sweep, what was done to it, and what came of it."""

    place: Path
    at_once: int
    faults: list[str] = field(default_factory=list)
    redone: int = 0
    allowed: int = 0
    recomputed: int = 0
    problem: str | None = None

    def command(self) -> tuple[str, ...]:
        there = (folder_in(self.place) / "ledger.db").exists()
        return resumed(self.at_once) if there else arguments(self.place, self.at_once)


def suffer(sweep: Sweep, fault: str, draw: random.Random) -> None:
    """Let one fault happen: in a driver that is started for it, or to the folder while there is none."""
    place, folder = sweep.place, folder_in(sweep.place)
    if fault == "newest checkpoint damaged":
        newest = sorted(folder.glob("trials/*/checkpoint_*/state.pt"), key=lambda path: path.stat().st_mtime)[-1:]
        for path in newest:
            data = bytearray(path.read_bytes())
            data[draw.randrange(len(data))] ^= 1
            path.write_bytes(data[: draw.choice((0, len(data) // 2, len(data) - 1, len(data)))])
        return
    if fault == "Tune's files damaged":
        for path in filter(Path.is_file, folder.glob("trials/*")):
            path.write_bytes(draw.choice((b"", b"\x80garbage", path.read_bytes()[: path.stat().st_size // 2])))
        return
    few, in_driver, in_worker = draw.randint(1, 4), draw.choice(IN_DRIVER), draw.choice(IN_WORKER)
    count = draw.randint(1, 200) if in_worker == "step" else few
    crash = {
        "driver killed at a crash point": f"{in_driver}:{few}:kill",
        "worker killed at a crash point": f"{in_worker}:{count}:kill",
        "checkpoint torn, worker killed": f"checkpoint-before-manifest:{few}:torn",
        "disk full in the ledger": f"ledger-before-commit:{few}:enospc",
        "tracking store fails twice": "ship:1:enospc,ship:3:raise",
    }.get(fault, "")
    counts = str(place / f"counts-{len(sweep.faults)}")  # of this driver and its workers alone
    with started(place, *sweep.command(), crash=crash, STEADYSWEEP_CRASH_STATE=counts) as process:
        if not crash:
            time.sleep(draw.uniform(0.2, 5) if "starts" in fault else draw.uniform(4, 16))
            if "SIGTERM" in fault and process.poll() is None:
                process.terminate()
                process.wait(timeout=60)
            kill(process)
        code = process.wait(timeout=TIMEOUT_S)
    fine = {0, -9, 143, -15} | ({1} if fault == "disk full in the ledger" else set())
    assert code in fine, f"exit code {code} after: {fault} {crash}\n{log_of(place)}"


def go_through(sweep: Sweep, unbroken: Facts, num_faults: int, draw: random.Random) -> None:
    """Some faults, then a driver that is left alone; what is wrong afterwards."""
    folder, before = folder_in(sweep.place), {}
    names, weights = list(FAULTS), [weight for weight, _ in FAULTS.values()]
    try:
        for _ in range(num_faults):
            (fault,) = draw.choices(names, weights)
            sweep.faults.append(fault)
            sweep.allowed += FAULTS[fault][1] * sweep.at_once * STEPS_PER_EPOCH
            suffer(sweep, fault, draw)
            now = finished_trials(folder)
            sweep.recomputed += sum(now.get(number) != trial for number, trial in before.items())
            before = now
        code = run(sweep.place, *sweep.command())
        assert code == 0, f"exit code {code} at the end\n{log_of(sweep.place)}"
        now = finished_trials(folder)
        sweep.recomputed += sum(now.get(number) != trial for number, trial in before.items())
        sweep.redone = steps_taken(sweep.place) - STEPS
        assert_equal_to_unbroken(sweep.place, unbroken)
        assert_all_points_are_shown(sweep.place)
    except Exception as error:  # also of a timeout: it is a finding, and the soak goes on
        sweep.problem = f"{type(error).__name__}: {error}"[:4000]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="no sweep begins later")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn; when a kill hits is up to the machine")
    parser.add_argument("--quick", action="store_true", help="one sweep, one fault: less than a minute")
    parser.add_argument("--keep", type=Path, help="where the folders of sweeps that are not Equal are left")
    args = parser.parse_args()
    draw, until = random.Random(args.seed), time.monotonic() + 60 * args.minutes
    root = Path(tempfile.mkdtemp(prefix="soak-"))
    sweeps: list[Sweep] = []
    try:
        (root / "unbroken").mkdir()
        assert run(root / "unbroken", *arguments(root / "unbroken", 1, sleep_s=0)) == 0, log_of(root / "unbroken")
        unbroken = facts(folder_in(root / "unbroken"))
        while not sweeps or (time.monotonic() < until and not args.quick):
            sweep = Sweep(root / f"{len(sweeps):03d}", draw.choice((1, 2)))
            sweep.place.mkdir()
            go_through(sweep, unbroken, 1 if args.quick else draw.randint(1, 4), draw)
            sweeps.append(sweep)
            verdict = "Equal" if sweep.problem is None else "NOT EQUAL"
            print(
                f"sweep {len(sweeps):3d}  {sweep.at_once} at once  {verdict}  {sweep.redone:3d} steps redone of "
                f"{sweep.allowed:4d} allowed  {'; '.join(sweep.faults)}  (load {os.getloadavg()[0]:.1f})",
                flush=True,
            )
            if sweep.problem is not None:
                print(sweep.problem, flush=True)
                if args.keep:
                    shutil.copytree(sweep.place, args.keep / sweep.place.name)
            shutil.rmtree(sweep.place, ignore_errors=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return report(sweeps)


def report(sweeps: list[Sweep]) -> int:
    """The table by fault, and the bars."""
    drawn = Counter(fault for sweep in sweeps for fault in sweep.faults)
    print(f"\n{'fault':<34}{'drawn':>6}{'sweeps':>8}{'Equal':>7}")
    for fault, count in drawn.most_common():
        hit = [sweep for sweep in sweeps if fault in sweep.faults]
        print(f"{fault:<34}{count:>6}{len(hit):>8}{sum(sweep.problem is None for sweep in hit):>7}")
    equal = sum(sweep.problem is None for sweep in sweeps)
    redone, allowed = sum(sweep.redone for sweep in sweeps), sum(sweep.allowed for sweep in sweeps)
    print(f"{'all':<34}{drawn.total():>6}{len(sweeps):>8}{equal:>7}")
    print(f"steps redone: {redone} of {STEPS * len(sweeps)} that the sweeps needed; {allowed} allowed\n")
    over = sum(sweep.redone > sweep.allowed for sweep in sweeps)
    recomputed = sum(sweep.recomputed for sweep in sweeps)
    bars = {
        "soak_sweeps_not_equal": {"value": len(sweeps) - equal, "bar": 0, "met": equal == len(sweeps)},
        "soak_sweeps_over_allowed_steps": {"value": over, "bar": 0, "met": over == 0},
        "soak_finished_trials_recomputed": {"value": recomputed, "bar": 0, "met": recomputed == 0},
    }
    print(json.dumps(bars))
    return 0 if all(bar["met"] for bar in bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
