"""The folder of one trial run by hand: `run.json` says what it is, `report.jsonl` what it said, and the result.

Knows nothing of training; the sweeps have a ledger instead. Imports no torch.
"""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainable.files import write_text

RUN, REPORTS, RESULT, CHECKPOINTS = "run.json", "report.jsonl", "result.json", "checkpoints"
FORMAT = 1


@dataclass(frozen=True)
class RunFolder:
    """One run's folder. Nothing is created before `begin`."""

    path: Path

    @classmethod
    def new(cls, out: Path | None, task: str) -> RunFolder:
        """A folder that is free and can be written: `out`, or results/<task>-<time>. Raises ValueError."""
        if out is None:
            name = task.rpartition(":")[2] or task
            base = Path("results") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
            tries = [base, *(base.with_name(f"{base.name}-{number}") for number in range(2, 100))]
            out = next(path for path in tries if not path.exists())
        out = out.resolve()
        if out.exists() and not out.is_dir():
            raise ValueError(f"--out {out} is a file; name a folder")
        if out.exists() and any(out.iterdir()):
            has_run = (out / RUN).exists()
            remedy = f"go on with it by --resume {out}, or " if has_run else ""
            raise ValueError(f"--out {out} is not empty; {remedy}name another folder")
        parent = next(path for path in (out, *out.parents) if path.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise ValueError(f"--out {out} cannot be written: no permission in {parent}; name another folder")
        return cls(out)

    @classmethod
    def existing(cls, out: Path | None) -> RunFolder:
        """The run to resume: in `out`, or the latest unfinished one under results/. Raises ValueError."""
        if out is not None:
            if not (out / RUN).is_file():
                raise ValueError(f"--resume {out}: there is no run ({RUN}) in {out.resolve()}")
            return cls(out.resolve())
        found = sorted(Path("results").glob(f"*/{RUN}"), key=lambda path: path.stat().st_mtime)
        unfinished = [path.parent for path in found if cls(path.parent).result().get("status") != "finished"]
        if not unfinished:
            raise ValueError(f"--resume: there is no unfinished run under {Path('results').resolve()}; name its folder")
        return cls(unfinished[-1].resolve())

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def begin(self, description: dict[str, Any]) -> None:
        """Create the folder and say what the run is."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / RESULT).unlink(missing_ok=True)  # of the attempt before
        self._write(RUN, {"format": FORMAT, **description})

    def description(self) -> dict[str, Any]:
        """What `begin` wrote. Raises ValueError where it cannot be read."""
        path = self.path / RUN
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["format"] > FORMAT:
                raise ValueError(f"format {found['format']}; this version reads up to {FORMAT}")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} cannot be read ({error}); begin a new run") from error
        assert isinstance(found, dict)
        return found

    def add_report(self, report: dict[str, Any]) -> None:
        """One line more: a report as a dict of plain values."""
        with (self.path / REPORTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(_jsonable(report, REPORTS), allow_nan=False) + "\n")

    def reports(self) -> list[dict[str, Any]]:
        """All reports so far; a last line that was cut off by a crash is left out."""
        path = self.path / REPORTS
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def rewind(self, step: int) -> None:
        """Forget the reports after `step`: the run goes on from there and will make them again."""
        kept = [json.dumps(report) + "\n" for report in self.reports() if report["step"] <= step]
        if (self.path / REPORTS).exists():
            write_text(self.path / REPORTS, "".join(kept))

    def result(self) -> dict[str, Any]:
        """The result so far; empty while there is none."""
        path = self.path / RESULT
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def end(self, result: dict[str, Any]) -> dict[str, Any]:
        """Write the result, whatever it is, and give it back as it was written.

        A disk that is full by now warns: what was found out must still reach whoever asked.
        """
        try:
            self._write(RESULT, result)
        except OSError as error:
            warnings.warn(f"the result could not be written to {self.path} ({error})", stacklevel=2)
        return _jsonable(result, RESULT)

    def _write(self, name: str, content: dict[str, Any]) -> None:
        write_text(self.path / name, json.dumps(_jsonable(content, name), indent=1, allow_nan=False) + "\n")


def _jsonable(content: dict[str, Any], name: str) -> dict[str, Any]:
    from trainable.plain import plain  # needs torch, which a typing mistake must not wait for

    found = _finite(plain(content, name=name))
    assert isinstance(found, dict)
    return found


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
