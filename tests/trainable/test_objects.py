"""Object stores: what is written is read, what is away is waited for, what is refused is said, keys stand nowhere."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.bucket import KEYS, Bucket, bucket_server
from trainable.objects import Objects, StoreLost, StoreRefuses, above, below, checked_address, try_out


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with bucket_server() as found:
        yield found


@pytest.fixture
def objects(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Objects:
    bucket.let_in(monkeypatch)
    return Objects(bucket.address(request.node.name), wait_s=20.0)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a//b/", "s3://bucket/a/b"),
        ("gs://bucket/a b", "gs://bucket/a b"),
        ("s3://bucket/a?region=eu-west-1&scheme=http", "s3://bucket/a?region=eu-west-1&scheme=http"),
    ],
)
def test_an_address_as_it_is_kept(given: str, kept: str) -> None:
    assert checked_address(given) == kept
    assert checked_address(kept) == kept


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("/shared/results", r"must be s3://bucket/folder or gs://bucket/folder; a folder .* is named by --results"),
        ("results", "must be s3://"),
        ("file:///shared", "must be s3://"),
        ("S3://bucket", "must be s3://"),
        ("azure://bucket/x", "must be s3://"),
        ("https://bucket.s3.amazonaws.com/x", "must be s3://"),
        ("s3:///folder", "names no bucket"),
        ("s3://", "names no bucket"),
        ("s3://key:hidden@bucket/x", "keys in the address would be seen"),
        ("s3://bucket/x?access_key=a&secret_key=hidden", "keys in the address would be seen"),
        ("s3://bucket/x?anonymous=true", "may be endpoint_override, region, scheme, not anonymous"),
        ("gs://bucket/x?region=a", "may be endpoint_override, scheme, not region"),
        ("s3://bucket/../other", "may not be called"),
    ],
)
def test_an_address_that_is_refused(given: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        checked_address(given)
    assert "hidden" not in str(refused.value)
    assert "--storage" in str(refused.value)


@given(st.lists(st.text("abc-_.xyz", min_size=1).filter(lambda name: name not in (".", "..")), max_size=4))
def test_below_keeps_what_stands_behind_the_question_mark(names: list[str]) -> None:
    for query in ("", "?region=eu-west-1"):
        found = below(f"s3://bucket/top{query}", *names)
        assert found == f"{'/'.join(['s3://bucket/top', *names])}{query}"
        assert checked_address(found) == found
        assert above(below(found, "last")) == found


def test_what_is_written_is_read(objects: Objects, bucket: Bucket, request: pytest.FixtureRequest) -> None:
    told = {"a.json": b"1", "deep/er/b c.txt": b"\x00\xff" * 1000, "deep/ü#%+&=.bin": b"", "deep/er": b"also a file"}
    for name, data in told.items():
        objects.write(name, data)
    assert {name: objects.read(name) for name in told} == told
    assert bucket.objects(request.node.name) == told  # as Amazon's own client sees it
    assert objects.sizes() == {name: len(data) for name, data in told.items()}
    assert set(objects.sizes("deep")) == {name for name in told if name.startswith("deep/")}
    assert objects.folders() == ["deep"]
    objects.write("a.json", b"22")
    assert objects.read("a.json") == b"22"
    objects.delete("a.json")
    objects.delete("a.json")
    assert not objects.exists("a.json")
    assert objects.exists("deep/er")
    with pytest.raises(FileNotFoundError):
        objects.read("a.json")
    assert objects.sizes("nothing/here") == {}


@pytest.mark.soak
def test_more_than_a_page_of_names(objects: Objects) -> None:
    """S3 lists a thousand at a time."""
    for number in range(1003):
        objects.write(f"many/{number}", b"x")
    assert objects.sizes("many") == {f"many/{number}": 1 for number in range(1003)}


def test_a_file_is_there_when_it_is_whole(objects: Objects, tmp_path: Path) -> None:
    data = bytes(range(256)) * 100_000
    objects.write("big", data)
    objects.fetch("big", tmp_path / "new/folder/big")
    assert (tmp_path / "new/folder/big").read_bytes() == data
    with pytest.raises(FileNotFoundError):
        objects.fetch("none", tmp_path / "none")
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["big"]


def test_a_store_that_goes_away_and_comes_back_loses_nothing(objects: Objects, bucket: Bucket, tmp_path: Path) -> None:
    said: list[str] = []
    patient = Objects(objects.address, wait_s=60.0, say=said.append)
    patient.write("before", b"1")
    bucket.door.shut()
    opened = threading.Timer(4.0, bucket.door.open)
    opened.start()
    began = time.monotonic()
    try:
        patient.write("meanwhile", b"2")
        assert time.monotonic() - began >= 3.5
    finally:
        opened.join()
    assert patient.read("meanwhile") == b"2"
    assert patient.sizes() == {"before": 1, "meanwhile": 1}
    assert [text.partition(" (")[0] for text in said] == [
        "the object store does not answer",
        "the object store is back; nothing was lost",
    ]


def test_a_store_that_stays_away_is_given_up(objects: Objects, bucket: Bucket) -> None:
    short = Objects(objects.address, wait_s=0.5, say=lambda text: None)
    bucket.door.shut()
    try:
        for act in (short.sizes, lambda: short.write("x", b"")):
            with pytest.raises(StoreLost, match=r"did not answer for 0.5 s \(AWS Error NETWORK_CONNECTION"):
                act()
        with pytest.raises(ValueError, match="did not answer"):
            try_out(objects.address)
    finally:
        bucket.door.open()
    try_out(objects.address)


def test_a_bucket_that_is_not_there(objects: Objects) -> None:
    with pytest.raises(ValueError, match=r"has no bucket 'no-such-bucket', or not in that region; make it first"):
        try_out("s3://no-such-bucket/x")
    with pytest.raises(StoreRefuses):
        Objects("s3://no-such-bucket/x").write("a", b"")


def test_nothing_is_left_of_a_try(objects: Objects, bucket: Bucket, request: pytest.FixtureRequest) -> None:
    try_out(objects.address)
    assert bucket.objects(request.node.name) == {}


def test_a_bucket_without_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of somebody who may read and not write; then keys that nobody has."""
    with bucket_server(strict=4) as strict:
        own = strict.keys_of("reader", "s3:Get*", "s3:List*")
        for name, value in own.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ValueError, match=r"refuses the keys of this machine, or their right to do this") as refused:
            try_out(strict.address())
        assert "AWS_ACCESS_KEY_ID" in str(refused.value)
        assert own["AWS_SECRET_ACCESS_KEY"] not in str(refused.value)
        assert Objects(strict.address()).sizes() == {}
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobodys")
        with pytest.raises(ValueError, match="refuses the keys of this machine"):
            try_out(strict.address())


def test_keys_are_found_where_they_are_used(objects: Objects) -> None:
    """What Tune sends to its nodes has none in it."""
    sent = pickle.dumps(objects.filesystem)
    assert not any(value.encode() in sent for name, value in KEYS.items() if name.endswith(("_ID", "_KEY")))
