"""Sweeps whose trials leave what they leave in an object store: the same answer, out of reach for a while, gone on with
by a machine that has nothing but the addresses."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sweeps import fetch, lr_scan
from sweeps.record.history import History
from tests.helpers.bucket import KEYS, Bucket, bucket_server
from tests.helpers.drivers import (
    TIMEOUT_S,
    driver,
    environment,
    kill,
    result_of,
    run_command,
    wait_until,
    without_circumstances,
)
from tests.helpers.nodes import free_port
from tests.helpers.postgres import PASSWORD, Postgres
from tests.sweeps.test_resume import TASK, num_reports

LRS = ("--lrs", "3e-3", "1e-3")
USUAL = ("--task", TASK, *LRS, "--epochs", "3", "--trials-at-once", "1", "--cpus-per-trial", "1", "--name", "one")


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with bucket_server() as found:
        yield found


@pytest.fixture(scope="module")
def at_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same sweep without any store, never interrupted."""
    place = tmp_path_factory.mktemp("at-home")
    done = run_command(*USUAL, cwd=place)
    assert done.returncode == 0, done.stderr
    return place / "results/one"


def told(folder: Path) -> list[list[Any]]:
    """What each trial reported, step by step."""
    kept = ("report", "epoch", "step", "metrics", "curves")
    history = History(folder / "history")
    return [[{name: report[name] for name in kept} for report in history.reports(number)] for number in range(2)]


def assert_is_as_at_home(folder: Path, at_home: Path) -> None:
    assert without_circumstances(result_of(folder)) == without_circumstances(result_of(at_home))
    assert json.dumps(told(folder)) == json.dumps(told(at_home))


