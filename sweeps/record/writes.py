"""Several facts about a trial written in one commit, in Optuna's tables: a kill leaves all of them or none.

Optuna's own doors commit each by itself, which also costs a wait for the disk each. SQLite and PostgreSQL are told the
same; writing it again changes nothing, for a server may die with a commit in doubt. Knows no meaning of what it writes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.storages import RDBStorage

ATTRIBUTE = (
    'INSERT INTO trial_{kind}_attributes (trial_id, "key", value_json) VALUES (?, ?, ?) '
    'ON CONFLICT (trial_id, "key") DO UPDATE SET value_json = excluded.value_json'
)
PARAM = (
    "INSERT INTO trial_params (trial_id, param_name, param_value, distribution_json) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (trial_id, param_name) DO NOTHING"
)
REPORT = (
    "INSERT INTO trial_intermediate_values (trial_id, step, intermediate_value, intermediate_value_type) "
    "VALUES (?, ?, ?, ?) ON CONFLICT (trial_id, step) DO NOTHING"
)
VALUE = (
    "INSERT INTO trial_values (trial_id, objective, value, value_type) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (trial_id, objective) DO NOTHING"
)
NEW = "INSERT INTO trials (number, study_id, state, datetime_start) VALUES (?, ?, 'RUNNING', ?)"
FIND = "SELECT trial_id FROM trials WHERE number = ? AND study_id = ?"
BEGIN = "UPDATE trials SET state = 'RUNNING', datetime_start = ? WHERE trial_id = ? AND state = 'WAITING'"
END = "UPDATE trials SET state = ?, datetime_complete = ? WHERE trial_id = ? AND state = 'RUNNING'"


@dataclass(frozen=True)
class Facts:
    """What to write. user, system: attributes; params: internal value and distribution of each; report: (step, value);
    begins: from waiting to running; end: the state it ends in, with its values."""

    user: Mapping[str, Any] = field(default_factory=dict)
    system: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, tuple[float, BaseDistribution]] = field(default_factory=dict)
    report: tuple[int, float] | None = None
    begins: bool = False
    end: str | None = None
    values: Sequence[float] = ()


def storage_at(path: Path) -> RDBStorage:
    """The path goes to SQLite as it is: in an address ?, % and { would mean something else."""
    connect = functools.partial(sqlite3.connect, path, check_same_thread=False)
    return RDBStorage("sqlite:///ledger.db", engine_kwargs={"creator": connect})


def write(storage: RDBStorage, trial_id: int, facts: Facts) -> None:
    """All of the facts, or none of them."""
    with one_commit(storage) as cursor:
        _execute(cursor, trial_id, facts)


def write_new(storage: RDBStorage, study_id: int, number: int, facts: Facts) -> int:
    """A new trial, running, with all of the facts; its id. Optuna's own door refuses a choice that has grown."""
    with one_commit(storage) as cursor:
        if not is_file(storage):
            found = cursor.execute(FIND, (number, study_id)).fetchone()
            if found is not None:  # that commit was in doubt, and went well
                return int(found[0])
            trial_id = int(cursor.execute(f"{NEW} RETURNING trial_id", (number, study_id, _now())).fetchone()[0])
        else:
            cursor.execute(NEW, (number, study_id, _now()))
            trial_id = int(cursor.lastrowid)
        _execute(cursor, trial_id, facts)
    return trial_id


def is_file(storage: RDBStorage) -> bool:
    """Whether it is SQLite's."""
    return bool(storage.engine.dialect.name == "sqlite")


@contextlib.contextmanager
def one_commit(storage: RDBStorage) -> Iterator[Any]:
    """A cursor that takes statements as SQLite spells them; all that it is told, or none."""
    connection = storage.engine.raw_connection()
    try:
        yield connection.cursor() if is_file(storage) else _Spelled(connection.cursor())
        connection.commit()
    except BaseException:
        try:
            connection.rollback()
        except storage.engine.dialect.loaded_dbapi.Error:  # the server is gone, and so is what was begun there
            connection.invalidate()
        raise
    finally:
        connection.close()


class _Spelled:
    """A cursor of psycopg, which spells a place for a value in another way."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def execute(self, statement: str, values: Sequence[Any]) -> Any:
        return self._cursor.execute(statement.replace("?", "%s"), values)


def _execute(cursor: Any, trial_id: int, facts: Facts) -> None:
    if facts.begins:
        cursor.execute(BEGIN, (_now(), trial_id))
    for name, (value, distribution) in facts.params.items():
        cursor.execute(PARAM, (trial_id, name, value, distribution_to_json(distribution)))
    if facts.report is not None:
        cursor.execute(REPORT, (trial_id, facts.report[0], *_number(facts.report[1])))
    for kind, attributes in (("user", facts.user), ("system", facts.system)):
        for key, value in attributes.items():
            cursor.execute(ATTRIBUTE.format(kind=kind), (trial_id, key, json.dumps(value)))
    for objective, value in enumerate(facts.values):
        cursor.execute(VALUE, (trial_id, objective, *_number(value)))
    if facts.end is not None:
        cursor.execute(END, (facts.end, _now(), trial_id))


def _number(value: float) -> tuple[float | None, str]:
    """A number as Optuna's tables have it: what is not finite is a word."""
    if math.isnan(value):
        return None, "NAN"
    if math.isinf(value):
        return None, "INF_POS" if value > 0 else "INF_NEG"
    return float(value), "FINITE"


def _now() -> str:
    return datetime.now().isoformat(sep=" ", timespec="microseconds")
