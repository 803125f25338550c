"""What a trial's process leaves is the same on a disk and in an object store, also where its writer was killed."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.bucket import Bucket, bucket_server
from trainable import checkpoint
from trainable.kept import Kept, kept_of
from trainable.objects import Objects

ATTEMPTS = ["trials/00007-attempt-1", "trials/00007-attempt-2"]
Put = Callable[[str, Path], None]


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with bucket_server() as found:
        yield found


class Place:
    """A sweep's folder, with what a test does to it from outside."""

    def __init__(self, folder: str, here: Path) -> None:
        self.folder = folder
        self._here = here
        self._objects = Objects(folder, wait_s=5.0) if "://" in folder else None

    def kept(self, rank: int = 0, **also: Any) -> Kept:
        names = {"log": "logs/00007.txt", "stacks": f"{ATTEMPTS[-1]}/stacks.txt", "attempt": 2}
        return kept_of({"folder": self.folder, "attempts": ATTEMPTS, **names, **also}, rank)

    def save(self, name: str, step: int, score: float | None = None) -> None:
        """A checkpoint, put there as Tune does."""
        written = self._here / "written"
        checkpoint.write(written, {"step": torch.tensor(step)}, step=step, config={}, score=score)
        for file in written.iterdir():
            self.put(f"{name}/{file.name}", file.read_bytes())
        shutil.rmtree(written)

    def put(self, name: str, data: bytes) -> None:
        if self._objects is not None:
            self._objects.write(name, data)
            return
        Path(self.folder, name).parent.mkdir(parents=True, exist_ok=True)
        Path(self.folder, name).write_bytes(data)

    def get(self, name: str) -> bytes:
        return self._objects.read(name) if self._objects is not None else Path(self.folder, name).read_bytes()

    def drop(self, name: str) -> None:
        if self._objects is not None:
            self._objects.delete(name)
        else:
            Path(self.folder, name).unlink()

    def checkpoints(self) -> list[str]:
        """The folders that have anything in them."""
        if self._objects is not None:
            names = list(self._objects.sizes("trials"))
        else:
            names = [str(path.relative_to(self.folder)) for path in Path(self.folder).glob("trials/*/*/*")]
        return sorted({name.rpartition("/")[0] for name in names if "/checkpoint_" in name})


