"""A cluster whose nodes share nothing but an object store: each must have keys of its own, and is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.bucket import Bucket, bucket_server
from tests.helpers.drivers import result_of, run_command, without_circumstances
from tests.helpers.nodes import TOKEN, head, joined

pytestmark = pytest.mark.soak
SCAN = ("--lrs", "3e-3", "1e-3", "--cpus-per-trial", "1", "--progress", "none", "--name", "s")


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    """Which asks for rights: who has no keys gets nothing."""
    with bucket_server(strict=4) as found:
        yield found


@pytest.fixture(scope="module")
def keys(bucket: Bucket) -> dict[str, str]:
    """Of somebody who may do everything."""
    return bucket.keys_of("keeper", "s3:*")


def test_every_node_has_to_reach_the_store(bucket: Bucket, keys: dict[str, str], tmp_path: Path) -> None:
    """One node without keys: said before the first trial. Then all have them: the answer is that of one machine."""
    to_none = {name: value for name, value in keys.items() if "KEY" not in name}
    where = ("--storage", bucket.address("nodes"))
    both: dict[str, Any] = {"cwd": tmp_path, "RAY_AUTH_TOKEN": TOKEN, **keys}
    for name in ("head", "one", "two"):
        (tmp_path / name).mkdir()
    with head(tmp_path / "head", TOKEN, **keys) as address:
        with joined(tmp_path / "one", address, TOKEN, **to_none):
            refused = run_command(*SCAN, *where, "--address", address, **both)
            assert refused.returncode == 2, refused.stderr
            (line,) = refused.stderr.strip().splitlines()
            assert "cannot use the object store s3://" in line
            assert "give every node the keys that this machine has" in line
            assert keys["AWS_SECRET_ACCESS_KEY"] not in line
            assert not (tmp_path / "results").exists()
            looked = run_command("--address", address, *where, "--json", module="cluster.check", **both)
            assert looked.returncode == 1, looked.stderr
            found = json.loads(looked.stdout)
            assert found["services"]["storage"]["problem"] == ""
            assert sorted(bool(max(node["sees"].values())) for node in found["nodes"]) == [False, True]
        with joined(tmp_path / "two", address, TOKEN, **keys):
            done = run_command(*SCAN, *where, "--address", address, **both)
            assert done.returncode == 0, done.stderr
    alone = tmp_path / "alone"
    alone.mkdir()
    assert run_command(*SCAN, cwd=alone).returncode == 0
    one, other = (result_of(place / "results/s") for place in (tmp_path, alone))
    assert without_circumstances(one) == without_circumstances(other)
    assert list((tmp_path / "results").rglob("state.pt")) == []
