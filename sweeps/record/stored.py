"""What a sweep has in an object store beside its folder here, under the same names: all that its trials leave, and
every report. So a machine that has nothing but the addresses can go on with it.

`stored_of` tells whether it has any; a sweep without does nothing here. Knows nothing of how trials run.
"""

from __future__ import annotations

import glob
import json
import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from sweeps.record.address import Pointer
from sweeps.record.history import History
from sweeps.record.store import Folder, attempt_folder
from sweeps.record.trial import TrialRecord
from trainable.files import write_text
from trainable.mirror import CHECKPOINT, Mirror
from trainable.objects import Objects, StoreLost, StoreRefuses

BIRTH = "sweep.json"  # the first object of a sweep: what it is called, and where its ledger is
ANSWER = ("result.json", "report.html", "phases.json")
AT_ONCE = 16  # small objects that are fetched side by side
SHORT_S = 30.0  # the patience of whoever can do without


class Stored(Protocol):
    """What trials leave, wherever it is."""

    def begin(self) -> None:
        """Have the name, in the store too."""
        ...

    def add_report(self, number: int, record: dict[str, Any]) -> None:
        """Keep a report, before the ledger counts it."""
        ...

    def bring(self, records: Iterable[TrialRecord]) -> None:
        """Bring here what another machine added: reports that the ledger counts, and what trials say once."""
        ...

    def bring_log(self, record: TrialRecord) -> None:
        """Bring what a trial's processes printed to where the folder has it."""
        ...

    def stacks(self, number: int, attempt: int) -> str:
        """What an attempt left that was ended for making no progress; nothing if it was not."""
        ...

    def checkpoints(self, record: TrialRecord) -> list[Path]:
        """The checkpoint folders of all attempts of a trial, in order; each with its manifest. Raises ValueError where
        they are out of reach."""
        ...

    def with_state(self, checkpoint: Path) -> Path:
        """That folder, with its state in it. Raises ValueError where it is out of reach."""
        ...

    def send_answer(self, files: Sequence[Path]) -> str | None:
        """Have the answer where everything else is; says so where that failed."""
        ...

    def remove(self) -> None:
        """Take all of it away."""
        ...


def stored_of(folder: Folder) -> Stored:
    address = folder.storage
    return AllHere(folder) if address is None else InStore(folder, address)


class AllHere:
    """All of it is in the folder, on a disk that all nodes share."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def begin(self) -> None:
        pass

    def add_report(self, number: int, record: dict[str, Any]) -> None:
        pass

    def bring(self, records: Iterable[TrialRecord]) -> None:
        pass

    def bring_log(self, record: TrialRecord) -> None:
        pass

    def stacks(self, number: int, attempt: int) -> str:
        return text_of(self._folder.stacks(number, attempt))

    def checkpoints(self, record: TrialRecord) -> list[Path]:
        top = self._folder.path
        attempts = self._folder.name_of(self._folder.trials / attempt_folder(record.number, "*"))
        return [top / found for found in sorted(glob.glob(f"{attempts}/{CHECKPOINT}*", root_dir=top))]

    def with_state(self, checkpoint: Path) -> Path:
        return checkpoint

    def send_answer(self, files: Sequence[Path]) -> str | None:
        return None

    def remove(self) -> None:
        pass


class InStore:
    """Much of it is in an object store. What is read here is brought first."""

    def __init__(self, folder: Folder, address: str) -> None:
        self._folder = folder
        self._objects = Objects(address)
        self._soon = Objects(address, wait_s=SHORT_S)
        self._mirror = Mirror(self._soon, folder.path)

    def begin(self) -> None:
        pointer = Pointer.read(self._folder.pointer) if self._folder.pointer.is_file() else None
        said = {
            "name": self._folder.name,
            "ledger": None if pointer is None else json.loads(pointer.text()),
            "host": socket.gethostname(),
            "folder": str(self._folder.path),
        }
        self._objects.write(BIRTH, json.dumps(said, indent=1).encode())

    def add_report(self, number: int, record: dict[str, Any]) -> None:
        self._objects.write(f"{self._reports(number)}/{int(record['report']):07d}.json", json.dumps(record).encode())

    def bring(self, records: Iterable[TrialRecord]) -> None:
        history = History(self._folder.history)
        with ThreadPoolExecutor(max_workers=AT_ONCE) as together:
            for record in records:
                if len(history.reports(record.number)) < record.reports:
                    names = sorted(self._objects.sizes(self._reports(record.number)))
                    lines = [text.decode().strip() + "\n" for text in together.map(self._objects.read, names)]
                    self._folder.history.mkdir(parents=True, exist_ok=True)
                    write_text(history.path(record.number), "".join(lines))
        for path in (self._folder.splits, self._folder.checks):
            if not path.exists() and self._objects.exists(path.name):
                self._objects.fetch(path.name, path)

    def bring_log(self, record: TrialRecord) -> None:
        log = self._folder.log(record.number)
        try:
            names = sorted(self._soon.sizes(self._folder.name_of(log.with_suffix(""))))
            text = b"".join(self._soon.read(name) for name in names)
        except (StoreLost, StoreRefuses):  # what was here stays
            return
        if names:
            log.parent.mkdir(parents=True, exist_ok=True)
            write_text(log, text.decode(errors="replace"))

    def stacks(self, number: int, attempt: int) -> str:
        try:
            return self._soon.read(self._folder.name_of(self._folder.stacks(number, attempt))).decode(errors="replace")
        except (FileNotFoundError, StoreLost, StoreRefuses):
            return ""

    def checkpoints(self, record: TrialRecord) -> list[Path]:
        try:
            return self._mirror.checkpoints(self._folder.attempts(record.number, record.attempts))
        except (StoreLost, StoreRefuses) as error:
            raise ValueError(str(error)) from error

    def with_state(self, checkpoint: Path) -> Path:
        try:
            return self._mirror.bring(checkpoint)
        except (StoreLost, StoreRefuses) as error:
            raise ValueError(str(error)) from error

    def send_answer(self, files: Sequence[Path]) -> str | None:
        try:
            for path in files:
                if path.is_file():
                    self._soon.write(path.name, path.read_bytes())
        except (StoreLost, StoreRefuses) as error:
            return f"the answer is in {self._folder.path} and not in the store: {error}"
        return None

    def remove(self) -> None:
        for name in self._objects.sizes():
            self._objects.delete(name)

    def _reports(self, number: int) -> str:
        return f"{self._folder.history.name}/{number:05d}"


def text_of(path: Path) -> str:
    """What is in a file, nothing if it is gone: the trial's process may take it away at this very moment."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
