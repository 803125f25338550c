"""python -m sweeps.fetch NAME --storage URI: bring a sweep that was begun elsewhere here, to look at or to accept.

Changes nothing of it. To go on with it, `--resume NAME --storage URI` does the same on its way.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sweeps.cli import Parser, fail
from sweeps.record.elsewhere import fetched
from sweeps.record.ledger import Ledger
from sweeps.record.store import checked_name, checked_results
from sweeps.record.stored import stored_of
from trainable.objects import StoreLost, StoreRefuses


def parser() -> Parser:
    flags = Parser(prog="python -m sweeps.fetch", description=__doc__.partition("\n")[0])
    flags.add_argument("name", help="the sweep's name")
    flags.add_argument("--storage", metavar="URI", required=True, help="the object store that it was begun with")
    flags.add_argument("--ledger", metavar="URL", help="where its record is, if that database has another name now")
    flags.add_argument("--results", metavar="DIR", default="results", help="where sweeps are kept (default: results)")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code (0 it is here, 2 bad input)."""
    asked = parser().parse_args(arguments)
    try:
        results = checked_results(Path(asked.results))
        folder = fetched(results, checked_name(asked.name), asked.storage, asked.ledger)
        with folder.owned():
            ledger = Ledger(folder.ledger)
            try:
                records = ledger.trials()
            finally:
                ledger.close()
            stored = stored_of(folder)
            stored.bring(records)
            for record in records:
                stored.bring_log(record)
    except (ValueError, StoreLost, StoreRefuses) as error:
        fail(str(error))
    print(
        f"{folder.name} with {len(records)} trial(s) is in {folder.path}; checkpoints come when they are asked for: "
        "sweeps.show, sweeps.report and sweeps.accept take it by its name"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
