"""A sweep's folder may come from a stranger: nothing in it is executed, no name in it leads out of it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import pickle
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeps import lr_scan
from tests.faults.helper import Facts, folder_in
from tests.faults.test_bad_checkpoints import Scan, checkpoints, go_on
from trainable import checkpoint


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.marker}'",)


def poisoned_state(path: Path, evil: bytes) -> bytes:
    """A file of torch's kind, with this pickle in it."""
    with zipfile.ZipFile(path) as before:
        entries = {name: before.read(name) for name in before.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as after:
        for name, data in entries.items():
            after.writestr(name, evil if name.endswith("data.pkl") else data)
    return path.read_bytes()


def vouch_for(folder: Path) -> None:
    """Make the manifest fit what stands beside it, as whoever planted it would."""
    data = (folder / "state.pt").read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] = {"state.pt": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_pickles_are_not_executed(stopped: Callable[[], Path], scan: Scan, unbroken: Facts) -> None:
    place = stopped()
    marker = place / "executed"
    evil = pickle.dumps(Touch(marker))
    pickle.loads(evil)
    assert marker.exists(), "the trap works"
    marker.unlink()

    folder = folder_in(place)
    trials = folder / "trials"
    names = ("tuner.pkl", "trainable.pkl", "experiment_state-2026.json", "search_gen_state-2026.json")
    for name in (*names, "searcher-state-2026.pkl", "basic-variant-state-2026.json"):
        (trials / name).write_bytes(evil)
    for attempt in filter(Path.is_dir, trials.iterdir()):
        (attempt / "params.pkl").write_bytes(evil)
    older, newest = checkpoints(place)
    poisoned_state(newest / "state.pt", evil)
    vouch_for(newest)
    for found in (older, newest):
        for name in (".tune_metadata", ".metadata.pkl", ".metadata.json", "dict_checkpoint.pkl"):
            (found / name).write_bytes(evil)
    for number in (3, 4):
        with (folder / "history" / f"{number:05d}.jsonl").open("ab") as file:
            file.write(evil.replace(b"\n", b"") + b"\n")
    for name in ("result.json", "splits.json", "phases.json", "owner.json"):
        (folder / name).write_bytes(evil)
    with contextlib.closing(sqlite3.connect(folder / "ledger.db")) as ledger:
        text = json.dumps(base64.b64encode(evil).decode())
        for owner, table in (("study", "studies"), ("trial", "trials")):
            ledger.execute(
                f"insert into {owner}_user_attributes ({owner}_id, key, value_json) select {owner}_id, '__reduce__', ? "
                f"from {table}",
                (text,),
            )
        ledger.commit()

    go_on(scan, place, unbroken)
    assert not marker.exists()


def test_a_bare_pickle_as_state(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    folder = tmp_path / "checkpoint"
    checkpoint.write(folder, {"weights": [1.0]}, step=1, config={})
    (folder / "state.pt").write_bytes(pickle.dumps(Touch(marker)))
    vouch_for(folder)
    with pytest.raises(checkpoint.CheckpointError):
        checkpoint.read(folder)
    (folder / "manifest.json").write_bytes(pickle.dumps(Touch(marker)))
    with pytest.raises(checkpoint.CheckpointError):
        checkpoint.read(folder)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["../outside", "..", "a/b", "/etc/a", "a\0b", "a\nb", ".", "-a", "a" * 101])
@pytest.mark.parametrize("flag", ["--name", "--resume"])
def test_names_lead_nowhere(flag: str, name: str, launch_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        lr_scan.main([f"{flag}={name}", "--results", "results"])
    assert refused.value.code == 2
    assert "may only have letters" in capsys.readouterr().err
    assert list(launch_folder.iterdir()) == []


@pytest.mark.parametrize("name", ["../../state.pt", "/etc/passwd", "state.pt\0"])
def test_a_manifest_names_only_its_own_file(name: str, tmp_path: Path) -> None:
    checkpoint.write(tmp_path, {"weights": [1.0]}, step=1, config={})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["files"] = {name: manifest["files"]["state.pt"]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(checkpoint.CheckpointError, match="lists"):
        checkpoint.read(tmp_path)