def assert_no_secrets(place: Path, bucket: Bucket, *others: str) -> None:
    secrets = [KEYS["AWS_SECRET_ACCESS_KEY"], KEYS["AWS_ACCESS_KEY_ID"], *others]
    found = {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    for name, content in {**found, **bucket.objects("")}.items():
        assert not any(secret.encode() in content for secret in secrets), name


def test_the_same_sweep_with_its_files_in_a_store(bucket: Bucket, tmp_path: Path, at_home: Path) -> None:
    said = run_command(*USUAL, "--storage", bucket.address(), cwd=tmp_path, **bucket.environment())
    assert said.returncode == 0, said.stderr
    folder = tmp_path / "results/one"
    assert_is_as_at_home(folder, at_home)
    stored = bucket.objects("results/one")
    assert list(folder.rglob("state.pt")) == []
    manifests = [name for name in stored if name.endswith("manifest.json")]
    assert len(manifests) == 4  # the newest two of each trial, of which the last is the best
    for name in manifests:
        entry = json.loads(stored[name])["files"]["state.pt"]
        state = stored[name.replace("manifest.json", "state.pt")]
        assert (entry["size"], entry["sha256"]) == (len(state), hashlib.sha256(state).hexdigest())
    for number in range(2):
        kept = [json.loads(stored[f"history/{number:05d}/{report:07d}.json"]) for report in (1, 2, 3)]
        assert kept == History(folder / "history").reports(number)
    for name in ("splits.json", "checks.json", "result.json"):
        assert stored[name] == (folder / name).read_bytes()
    assert stored["report.html"] == (folder / "report.html").read_bytes()
    assert stored["logs/00001/attempt-001.txt"] == (folder / "logs/00001.txt").read_bytes()
    assert json.loads(stored["sweep.json"])["ledger"] is None
    assert_no_secrets(tmp_path, bucket)


@pytest.mark.soak
def test_it_is_extended_and_accepted(bucket: Bucket, tmp_path: Path, at_home: Path) -> None:
    said = run_command(*USUAL, "--storage", bucket.address("more"), cwd=tmp_path, **bucket.environment())
    assert said.returncode == 0, said.stderr
    folder = tmp_path / "results/one"
    more = run_command("--resume", "one", "--epochs", "4", cwd=tmp_path, **bucket.environment())
    assert more.returncode == 0, more.stderr
    result = result_of(folder)
    assert [trial["epochs"] for trial in result["trials"]] == [4, 4]
    assert [trial["attempts"] for trial in result["trials"]] == [2, 2]
    assert told(folder)[0][:3] == told(at_home)[0]  # a fourth epoch, and none again
    shutil.copytree(tmp_path / "results", tmp_path / "copied")
    copied = run_command("--resume", "one", "--results", "copied", cwd=tmp_path, **bucket.environment())
    assert copied.returncode == 2
    assert "is a copy of" in copied.stderr
    accepted = run_command("one", "--json", cwd=tmp_path, module="sweeps.accept", **bucket.environment())
    assert accepted.returncode == 0, accepted.stderr
    chosen = json.loads(accepted.stdout)["checkpoint"]
    state = bucket.objects("more/one")[f"{chosen['folder']}/state.pt"]
    assert chosen["sha256"] == hashlib.sha256(state).hexdigest()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--storage", "{there}"), r"name 'taken' exists already in s3://.*--resume taken --storage"),
        (("--storage", "s3://no-such-bucket/x"), "has no bucket 'no-such-bucket'"),
        (("--storage", "/shared/results"), r"must be s3://bucket/folder .* --results"),
        (("--storage", "s3://key:hidden@bucket/x"), "keys in the address"),
        (("--storage", "s3://b/x?endpoint_override=127.0.0.1:1&scheme=http"), r"did not answer .*NETWORK_CONNECTION"),
        (("--resume", "none", "--storage", "{there}"), r"--resume none: there is no such sweep in .*there are: taken"),
        (
            ("--resume", "taken", "--storage", "{there}"),
            r"its ledger is a file in /there/taken on host-of-it; .*--ledger",
        ),
        (("--resume", "torn", "--storage", "{torn}"), "torn/sweep.json does not say what the sweep is"),
        (("--resume", "--storage", "{there}"), "name the sweep, --resume NAME"),
        (("--resume", "../x", "--storage", "{there}"), "name '../x' may only have"),
    ],
)
def test_bad_input(
    bucket: Bucket,
    launch_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    """Said before anything is made, here or there."""
    bucket.let_in(monkeypatch)
    there = {"name": "taken", "ledger": None, "host": "host-of-it", "folder": "/there/taken"}
    put = bucket.client().put_object
    put(Bucket=bucket.name, Key="there/taken/sweep.json", Body=json.dumps(there).encode())
    put(Bucket=bucket.name, Key="torn/torn/sweep.json", Body=b'{"name": "to')
    before = bucket.objects("there")
    given = [word.format(there=bucket.address("there"), torn=bucket.address("torn")) for word in arguments]
    named = [] if "--resume" in given else ["--name", "taken"]
    with pytest.raises(SystemExit) as left:
        lr_scan.main([*given, *named])
    said = " ".join(capsys.readouterr().err.split())
    assert left.value.code == 2
    assert re.search(words, said), said
    assert "hidden" not in said
    assert list(launch_folder.iterdir()) == []
    assert bucket.objects("there") == before


@pytest.mark.soak
def test_a_task_that_cannot_be_trained_leaves_nothing_in_the_store(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "import dataclasses\nfrom trainable.tasks.digits import Digits\n\n\n@dataclasses.dataclass(frozen=True)\n"
        "class Bad(Digits):\n    def loss(self, outputs, batch):\n        return outputs.sum() * float('nan')\n"
    )
    done = run_command(
        *("--task", "bad.py:Bad", "--storage", bucket.address("bad"), "--name", "bad"),
        cwd=tmp_path,
        **bucket.environment(),
    )
    assert done.returncode == 2, done.stderr
    assert "cannot be trained" in done.stderr
    assert bucket.objects("bad") == {}
    assert not (tmp_path / "results/bad").exists()


@pytest.mark.slow
def test_a_bare_machine_goes_on_with_it(bucket: Bucket, tmp_path: Path, at_home: Path) -> None:
    """The driver and its machine are gone. Another one has the addresses, and no file of the sweep."""
    server = Postgres()
    secrets = {"PGPASSWORD": PASSWORD, **bucket.environment()}
    places = [tmp_path / "first", tmp_path / "second"]
    for place in places:
        place.mkdir()
    where = ("--storage", bucket.address("shared"))
    try:
        server.start()
        arguments = (*USUAL, *where, "--ledger", server.address(), "--set", "task.sleep_s=0.01")
        with driver(*arguments, cwd=places[0], **secrets) as process:
            wait_until(lambda: num_reports(places[0] / "results/one") >= 5, "five reports are there", process)
            kill(process)
        shutil.rmtree(places[0])
        looked = run_command("one", *where, module="sweeps.fetch", cwd=places[1], **secrets)
        assert looked.returncode == 0, looked.stderr
        assert "with 2 trial(s) is in" in looked.stdout
        shown = run_command("one", module="sweeps.show", cwd=places[1], **secrets)
        assert "running" in shown.stdout
        shutil.rmtree(places[1] / "results")
        done = run_command("--resume", "one", *where, cwd=places[1], **secrets)
        assert done.returncode == 0, done.stderr
        assert_is_as_at_home(places[1] / "results/one", at_home)
        result = result_of(places[1] / "results/one")
        assert [trial["attempts"] for trial in result["trials"]] == [1, 2]
        assert f"--resume one --storage {bucket.address('shared')}  # from any machine" in done.stdout
        assert "attempt 1" in (places[1] / "results/one/logs/00001.txt").read_text()
        assert "attempt 2" in (places[1] / "results/one/logs/00001.txt").read_text()
        assert_no_secrets(places[1], bucket, PASSWORD)
    finally:
        server.close()


@pytest.fixture
def mlflow_server(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """MLflow with its artifacts in the same store."""
    place = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    flags = ["--backend-store-uri", f"sqlite:///{place / 'store.db'}", "--artifacts-destination"]
    flags += [bucket.address("artifacts"), "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with (place / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *flags],
            cwd=place,
            env={**environment(), **bucket.environment(), "MLFLOW_S3_ENDPOINT_URL": bucket.endpoint},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def is_up() -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
        except OSError:
            return False
        return True

    try:
        wait_until(is_up, "MLflow answers")
        yield f"http://127.0.0.1:{port}"
    finally:
        kill(process)


@pytest.mark.slow
def test_a_store_that_is_out_of_reach_for_half_a_minute(
    bucket: Bucket, mlflow_server: str, tmp_path: Path, at_home: Path
) -> None:
    """Checkpoints, reports and MLflow's artifacts go there. Nothing is lost, nobody fails, no step is made twice."""
    arguments = (*USUAL, "--storage", bucket.address("outage"), "--tracking-uri", mlflow_server)
    arguments += ("--set", "task.sleep_s=0.01")
    folder = tmp_path / "results/one"
    with driver(*arguments, cwd=tmp_path, **bucket.environment()) as process:
        wait_until(lambda: num_reports(folder) >= 2, "two reports are there", process)
        bucket.door.shut()
        opened = threading.Timer(30.0, bucket.door.open)
        opened.start()
        time.sleep(25)
        during = num_reports(folder)
        assert process.poll() is None
        opened.join()
        assert process.wait(TIMEOUT_S) == 0, (tmp_path / "driver.log").read_text()
    said = (tmp_path / "driver.log").read_text()
    assert during <= 4  # a trial waits with what it has to save
    said += "".join(path.read_text() for path in (folder / "logs").iterdir())  # whoever had something to save says it
    assert "the object store is back; nothing was lost" in said
    assert_is_as_at_home(folder, at_home)
    assert [trial["attempts"] for trial in result_of(folder)["trials"]] == [1, 1]
    stored = bucket.objects("outage/one")
    assert sorted(name for name in stored if name.startswith("history/")) == [
        f"history/{number:05d}/{report:07d}.json" for number in (0, 1) for report in (1, 2, 3)
    ]
    logged = {name.rpartition("/")[2] for name in bucket.objects("artifacts")}
    assert {"config.json", "log.txt", "checkpoints.json", "result.json", "report.html", "sweep.json"} <= logged


def test_fetch_says_what_is_wrong(
    bucket: Bucket, launch_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.let_in(monkeypatch)
    with pytest.raises(SystemExit) as left:
        fetch.main(["nothing", "--storage", bucket.address("nothing")])
    assert left.value.code == 2
    assert "nothing: there is no such sweep in s3://" in capsys.readouterr().err
    assert not (launch_folder / "results").exists()
