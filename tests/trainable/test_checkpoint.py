"""Checkpoint folders: what comes back is what went in, and what is damaged is named and never used."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from trainable import checkpoint
from trainable.plain import plain

PACKAGE = Path(checkpoint.__file__).parent


def a_state(fill: float = 1.0, num_values: int = 1000) -> dict[str, Any]:
    return {"model": {"weight": torch.full((num_values,), fill)}, "progress": {"step": 3}, "best": {"value": 0.5}}


def write(folder: Path, step: int, fill: float = 1.0) -> Path:
    checkpoint.write(folder, a_state(fill), step=step, config={"lr": 0.1})
    return folder


def test_round_trip_to_the_bit(tmp_path: Path) -> None:
    state = {
        "weights": torch.tensor([1.0, float("nan"), -0.0, 1e-45]),
        "half": torch.arange(4).to(torch.bfloat16),
        "empty": torch.empty(0, 3),
        "plain": [1, 2.5, None, True, "text", (1, 2), {"a": {"b": 1e300}}],
    }
    checkpoint.write(tmp_path / "one", state, step=7, config={"lr": 0.1})
    back = checkpoint.read(tmp_path / "one")
    assert back["plain"] == state["plain"]
    assert torch.equal(
        back["weights"].view(torch.int32), torch.tensor([1.0, float("nan"), -0.0, 1e-45]).view(torch.int32)
    )
    assert torch.equal(back["half"], torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.bfloat16))
    assert back["empty"].shape == (0, 3)


def test_manifest_says_what_is_in_the_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "one", step=7)
    manifest = json.loads((folder / "manifest.json").read_text())
    content = (folder / "state.pt").read_bytes()
    assert manifest["files"] == {"state.pt": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}}
    assert (manifest["format"], manifest["step"], manifest["config"]) == (1, 7, {"lr": 0.1})
    assert manifest["versions"]["torch"] == torch.__version__
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "state.pt"]


def test_B09_numpy_scalars_and_paths_do_not_lock_the_checkpoint(tmp_path: Path) -> None:
    state = {
        "best": {"value": numpy.float64(0.25)},
        "count": numpy.int64(3),
        "data": Path("data/set"),
        numpy.str_("k"): 1,
    }
    config = {"data_dir": Path("data/set"), "layers": [1, None, {"deep": {"er": numpy.float32(0.5)}}]}
    checkpoint.write(tmp_path / "one", state, step=1, config=config)
    back = torch.load(tmp_path / "one" / "state.pt")  # its default, and no other argument
    assert back == {"best": {"value": 0.25}, "count": 3, "data": "data/set", "k": 1}
    assert type(back["best"]["value"]) is float
    manifest = checkpoint.verify(tmp_path / "one")
    assert manifest["config"] == {"data_dir": "data/set", "layers": [1, None, {"deep": {"er": 0.5}}]}


def test_B09_no_code_of_ours_loads_unsafely() -> None:
    sources = [
        path for folder in ("trainable", "sweeps", "cluster") for path in (PACKAGE.parent / folder).rglob("*.py")
    ]
    assert len(sources) > 10
    loads = [(path, match) for path in sources for match in re.findall(r"torch\.load\([^)]*\)", path.read_text())]
    assert loads
    assert [(path, match) for path, match in loads if "weights_only=True" not in match] == []


def test_what_cannot_be_loaded_again_is_refused_by_name_when_it_is_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=re.escape("state['best']['model'] is a torch.nn.modules.linear.Linear")):
        checkpoint.write(tmp_path / "one", {"best": {"model": nn.Linear(1, 1)}}, step=1, config={})
    assert list(tmp_path.iterdir()) == []


def test_plain_keeps_the_versions_that_a_state_dict_carries() -> None:
    state_dict = nn.BatchNorm1d(2).state_dict()
    copied = plain(state_dict, torch.clone)
    assert isinstance(copied, OrderedDict)
    assert copied._metadata[""] == {"version": 2}  # type: ignore[attr-defined]


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.9999])
def test_one_flipped_bit_anywhere_is_found(tmp_path: Path, share: float) -> None:
    folder = write(tmp_path / "one", step=1)
    content = bytearray((folder / "state.pt").read_bytes())
    content[int(share * len(content))] ^= 1
    (folder / "state.pt").write_bytes(content)
    for look in (checkpoint.verify, checkpoint.read):
        with pytest.raises(checkpoint.CheckpointError, match=r"state\.pt is damaged"):
            look(folder)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: os.truncate(folder / "state.pt", 500), r"state\.pt has 500 bytes, its manifest says \d+"),
        (lambda folder: os.truncate(folder / "state.pt", 0), r"state\.pt has 0 bytes"),
        (lambda folder: (folder / "state.pt").unlink(), r"state\.pt cannot be read"),
        (lambda folder: (folder / "manifest.json").unlink(), r"manifest\.json is missing: .* never finished"),
        (lambda folder: os.truncate(folder / "manifest.json", 40), r"manifest\.json cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), r"manifest\.json cannot be read"),
        (
            lambda folder: (folder / "manifest.json").write_text(
                (folder / "manifest.json").read_text().replace('"format": 1', '"format": 99')
            ),
            r"has format 99; this version reads up to 1",
        ),
    ],
    ids=["half", "empty", "no state", "no manifest", "torn manifest", "other manifest", "newer format"],
)
def test_damage_is_named(tmp_path: Path, damage: Any, said: str) -> None:
    folder = write(tmp_path / "one", step=1)
    damage(folder)
    for look in (checkpoint.verify, checkpoint.read):
        with pytest.raises(checkpoint.CheckpointError, match=said):
            look(folder)


def test_an_unsafe_file_with_a_right_hash_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "one", step=1)
    torch.save({"model": nn.Linear(1, 1)}, folder / "state.pt")
    content = (folder / "state.pt").read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["state.pt"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(checkpoint.CheckpointError, match=r"state\.pt cannot be loaded: UnpicklingError"):
        checkpoint.read(folder)


@pytest.mark.parametrize("cut", [0.5, 0.0], ids=["half", "empty"])
def test_B29_a_cut_newest_checkpoint_falls_back_to_the_one_before(tmp_path: Path, cut: float) -> None:
    folders = [write(tmp_path / f"step-{step}", step, fill=float(step)) for step in (9, 10, 11)]
    file = folders[2] / "state.pt"
    os.truncate(file, int(cut * file.stat().st_size))
    with pytest.warns(UserWarning, match=re.escape(str(file))):
        found = checkpoint.read_newest(folders)
    assert found is not None
    assert found[0] == folders[1]
    assert found[1]["model"]["weight"][0] == 10.0
    with pytest.warns(UserWarning, match=re.escape(str(file))):
        assert checkpoint.newest_valid(reversed(folders)) == folders[1]


def test_all_bad_is_an_error_and_not_a_silent_start_from_nothing(tmp_path: Path) -> None:
    folders = [write(tmp_path / f"step-{step}", step) for step in (1, 2)]
    for folder in folders:
        os.truncate(folder / "state.pt", 10)
    for look in (checkpoint.newest_valid, checkpoint.read_newest):
        with (
            pytest.warns(UserWarning, match="passed over"),
            pytest.raises(checkpoint.CheckpointError, match=r"all 2 checkpoints are bad.*step-2.*step-1"),
        ):
            look(folders)


def test_no_checkpoint_is_none_and_one_that_was_never_finished_is_none_with_a_warning(tmp_path: Path) -> None:
    assert checkpoint.newest_valid([]) is None
    folder = write(tmp_path / "one", step=1)
    (folder / "manifest.json").unlink()
    with pytest.warns(UserWarning, match=r"manifest\.json is missing"):
        assert checkpoint.newest_valid([folder]) is None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("overwrite", [False, True])
def test_B29_a_disk_that_fails_leaves_nothing_behind_and_the_old_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, overwrite: bool
) -> None:
    folder = tmp_path / "one"
    if overwrite:
        write(folder, step=1, fill=1.0)

    def failing(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match=re.escape(os.strerror(code))):
            write(folder, step=2, fill=2.0)
    if overwrite:
        assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "state.pt"]
        assert checkpoint.read(folder)["model"]["weight"][0] == 1.0
    else:
        assert list(tmp_path.iterdir()) == []
    write(folder, step=2, fill=2.0)
    assert checkpoint.read(folder)["model"]["weight"][0] == 2.0


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("renames", [0, 1])
def test_B29_a_crash_between_two_renames_never_leaves_a_manifest_beside_another_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int, overwrite: bool
) -> None:
    folder = tmp_path / "one"
    if overwrite:
        write(folder, step=1, fill=1.0)
    rename, done = os.replace, []

    def crashing(source: Any, target: Any) -> None:
        if len(done) == renames:
            raise Crash
        done.append(target)
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crashing)
        with pytest.raises(Crash):
            write(folder, step=2, fill=2.0)
    with pytest.raises(checkpoint.Unfinished):
        checkpoint.read(folder)
    write(folder, step=2, fill=2.0)  # over what the crash left
    assert checkpoint.read(folder)["model"]["weight"][0] == 2.0
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "state.pt"]


WRITER = """
import sys, torch
from pathlib import Path
from trainable import checkpoint
torch.set_num_threads(1)
root = Path(sys.argv[1])
for step in range(1, 10_000):
    state = {"weight": torch.full((500_000,), float(step))}
    checkpoint.write(root / f"step-{step}", state, step=step, config={})
    print(step, flush=True)
    if step > 2:
        checkpoint.delete(root / f"step-{step - 2}")
"""


@pytest.mark.parametrize("delay_s", [0.011, 0.047, pytest.param(0.103, marks=pytest.mark.slow)])
def test_B29_killed_at_any_moment_the_last_announced_checkpoint_is_there(tmp_path: Path, delay_s: float) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    first = writer.stdout.readline()
    assert first == "1\n"
    time.sleep(delay_s)
    writer.kill()
    announced = int((first + writer.stdout.read()).split()[-1])
    writer.wait()
    with warnings.catch_warnings(record=True) as said:
        found = checkpoint.read_newest(tmp_path.iterdir())
    # What the kill cut short never became a checkpoint; nothing that did is damaged.
    assert [str(warning.message) for warning in said if "never finished" not in str(warning.message)] == []
    assert found is not None
    step = checkpoint.read_manifest(found[0])["step"]
    assert step in (announced, announced + 1)
    assert torch.equal(found[1]["weight"], torch.full((500_000,), float(step)))
