"""Where a ledger is that is not in the folder: which addresses are taken, and that no password is ever told again."""

from __future__ import annotations

import json
import urllib.parse
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps import lr_scan
from sweeps.record.address import Pointer, as_sqlalchemy, checked_address, connector, masked
from sweeps.record.store import Folder, sweeps_in

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("postgresql://u@h:5433/db", "postgresql://u@h:5433/db"),
        ("postgres://h/db", "postgresql://h/db"),
        ("postgresql:///db?host=/run/pg&password_env=WORD", "postgresql:///db?host=/run/pg&password_env=WORD"),
        ("postgresql://?service=sweeps", "postgresql://?service=sweeps"),
        ("postgresql://u@one:1,two:2/db?target_session_attrs=any", None),
    ],
)
def test_addresses_are_those_of_libpq(given: str, kept: str | None) -> None:
    assert checked_address(given) == (kept or given)


@pytest.mark.parametrize(
    "given",
    [
        f"postgresql://u:{SECRET}@h/db",
        f"postgresql://u:{SECRET}/@h/db",
        f"postgresql://u:?{SECRET}@h/db",
        f"postgresql://u:#@{SECRET}@h/db",
        f"postgresql://h/db?password={SECRET}",
        f"postgresql://h/db?sslmode=require&sslpassword={SECRET}",
        f"mysql://u:{SECRET}@h/db",
    ],
)
def test_a_password_in_an_address_is_refused_and_not_repeated(
    given: str, launch_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        lr_scan.main(["--name", "a", "--ledger", given])
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert SECRET not in said
    assert "PGPASSWORD" in said or "must be postgresql://" in said
    assert list(launch_folder.iterdir()) == []


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1).map(lambda text: f"<{text}>"))
def test_a_password_of_any_characters_is_masked(word: str) -> None:
    for spelled in (word, urllib.parse.quote(word, safe="")):
        assert spelled not in masked(f"postgresql://u:{spelled}@h/db")
        assert spelled not in masked(f"http://u:{spelled}@h:5000")


def test_what_is_not_an_address_is_said_in_words() -> None:
    for wrong, word in (
        ("results/ledger.db", "must be postgresql://"),
        ("sqlite:///a.db", "leave it out"),
        ("postgresql://h/db?nonsense=1", "nonsense"),
    ):
        with pytest.raises(ValueError, match=word):
            checked_address(wrong)
    with pytest.raises(ValueError, match="the environment has no STEADYSWEEP_NOT_THERE"):
        connector("postgresql://h/db?password_env=STEADYSWEEP_NOT_THERE")
    assert as_sqlalchemy("postgresql://u@h/db?password_env=X&a=b") == "postgresql+psycopg://u@h/db?a=b"


def test_a_folder_that_names_a_database_is_a_sweep(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "a")
    folder.path.mkdir()
    (folder.path / "lock").touch()
    assert folder.ledger == folder.path / "ledger.db"
    folder.pointer.with_name("ledger.json.part").write_text(Pointer("postgresql://h/db", "a.1").text())
    assert not folder.is_taken()  # a driver was killed while it made the study
    folder.pointer.write_text(Pointer("postgresql://h/db", "a.1").text())
    assert folder.is_taken()
    assert folder.ledger == folder.pointer
    assert sweeps_in(tmp_path) == [folder]
    assert Pointer.read(folder.ledger) == Pointer("postgresql://h/db", "a.1")
    folder.pointer.write_text(json.dumps({"database": 1}))
    with pytest.raises(ValueError, match="does not say where the ledger is"):
        Pointer.read(folder.ledger)


def test_a_server_that_is_not_there_is_one_sentence_before_anything(
    launch_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        lr_scan.main(["--ledger", "postgresql://u@127.0.0.1:1/db"])
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert said.count("\n") <= 2
    assert "the ledger at postgresql://u@127.0.0.1:1/db cannot be opened" in said
    assert "Traceback" not in said
    assert list(launch_folder.iterdir()) == []
    folder = Folder(launch_folder / "results/a")
    folder.path.mkdir(parents=True)
    folder.pointer.write_text(Pointer("postgresql://u@127.0.0.1:1/db", "a.1").text())
    with pytest.raises(SystemExit) as left:
        lr_scan.main(["--resume", "a"])
    assert left.value.code == 2
    assert "Connection refused" in capsys.readouterr().err


def test_a_ledger_in_the_folder_stays_there(launch_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Folder(launch_folder / "results/a")
    folder.path.mkdir(parents=True)
    folder.ledger.touch()
    for arguments, word in (
        (["--resume", "a", "--ledger", "postgresql://h/db"], "stays there"),
        (["--resume", "--ledger", "postgresql://h/db"], "name the sweep, --resume NAME"),
    ):
        with pytest.raises(SystemExit) as left:
            lr_scan.main(arguments)
        assert left.value.code == 2
        assert word in capsys.readouterr().err
