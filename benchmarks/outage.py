"""How much slower a trial trains while MLflow is away, broken, frozen or locked, beside one that MLflow is well for.

Real sweeps on one Ray, interleaved; a step takes its time by sleeping, so that what is added to it is waiting. The
time of a side is that between a trial's first report and its last. Equal work: the weights and the number of reports.
Bar: the median of the pairwise ratios is at most 1.02. The last line printed is one JSON object.
"""

import argparse
import contextlib
import io
import json
import os
import shutil
import socket
import sqlite3
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster.connect import connected
from sweeps.lr_scan import main as lr_scan
from sweeps.record.history import History
from sweeps.running import conduct
from tests.helpers.broken import Broken

TASK = f"{Path(__file__).resolve().parent / 'sleepy.py'}:Sleepy"
SLOWDOWN = 1.02
STEPS = 5  # of an epoch


@contextlib.contextmanager
def well(folder: Path) -> Iterator[str]:
    yield f"sqlite:///{folder / 'mlflow.db'}"


@contextlib.contextmanager
def away(folder: Path) -> Iterator[str]:
    """Nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{free.getsockname()[1]}"


@contextlib.contextmanager
def broken(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Broken)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def frozen(folder: Path) -> Iterator[str]:
    """Takes every connection, and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[str]:
    """Another process writes to the database, and does not end."""
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db", isolation_level=None)) as other:
        other.execute("create table held (x)")
        other.execute("begin exclusive")
        yield f"sqlite:///{folder / 'mlflow.db'}"


SIDES = {side.__name__: side for side in (well, away, broken, frozen, locked)}


def trained_s(side: str, epochs: int) -> tuple[float, tuple[str, int]]:
    """Seconds from the first report of a trial to its last; its weights and how many reports it made."""
    folder = Path(tempfile.mkdtemp(prefix=f"outage-{side}-"))
    before = Path.cwd()
    os.chdir(folder)
    try:
        with SIDES[side](folder) as uri, contextlib.redirect_stdout(io.StringIO()) as said:
            arguments = [
                "--name",
                side,
                "--task",
                TASK,
                "--lrs",
                "1e-3",
                "--epochs",
                str(epochs),
                "--tracking-uri",
                uri,
            ]
            with contextlib.redirect_stderr(io.StringIO()):
                lr_scan([*arguments, "--set", "batch_size=256", "--json"])
        (trial,) = json.loads(said.getvalue())["trials"]
        times = [report["time_ms"] for report in History(folder / "results" / side / "history").reports(0)]
        return (times[-1] - times[0]) / 1000, (trial["weights_sha256"], len(times))
    finally:
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one short pair of each: less than a minute")
    args = parser.parse_args()
    pairs, epochs = (1, 30) if args.quick else (args.pairs, 150)
    conduct.TRACKING_WAIT_S = 0.5  # the end of a sweep waits for a slow server; that is not what is measured
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    work = set()
    with connected(None):
        for _ in range(pairs):
            for side in SIDES:
                seconds, done = trained_s(side, epochs)
                found[side].append(seconds)
                work.add(done)
    if len(work) != 1:
        raise SystemExit(f"the work was not equal: {work}")
    bars = {}
    print(f"{epochs} reports of {STEPS} steps each, {pairs} pairs\n{'MLflow is':<10}{'seconds':>24}{'to well':>9}")
    for side, seconds in found.items():
        ratio = statistics.median(one / other for one, other in zip(seconds, found["well"], strict=True))
        print(f"{side:<10}{' '.join(f'{value:.2f}' for value in seconds):>24}{ratio:>9.3f}")
        if side != "well":
            bars[f"training_while_mlflow_is_{side}"] = {
                "value": round(ratio, 4),
                "bar": SLOWDOWN,
                "met": ratio <= SLOWDOWN,
            }
    print(json.dumps(bars))
    return 0 if all(bar["met"] for bar in bars.values()) else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of trackers may still be waiting for a server
