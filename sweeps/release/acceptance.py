"""What was accepted of a sweep, on the disk: `results/<sweep>/accepted/`, made beside and put in place whole.

An earlier acceptance is kept beside, never overwritten. Knows nothing of how models are made or sent.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeps.record.store import Folder
from trainable.files import sync_folder, write_text

if TYPE_CHECKING:
    from trainable.release.outcomes import Outcomes

FORMAT = 1
TOLD, OUTCOMES, REGISTERED = "acceptance.json", "outcomes.npz", "registered.json"
PART = "accepted.part"  # an acceptance that is being made


@dataclass(frozen=True)
class Accepted:
    """The folder of one acceptance. `model/` in it is what is registered, and nothing else."""

    path: Path

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def told(self) -> dict[str, Any]:
        """acceptance.json. Raises ValueError where it is missing or damaged."""
        try:
            found = json.loads((self.path / TOLD).read_text())
            if found["format"] > FORMAT:
                raise ValueError(f"format {found['format']}; this version reads up to {FORMAT}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path / TOLD} cannot be read ({error}); accept the sweep with --again") from error
        assert isinstance(found, dict)
        return found

    @property
    def registered(self) -> dict[str, Any] | None:
        """Where it was registered, None if it was not."""
        path = self.path / REGISTERED
        found = json.loads(path.read_text()) if path.is_file() else None
        assert found is None or isinstance(found, dict)
        return found

    def pictures(self) -> list[Path]:
        return sorted(self.path.glob("*.png"))

    def write(self, told: Mapping[str, Any], outcomes: Outcomes) -> None:
        """Everything that is said of the model, in what is registered and, last of all, beside it: where that is, all
        else is too, and on the disk."""
        text = json.dumps(finite({"format": FORMAT, **told}), indent=1, allow_nan=False, default=str)
        write_text(self.model / TOLD, text)
        save_outcomes(self.model / OUTCOMES, outcomes)
        for path in self.path.rglob("*"):
            _sync(path)
        write_text(self.path / TOLD, text)

    def note_registered(self, registered: Mapping[str, Any]) -> None:
        write_text(self.path / REGISTERED, json.dumps(dict(registered), indent=1))


def accepted_of(folder: Folder) -> Accepted:
    """The newest acceptance of a sweep, whether it is there or not."""
    return Accepted(folder.path / "accepted")


def begun(folder: Folder) -> Accepted:
    """An empty place for a new one; half of one, which a killed command left there, is taken away."""
    path = folder.path / PART
    if path.exists():
        shutil.rmtree(path)
    path.mkdir()
    return Accepted(path)


def recover(folder: Folder) -> None:
    """Put in place what a command had made whole when it was killed."""
    left = Accepted(folder.path / PART)
    if (left.path / TOLD).is_file():
        put_in_place(folder, left)


def _sync(path: Path) -> None:
    if path.is_dir():
        sync_folder(path)
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())


def put_in_place(folder: Folder, new: Accepted) -> Accepted:
    """Make `new` the sweep's acceptance; the one before becomes accepted-1, -2 and so on, in the order of time."""
    final = accepted_of(folder)
    if final.path.exists():
        number = 1
        while (kept := folder.path / f"accepted-{number}").exists():
            number += 1
        final.path.rename(kept)
    new.path.rename(final.path)
    sync_folder(folder.path)
    return final


def save_outcomes(path: Path, outcomes: Outcomes) -> None:
    import numpy

    sums = {f"sum.{name}": values for name, values in outcomes.sums.items()}
    with path.open("wb") as file:
        numpy.savez_compressed(file, allow_pickle=False, weight=outcomes.weight, **sums)


def load_outcomes(path: Path) -> Outcomes:
    """Raises ValueError for what is no such file."""
    import numpy

    from trainable.release.outcomes import Outcomes

    try:
        with numpy.load(path, allow_pickle=False) as found:
            sums = {name.removeprefix("sum."): found[name] for name in found.files if name.startswith("sum.")}
            return Outcomes(found["weight"], sums, len(found["weight"]))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path} cannot be read ({error})") from error


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
