"""A ledger in a real PostgreSQL: the same facts as in a file, one writer, and a server that dies."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from mlflow.tracking import MlflowClient

from sweeps import lr_scan
from sweeps.record import postgres as postgres_module
from sweeps.record.address import LedgerLost, Pointer
from sweeps.record.home import checked_database, dashboard_address
from sweeps.record.ledger import Ledger
from sweeps.record.store import Busy, Folder
from sweeps.record.trial import TrialRecord
from tests.helpers.drivers import ROOT, environment
from tests.helpers.postgres import PASSWORD, Postgres
from tests.sweeps.test_ledger import report, sweep_of
from tests.sweeps.test_space import sweep_of as space_of

pytestmark = pytest.mark.slow
OWN = """
import sys
from pathlib import Path
from sweeps.record.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]))
ledger.note("seen", 1)
print("mine", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    found = Postgres()
    try:
        found.start()
        yield found
    finally:
        found.close()


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    found = Folder(tmp_path / "asked")
    found.path.mkdir()
    return found


def made(server: Postgres, folder: Folder, **noted: object) -> Ledger:
    return Ledger.create(folder.pointer, sweep_of(), {"sweep_id": "abc", **noted}, server.address())


def told(ledger: Ledger) -> list[TrialRecord]:
    return [dataclasses.replace(record, began_ms=None, ended_ms=None) for record in ledger.trials()]


def happen(ledger: Ledger, events: random.Random, num_trials: int) -> None:
    """What a driver may write, in some order, the same for the same events."""
    for _ in range(40):
        number = events.randrange(num_trials)
        act = events.choice(["begin", "report", "fail", "finish", "retry", "note", "prune"])
        state = ledger.trial(number).state
        if (
            act == "begin"
            and state in ("waiting", "running")
            and all(record.state != "waiting" for record in ledger.trials()[:number])
        ):
            ledger.begin(number)
        elif act == "report" and state == "running":
            value = events.choice([0.5, 1.0, float("nan"), float("inf"), -float("inf"), 0.1 + 0.2])
            ledger.report(number, report(ledger.trial(number).reports + 1, value, acc=0.25))
        elif act == "fail" and state == "running":
            ledger.note_failure(number, "exception", 'it\'s "a" 100% ? failure: \u00e9\u4e2d %s :id')
        elif act == "finish" and state == "running":
            end = events.choice(["complete", "pruned", "diverged", "failed"])
            ledger.finish(number, end, reason="why?", weights_sha256="0" * 64)  # type: ignore[arg-type]
        elif act == "retry":
            ledger.retry_failed()
        elif act == "note":
            ledger.note("word", {"said": events.random()})
        elif act == "prune" and state == "running" and ledger.trial(number).reports:
            ledger.should_prune(number)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["points", "space"])
def test_the_same_events_leave_the_same_record_as_in_a_file(
    server: Postgres, folder: Folder, tmp_path: Path, kind: str, seed: int
) -> None:
    sweep = sweep_of(pruner="median") if kind == "points" else space_of(num_trials=5, pruner="asha")
    ledgers = [
        Ledger.create(tmp_path / "ledger.db", sweep, {"sweep_id": "abc"}),
        Ledger.create(folder.pointer, sweep, {"sweep_id": "abc"}, server.address()),
    ]
    for ledger in ledgers:
        happen(ledger, random.Random(seed), sweep.num_planned)
    reopened = [Ledger(tmp_path / "ledger.db"), Ledger(folder.ledger)]
    ours, theirs = ([told(ledger) for ledger in pair] for pair in (ledgers, reopened))
    assert repr(ours[0]) == repr(ours[1]) == repr(theirs[0]) == repr(theirs[1])  # repr: nan is nan
    assert {record.state for record in ours[0]} != {"waiting"}
    assert reopened[0].attribute("word") == reopened[1].attribute("word")
    assert reopened[0].observations() == reopened[1].observations() or "nan" in repr(reopened[0].observations())
    for ledger in (*ledgers, *reopened):
        ledger.close()


def test_an_event_is_one_commit(server: Postgres, folder: Folder) -> None:
    ledger = made(server, folder)
    ledger.begin(0)
    ledger.report(0, report(1, 0.5))
    before = told(ledger)
    server.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$",
        "CREATE TRIGGER refuse BEFORE UPDATE ON trials FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    try:
        with pytest.raises(Exception, match="no"):
            ledger.finish(0, "complete", weights_sha256="0" * 64)
    finally:
        server.sql("DROP TRIGGER refuse ON trials", "DROP FUNCTION refuse")
    again = Ledger(folder.ledger)
    assert told(again) == before
    assert again.trial(0).weights_sha256 is None
    ledger.finish(0, "complete", weights_sha256="0" * 64)
    assert [record.state for record in ledger.trials()] == ["complete", "waiting", "waiting"]
    study = optuna.load_study(
        study_name=Pointer.read(folder.pointer).study,
        storage=dashboard_address(folder.ledger),
    )
    assert study.best_value == 0.5  # a study like any other, for Optuna's own tools
    ledger.close()
    again.close()


