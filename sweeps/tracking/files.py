"""What a trial leaves in files, as MLflow is to have it: its configuration, its log, why it failed, which checkpoints.

Each is a text with a name; what was sent is known by its sha256. Knows no MLflow, and loads no checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sweeps.record.store import Folder
from sweeps.record.stored import Stored
from sweeps.record.trial import TERMINAL, TrialRecord
from trainable.manifest import MANIFEST

CONFIG, FAILURE, LOG, CHECKPOINTS = "config.json", "failure.txt", "log.txt", "checkpoints.json"


def sha256_tag(name: str) -> str:
    """The tag that says which version of a file the run has."""
    return f"steadysweep.sha256.{name}"


def sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def files_of(folder: Folder, stored: Stored, record: TrialRecord, *, at_rest: bool) -> dict[str, str]:
    """name -> text of what there is of a trial, beside its configuration. at_rest: nobody trains it now, so that its
    log and its checkpoints are worth sending: they will not be others in a moment."""
    found: dict[str, str] = {}
    if record.state == "failed" and record.reason:
        found[FAILURE] = record.reason
    if at_rest or record.state in TERMINAL:
        stored.bring_log(record)
        log = folder.log(record.number)
        if log.is_file():
            found[LOG] = log.read_text(errors="replace")
        if checkpoints := manifest_of(folder, stored, record):
            found[CHECKPOINTS] = json.dumps(checkpoints, indent=1)
    return found


def manifest_of(folder: Folder, stored: Stored, record: TrialRecord) -> list[dict[str, Any]]:
    """Every finished checkpoint of a trial, the oldest first: where it is in the sweep's folder, its step, its score
    (less is better) and what its files must be."""
    found: list[dict[str, Any]] = []
    try:
        there = stored.checkpoints(record)
    except ValueError:  # a store that is out of reach; what is missing is sent later
        return []
    for path in there:
        try:
            said: Mapping[str, Any] = json.loads((path / MANIFEST).read_text())
            entry = {"step": int(said["step"]), "score": said["score"], "files": dict(said["files"])}
        except (OSError, ValueError, KeyError, TypeError):
            continue  # gone meanwhile, or damaged: it is no checkpoint to go on from
        found.append({"folder": str(path.relative_to(folder.path)), **entry})
    return sorted(found, key=lambda entry: (entry["step"], entry["folder"]))
