"""The checkpoints of one run: copied at once, written beside, the newest two and the best kept."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from trainable import checkpoint
from trainable.saving import HostCopy, Saver


def a_state(fill: float, num_values: int = 1000) -> dict[str, Any]:
    return {"weight": torch.full((num_values,), float(fill))}


def save(saver: Saver, step: int, score: float | None = None) -> None:
    """Save, and wait until it is on the disk."""
    saver.save(a_state(step), step=step, config={}, score=score)
    saver.wait()


def steps(saver: Saver) -> list[int]:
    return [int(checkpoint.verify(folder)["step"]) for folder in saver.folders()]


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[Saver]:
    saver = Saver(tmp_path / "run")
    yield saver
    saver.close()


class Disk:
    """A disk whose fsync does what a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._fsync = os.fsync

    @contextmanager
    def doing(self, what: Any) -> Iterator[None]:
        def fsync(descriptor: int) -> None:
            what(descriptor)
            self._fsync(descriptor)

        with self._monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            yield


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def is_full(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def loses_half(descriptor: int) -> None:
    """Of a state file; manifests are smaller."""
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_size > 2000:
        os.ftruncate(descriptor, found.st_size // 2)


def test_the_newest_two_and_the_best_are_kept(saver: Saver) -> None:
    kept = []
    for step, score in enumerate([0.9, 0.3, 0.5, 0.3, 0.6, 0.2, 0.7], start=1):
        save(saver, step, score)
        kept.append(steps(saver))
    assert kept == [[1], [1, 2], [2, 3], [2, 3, 4], [2, 4, 5], [5, 6], [6, 7]]


def test_a_run_without_scores_keeps_the_newest_two(saver: Saver) -> None:
    for step, score in ((1, None), (2, float("nan")), (3, None)):
        save(saver, step, score)
    assert steps(saver) == [2, 3]


def test_the_best_is_remembered_by_the_next_process(saver: Saver) -> None:
    for step, score in ((1, 0.1), (2, 0.5), (3, 0.6)):
        save(saver, step, score)
    resumed = Saver(saver.root)
    for step in (4, 5):
        save(resumed, step, 0.4)
    resumed.close()
    assert steps(saver) == [1, 4, 5]


def test_what_a_later_step_changes_is_not_in_the_checkpoint(saver: Saver, disk: Disk) -> None:
    may_write = threading.Event()
    weight = torch.zeros(1000)
    with disk.doing(lambda _: may_write.wait(30)):
        saver.save({"weight": weight}, step=1, config={})  # returns, although nothing can be written yet
        weight.fill_(1.0)
        assert saver.folders() == [] or not (saver.folders()[0] / "manifest.json").exists()
        may_write.set()
        saver.wait()
    assert torch.equal(checkpoint.read(saver.folders()[0])["weight"], torch.zeros(1000))
    saver.save({"weight": weight}, step=2, config={})  # into the same memory
    saver.wait()
    assert torch.equal(checkpoint.read(saver.folders()[1])["weight"], torch.ones(1000))


def test_at_most_one_write_is_under_way(saver: Saver, disk: Disk) -> None:
    may_write = threading.Event()
    with disk.doing(lambda _: may_write.wait(30)):
        saver.save(a_state(1), step=1, config={})
        second = threading.Thread(target=lambda: saver.save(a_state(2), step=2, config={}))
        second.start()
        second.join(0.2)
        assert second.is_alive()  # it waits for the first
        assert [path.name for path in saver.folders()] in ([], ["step-00000001"])
        may_write.set()
        second.join(30)
        assert not second.is_alive()
        saver.wait()
    assert steps(saver) == [1, 2]


def test_B29_a_full_disk_warns_keeps_the_old_and_tries_again(saver: Saver, disk: Disk) -> None:
    save(saver, 1)
    save(saver, 2)
    with disk.doing(is_full):
        saver.save(a_state(3), step=3, config={})
        with pytest.warns(UserWarning, match=r"checkpoint of step 3 .*No space left on device"):
            saver.wait()
    assert sorted(path.name for path in saver.root.iterdir()) == ["step-00000001", "step-00000002"]
    assert steps(saver) == [1, 2]
    save(saver, 4)
    assert steps(saver) == [2, 4]
    assert len(saver.close()) == 1


def test_B29_a_file_that_may_not_grow_any_more(saver: Saver) -> None:
    """A limit of the operating system, met in the middle of a write."""
    save(saver, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        saver.save(a_state(2, num_values=1_000_000), step=2, config={})
        with pytest.warns(UserWarning, match=r"checkpoint of step 2 .*File too large"):
            saver.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(path.name for path in saver.root.rglob("*")) == ["manifest.json", "state.pt", "step-00000001"]
    saver.save(a_state(2, num_values=1_000_000), step=2, config={})
    saver.wait()
    assert steps(saver) == [1, 2]


def test_close_reports_a_write_that_failed_last(tmp_path: Path, disk: Disk) -> None:
    saver = Saver(tmp_path)
    with disk.doing(is_full):
        saver.save(a_state(1), step=1, config={})
        with pytest.warns(UserWarning, match="step 1"):
            failures = saver.close()
    assert len(failures) == 1
    assert "No space left" in failures[0]


def test_nothing_is_deleted_when_the_new_one_reads_back_wrong(saver: Saver, disk: Disk) -> None:
    for step in (1, 2):
        save(saver, step)
    with disk.doing(loses_half):
        saver.save(a_state(3), step=3, config={})
        with pytest.warns(UserWarning, match=r"step 3 .*has \d+ bytes, its manifest says"):
            saver.wait()
    assert steps(saver) == [1, 2]


def test_a_damaged_one_does_not_count_among_the_newest_two(saver: Saver) -> None:
    for step in (1, 2):
        save(saver, step)
    damaged = saver.folders()[1] / "state.pt"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    resumed = Saver(saver.root)  # went on from step 1, and comes to step 2 again
    save(resumed, 2)
    assert [path.name for path in resumed.folders()] == ["step-00000001", "step-00000002.1"]
    save(resumed, 3)
    assert steps(resumed) == [2, 3]
    resumed.close()


def test_what_a_killed_writer_left_is_removed_once_two_good_ones_exist(saver: Saver) -> None:
    save(saver, 1)
    left = saver.root / "step-00000002"
    left.mkdir()
    (left / "state.pt.part").write_bytes(b"half")
    save(saver, 3)
    assert [path.name for path in saver.folders()] == ["step-00000001", "step-00000003"]


def test_only_its_own_folders_are_ever_deleted(saver: Saver, tmp_path: Path) -> None:
    other = checkpoint.write(tmp_path / "elsewhere", a_state(0), step=1, config={})
    (saver.root / "notes").mkdir(parents=True)
    (saver.root / "step-00000000").symlink_to(tmp_path / "elsewhere")
    for step in (1, 2, 3, 4):
        save(saver, step)
    assert sorted(path.name for path in saver.root.iterdir()) == [
        "notes",
        "step-00000000",
        "step-00000003",
        "step-00000004",
    ]
    assert checkpoint.verify(tmp_path / "elsewhere") == other


def test_B49_a_checkpoint_that_is_still_needed_is_not_deleted(tmp_path: Path, disk: Disk) -> None:
    source = tmp_path / "another_sweep" / "step-00000100"
    checkpoint.write(source, a_state(100), step=100, config={}, score=9.0)
    before = hashlib.sha256((source / "state.pt").read_bytes()).hexdigest()
    start = checkpoint.read(source)
    saver = Saver(tmp_path / "run", num_newest=1)
    losses = [0.5, 0.1, 0.4, 0.3, 0.3, 0.2]  # the best is in epoch 1
    for epoch in (0, 1, 2):
        saver.save(start, step=epoch, config={}, score=losses[epoch])
        saver.wait()
    with disk.doing(is_full):
        saver.save(start, step=3, config={}, score=losses[3])
        with pytest.warns(UserWarning, match="step 3"):
            saver.wait()
    assert steps(saver) == [1, 2]
    newest = checkpoint.newest_valid(saver.folders())
    assert newest is not None
    assert checkpoint.read_manifest(newest)["step"] == 2  # so a resume trains epoch 3 next
    for epoch in (3, 4, 5):
        saver.save(start, step=epoch, config={}, score=losses[epoch])
        saver.wait()
    saver.close()
    assert steps(saver) == [1, 5]
    assert hashlib.sha256((source / "state.pt").read_bytes()).hexdigest() == before


def test_tied_weights_stay_one_tensor_and_layouts_stay(tmp_path: Path) -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    image = torch.rand(1, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    copied = HostCopy().take({"one": weight, "two": weight, "other": weight.clone(), "image": image})
    assert copied["one"] is copied["two"]
    assert copied["one"] is not copied["other"]
    assert copied["image"].stride() == image.stride()
    assert torch.equal(copied["image"], image)
    assert copied["one"].data_ptr() != weight.data_ptr()