def test_one_process_writes_and_a_dead_one_s_lock_is_free(server: Postgres, folder: Folder) -> None:
    made(server, folder).close()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWN, str(folder.ledger)],
        cwd=ROOT, env={**environment(), "PGPASSWORD": PASSWORD}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"mine\n"
        other = Ledger(folder.ledger)
        assert len(other.trials()) == 3  # who reads needs no lock
        with pytest.raises(Busy, match=f"sweep 'asked' is being run by process {owner.pid} on "):
            other.begin(0)
    finally:
        owner.kill()
        owner.communicate()
    began = time.monotonic()
    while True:
        try:
            assert other.begin(0).state == "running"
            break
        except Busy:
            assert time.monotonic() - began < 10
            time.sleep(0.05)
    other.close()


def test_a_server_that_dies_is_waited_for(server: Postgres, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = made(server, folder)
    ledger.begin(0)
    for number in range(1, 4):
        server.kill()
        later = threading.Timer(0.5, server.start)
        later.start()
        assert ledger.report(0, report(number, 1 / number))
        later.join()
    assert "waiting for it, for at most 300 s" in capsys.readouterr().err
    other = Ledger(folder.ledger)
    assert told(other) == told(ledger)
    assert other.trial(0).reports == 3
    with pytest.raises(Busy):  # the lock was taken again
        other.note("x", 1)
    ledger.close()
    other.close()


def test_who_lost_its_server_for_too_long_ends_and_who_was_overtaken_too(
    server: Postgres, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_module, "WAIT_S", 0.5)
    monkeypatch.setattr(postgres_module, "RETRY_S", 0.1)
    first = made(server, folder)
    first.begin(0)
    server.kill()
    try:
        with pytest.raises(LedgerLost, match=r"did not answer for 0.5 s \("):
            first.begin(1)
        began = time.monotonic()
        with pytest.raises(LedgerLost):
            first.note("x", 1)
        assert time.monotonic() - began < 0.4  # the end of the sweep does not wait again
    finally:
        server.start()
    second = Ledger(folder.ledger)
    second.begin(1)
    second.close()
    with pytest.raises(Busy, match="another process has gone on"):
        first.begin(1)
    assert [record.attempts for record in Ledger(folder.ledger).trials()] == [1, 1, 0]


def test_two_sweeps_of_one_name_and_what_a_kill_left(server: Postgres, folder: Folder, tmp_path: Path) -> None:
    other = Folder(tmp_path / "elsewhere" / "asked")
    other.path.mkdir(parents=True)
    one, two = made(server, folder, mine=1), made(server, other, mine=2)
    one.begin(0)
    assert (one.attribute("mine"), two.attribute("mine")) == (1, 2)
    assert two.trial(0).state == "waiting"
    one.close()
    two.close()
    left = Folder(tmp_path / "left")
    left.path.mkdir()
    os.rename(folder.pointer, left.path / "ledger.json.part")  # as if the driver had been killed before its rename
    count = "SELECT count(*) FROM studies WHERE study_name LIKE 'asked.%'"
    ((before,),) = server.sql(count)
    made(server, left).close()
    assert server.sql(count) == [(before,)]
    assert sorted(path.name for path in left.path.iterdir()) == ["ledger.json"]


@pytest.mark.parametrize(
    ("user", "database", "word", "said"),
    [
        ("keeper", "postgres", "wrong", "password authentication failed"),
        ("keeper", "nowhere", PASSWORD, 'database "nowhere" does not exist'),
        ("guest", "template1", PASSWORD, "permission denied"),
        ("guest", "postgres", PASSWORD, "permission denied"),
    ],
)
def test_a_database_that_refuses_is_one_sentence_before_anything(
    server: Postgres,
    launch_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    user: str,
    database: str,
    word: str,
    said: str,
) -> None:
    checked_database(server.address())  # Optuna's tables are there, and belong to somebody else
    if user == "guest" and not server.sql("SELECT 1 FROM pg_roles WHERE rolname = 'guest'"):
        server.sql(f"CREATE ROLE guest LOGIN PASSWORD '{PASSWORD}'")
    monkeypatch.setenv("PGPASSWORD", word)
    with pytest.raises(SystemExit) as left:
        lr_scan.main(["--ledger", server.address(database, user)])
    lines = capsys.readouterr().err.strip().splitlines()
    assert left.value.code == 2
    assert len(lines) == 1
    assert said in lines[0]
    assert word not in lines[0]
    assert list(launch_folder.iterdir()) == []


def test_a_database_that_is_mlflows_is_refused(
    server: Postgres, launch_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both call a table alembic_version, and would take the other's word in it for their own."""
    server.sql("CREATE DATABASE shown")
    store = server.address("shown").replace("postgresql:", "postgresql+psycopg:")
    MlflowClient(store).create_experiment("theirs", artifact_location=launch_folder.as_uri())
    before = server.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", database="shown")
    for more, said in (([], "has another program's tables"), (["--tracking-uri", store], "is MLflow's database too")):
        with pytest.raises(SystemExit) as left:
            lr_scan.main(["--ledger", server.address("shown"), *more])
        assert left.value.code == 2
        assert said in capsys.readouterr().err
    assert server.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", database="shown") == before
    assert list(launch_folder.iterdir()) == []
