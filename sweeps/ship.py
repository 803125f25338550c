"""python -m sweeps.ship NAME: send to MLflow what it lacks of a sweep. Trains nothing.

For whoever had a tracking server that was away; a resume does the same on its way.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from sweeps.cli import Parser, fail
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder, checked_results, existing_sweep
from sweeps.record.trial import TERMINAL
from sweeps.reporting.make import report_files
from sweeps.running.conduct import MLFLOW_STATUS, start_tracker
from sweeps.running.run_ids import RunIds
from sweeps.tracking.moved import present_store, settle
from sweeps.tracking.tracker import resolve_uri

WAIT_S = 30.0  # without a point being sent; then the store counts as not there


def parser() -> Parser:
    flags = Parser(prog="python -m sweeps.ship", description=__doc__.partition("\n")[0])
    flags.add_argument("name", help="the sweep's name")
    flags.add_argument("--results", metavar="DIR", default="results", help="where sweeps are kept (default: results)")
    flags.add_argument("--tracking-uri", metavar="URI", help="another store than the sweep's own")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code (0 MLflow has all of it, 1 it does not, 2 bad input)."""
    asked = parser().parse_args(arguments)
    try:
        folder = existing_sweep(checked_results(Path(asked.results)), asked.name)
        uri = resolve_uri(asked.tracking_uri, Path.cwd()) if asked.tracking_uri else None
        with folder.owned():
            said, missing = ship(folder, uri)
    except ValueError as error:
        fail(str(error))
    print(said)
    if missing:
        print(missing)
    return 1 if missing else 0


def ship(folder: Folder, uri: str | None = None) -> tuple[str, str | None]:
    """Send what is missing: a sentence about what was sent, and one about what still is missing, or None.

    The caller owns the folder, so no trial is running.
    """
    ledger = Ledger(folder.ledger)
    try:
        uri = uri or present_store(folder, ledger)
        settle(folder, ledger, uri)
        tracker = start_tracker(ledger, folder)
        unfinished = any(record.state not in TERMINAL for record in ledger.trials())
        before = -1
        while tracker.pending() and (sent := sum(tracker.sent().values())) > before:
            before = sent
            tracker.flush(WAIT_S, interrupted=unfinished)
        missing = tracker.close(
            _status(folder, unfinished), [path for path in _files(folder) if path.is_file()], WAIT_S
        )
        tracker.stop()
        RunIds(ledger, tracker).note()
    finally:
        ledger.close()
    per_trial = tracker.sent()
    if not per_trial:
        return f"nothing was sent: MLflow at {uri} {'does not answer' if missing else 'has all of it'}", missing
    lines = [f"sent {sum(per_trial.values())} points of {len(per_trial)} trial(s) to {uri}"]
    lines += [f"trial {number}: {count} points" for number, count in sorted(per_trial.items())]
    return "\n".join(lines), missing


def _files(folder: Folder) -> list[Path]:
    return [folder.result, *report_files(folder)]


def _status(folder: Folder, unfinished: bool) -> str:
    """What the sweep's run ends as: as its result says, if that is the last word."""
    if unfinished:
        return MLFLOW_STATUS["interrupted"]
    try:
        return MLFLOW_STATUS[json.loads(folder.result.read_text())["status"]]
    except (OSError, ValueError, KeyError):
        return MLFLOW_STATUS["finished"]


if __name__ == "__main__":
    sys.exit(main())
