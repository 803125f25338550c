"""Ended trials made running ones again, in Optuna's tables.

Optuna has no way back from COMPLETE or FAIL, and a second trial in place of the first would be counted by its
samplers and pruners as another one. So the rows are changed: the state, and what was told at the end.
"""

from __future__ import annotations

from collections.abc import Iterable

from optuna.storages import RDBStorage

from sweeps.record.writes import one_commit

STATEMENTS = (
    "UPDATE trials SET state = 'RUNNING', datetime_complete = NULL WHERE trial_id = ?",
    "DELETE FROM trial_values WHERE trial_id = ?",
    "DELETE FROM trial_user_attributes WHERE trial_id = ? AND \"key\" IN ('state', 'reason', 'weights_sha256')",
)


def reopen(storage: RDBStorage, trial_ids: Iterable[int]) -> None:
    """All of them or none. The reports stay. A study that was loaded before has the old states in memory."""
    with one_commit(storage) as cursor:
        for trial_id in trial_ids:
            for statement in STATEMENTS:
                cursor.execute(statement, (trial_id,))
