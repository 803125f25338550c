"""Whole sweeps whose ledger, and whose runs in MLflow, are in a real PostgreSQL that dies meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.drivers import TIMEOUT_S, driver, kill, result_of, run_command, wait_until, without_circumstances
from tests.helpers.postgres import PASSWORD, Postgres
from tests.sweeps.test_resume import TASK, num_reports

pytestmark = pytest.mark.soak


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Postgres]:
    found = Postgres()
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    try:
        found.start()
        yield found
    finally:
        found.close()


def secrets_in(place: Path) -> list[str]:
    return [str(path) for path in place.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]


def test_two_drivers_a_server_that_dies_and_a_driver_that_is_killed(server: Postgres, tmp_path: Path) -> None:
    """Two sweeps at once in one database; the server is killed and started again in the middle, and one driver after
    that: they come to the same answer, and no trial is lost or done twice."""
    usual = (
        "--task",
        TASK,
        "--epochs",
        "4",
        "--lrs",
        "3e-3,1e-3",
        "--set",
        "task.sleep_s=0.01",
        "--trials-at-once",
        "1",
    )
    places = [tmp_path / "first", tmp_path / "second"]
    for place in places:
        place.mkdir()
    arguments = ("--name", "one", *usual, "--ledger", server.address())
    with driver(*arguments, cwd=places[0]) as first, driver(*arguments, cwd=places[1]) as second:
        for place, process in zip(places, (first, second), strict=True):
            wait_until(lambda p=place: num_reports(p / "results/one") >= 2, "two reports are there", process)
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            assert b"postgresql://" in command
            assert PASSWORD.encode() not in command
        server.kill()
        time.sleep(2)
        assert first.poll() is None
        assert second.poll() is None
        server.start()
        before = num_reports(places[0] / "results/one")
        wait_until(lambda: num_reports(places[0] / "results/one") > before, "training goes on", first)
        kill(first)
        assert second.wait(TIMEOUT_S) == 0, (places[1] / "driver.log").read_text()
    done = run_command("--resume", "one", cwd=places[0])
    assert done.returncode == 0, done.stderr
    one, other = (result_of(place / "results/one") for place in places)
    assert without_circumstances(one) == without_circumstances(other)
    assert [trial["epochs"] for trial in one["trials"]] == [4, 4]
    assert max(trial["attempts"] for trial in one["trials"]) <= 2
    assert [trial["attempts"] for trial in other["trials"]] == [1, 1]  # what the server's death cost
    for place in places:
        assert not (place / "results/one/ledger.db").exists()
        assert secrets_in(place) == []
        assert PASSWORD not in done.stdout + done.stderr
    assert "is back; nothing was lost" in (places[1] / "driver.log").read_text()
    states = server.sql(
        "SELECT study_name, state::text, count(*) FROM trials JOIN studies USING (study_id) "
        "WHERE study_name LIKE 'one.%' GROUP BY 1, 2"
    )
    assert [row[1:] for row in states] == [("COMPLETE", 2), ("COMPLETE", 2)]