@pytest.fixture(params=["on a disk", "in a store"])
def place(request: pytest.FixtureRequest, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    bucket.let_in(monkeypatch)
    folder = tmp_path / "sweep"
    folder.mkdir()
    store = bucket.address(request.node.originalname)
    return Place(str(folder) if request.param == "on a disk" else store, tmp_path)


def step_of(found: tuple[str, dict[str, Any]] | None) -> int | None:
    return None if found is None else int(found[1]["step"])


def test_nothing_is_there_yet(place: Place) -> None:
    kept = place.kept()
    assert kept.read_newest() is None
    kept.thin_out()
    kept.close()
    assert place.checkpoints() == []


def test_the_newest_of_all_attempts_is_gone_on_from(place: Place) -> None:
    """By its step: a later attempt may have begun from an earlier one."""
    place.save(f"{ATTEMPTS[0]}/checkpoint_000003", 30)
    place.save(f"{ATTEMPTS[1]}/checkpoint_000000", 20)
    place.save("trials/00007-attempt-3/checkpoint_000000", 99)  # not an attempt that was begun
    place.save("trials/00071-attempt-1/checkpoint_000000", 98)
    kept = place.kept()
    found = kept.read_newest()
    assert found is not None
    assert (found[0], step_of(found)) == (f"{ATTEMPTS[0]}/checkpoint_000003", 30)
    assert int(kept.read(found[0])["step"]) == 30
    kept.close()


def test_a_checkpoint_that_is_damaged_or_half_there_is_passed_over(place: Place) -> None:
    for number, step in enumerate((10, 20, 30, 40, 50)):
        place.save(f"{ATTEMPTS[0]}/checkpoint_{number:06d}", step)
    place.drop(f"{ATTEMPTS[0]}/checkpoint_000004/manifest.json")
    place.drop(f"{ATTEMPTS[0]}/checkpoint_000003/state.pt")
    state = place.get(f"{ATTEMPTS[0]}/checkpoint_000002/state.pt")
    place.put(f"{ATTEMPTS[0]}/checkpoint_000002/state.pt", state[:-1] + bytes([state[-1] ^ 1]))
    kept = place.kept()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert step_of(kept.read_newest()) == 20
    assert len(said) == 3
    for number in (0, 1):
        place.drop(f"{ATTEMPTS[0]}/checkpoint_{number:06d}/state.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(checkpoint.CheckpointError, match="all 4 checkpoints are bad"):
            kept.read_newest()
    kept.close()


def test_the_newest_two_and_the_best_are_kept(place: Place) -> None:
    for number, (step, score) in enumerate(((10, 3.0), (20, 1.0), (30, None), (40, 2.0), (50, 4.0))):
        place.save(f"{ATTEMPTS[number // 3]}/checkpoint_{number:06d}", step, score)
    place.put(f"{ATTEMPTS[0]}/checkpoint_000009/state.pt", b"of a writer that was killed")
    kept = place.kept()
    kept.thin_out()
    wanted = [f"{ATTEMPTS[0]}/checkpoint_000001", *(f"{ATTEMPTS[1]}/checkpoint_{number:06d}" for number in (3, 4))]
    assert place.checkpoints() == wanted
    kept.thin_out()
    assert place.checkpoints() == wanted
    assert step_of(kept.read_newest()) == 50
    kept.close()


def test_nothing_goes_while_newer_ones_are_not_whole(place: Place) -> None:
    for number, step in enumerate((10, 20, 30)):
        place.save(f"{ATTEMPTS[0]}/checkpoint_{number:06d}", step)
    for number in (1, 2):
        state = place.get(f"{ATTEMPTS[0]}/checkpoint_{number:06d}/state.pt")
        place.put(f"{ATTEMPTS[0]}/checkpoint_{number:06d}/state.pt", state[: len(state) // 2])
    kept = place.kept()
    kept.thin_out()
    assert f"{ATTEMPTS[0]}/checkpoint_000000" in place.checkpoints()
    kept.close()


def test_what_is_said_once(place: Place) -> None:
    kept = place.kept()
    assert not kept.has("splits.json")
    kept.write("splits.json", json.dumps({"train": [1, 2]}))
    assert kept.has("splits.json")
    assert json.loads(place.get("splits.json")) == {"train": [1, 2]}
    kept.close()


def test_logs_and_stacks_of_a_process_in_a_store(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object cannot be added to: each attempt, and each worker of it, has its own. Nothing stays on the node."""
    bucket.let_in(monkeypatch)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = Place(bucket.address("logs"), tmp_path)
    first, second, worker = place.kept(attempt=1), place.kept(), place.kept(rank=1)
    for kept, text in ((first, "one"), (second, "two"), (worker, "of a worker")):
        kept.log.write_text(text)
        assert kept.saved(lambda text=text: text) == text
    second.log.write_text("two, and more")
    second.stacks.write_text("no progress for 3 s")
    second.send_stacks()
    for kept in (first, second, worker):
        kept.close()
    assert bucket.objects("logs") == {
        "logs/00007/attempt-001.txt": b"one",
        "logs/00007/attempt-002.txt": b"two, and more",
        "logs/00007/attempt-002-worker-1.txt": b"of a worker",
        f"{ATTEMPTS[1]}/stacks.txt": b"no progress for 3 s",
    }
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_away_while_a_checkpoint_is_written(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What writes it is called again, until it is there; what else it raises is not the store's and goes on."""
    bucket.let_in(monkeypatch)
    kept = Place(bucket.address("away"), tmp_path).kept()
    told = iter([OSError("AWS Error NETWORK_CONNECTION during PutObject operation: curlCode: 7"), None])

    def act() -> str:
        if (error := next(told)) is not None:
            raise error
        return "saved"

    assert kept.saved(act) == "saved"

    def full() -> str:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        kept.saved(full)
    kept.close()
