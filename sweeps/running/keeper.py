"""The record keeper: sees every result of a trial first, writes it down, and says whether the trial goes on.

Tune's shape of it, and what of Tune's habits is switched off. Imported by run.py only, which says first how Tune is to
behave.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from ray.tune import Stopper

from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.running.account import Account
from sweeps.running.progress import spoken
from sweeps.running.signals import Interruption
from trainable.crashpoint import crash_point

GRACE_S = 7.0  # how long running trials have, after a signal, to save at their current step


class StaysHere:
    """Tune copies and pickles what it is given, for a restore that is never done; this has no second copy."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {}


class RecordKeeper(StaysHere, Stopper):  # type: ignore[misc]
    """Sees every result first, writes it down, and then says whether the trial goes on.

    A Stopper and not a scheduler, because Tune shows a trial's last result to no scheduler.
    """

    def __init__(
        self,
        ledger: Ledger,
        history: History,
        interruption: Interruption,
        account: Account,
        tell: Callable[[int], None],
    ) -> None:
        self.running: list[Any] = []
        self._account = account
        self._ledger = ledger
        self._history = history
        self._interruption = interruption
        self._tell = tell

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        number, report = result["number"], json.loads(result["report"])
        if report is None:  # stopped at a step in the middle of an interval; its checkpoint follows
            if result["out_of_time"]:
                spoken_s = spoken(self._account.budget.max_trial_s or 0.0)
                self._ledger.finish(number, "pruned", reason=f"ended by --max-trial-time {spoken_s}")
                self._tell(number)
            return True
        if report["number"] > self._ledger.trial(number).reports:
            # The curves first: the ledger's word makes the report count.
            self._history.append(number, _history_record(report))
            crash_point("report", self._history.path(number))
            self._ledger.report(number, report)
        stop = False
        if report["diverged"]:
            self._ledger.finish(number, "diverged", reason=report["diverged"])
        elif result["done"]:
            self._ledger.finish(number, "complete", weights_sha256=report["weights_sha256"])
        elif not report["done"] and self._ledger.should_prune(number):
            self._ledger.finish(number, "pruned", reason=f"pruned after epoch {report['epoch']:g}")
            stop = True
        self._tell(number)
        if self._interruption.stopping_since is None and self._account.is_used_up(self._num_running()):
            self._interruption.stop_trials()
        return stop or self._interruption.stopping_since is not None

    def _num_running(self) -> int:
        return sum(trial.status == "RUNNING" for trial in self.running)

    def stop_all(self) -> bool:
        if self._interruption.stopping_since is None and self._account.time_is_up(self._num_running()):
            self._interruption.stop_trials()
        since = self._interruption.stopping_since
        if since is None:
            return False
        return time.monotonic() - since > GRACE_S or not self._num_running()


def _history_record(report: dict[str, Any]) -> dict[str, Any]:
    kept = ("epoch", "step", "total_steps", "first_step", "metrics", "curves", "samples_per_s", "seconds")
    return {
        "report": report["number"],
        "time_ms": int(time.time() * 1000),
        **{name: report[name] for name in (*kept, "data_wait_share", "peak_mem_gib", "num_params", "latency_ms")},
        "weight_norm": report["weight_norm"],
        "system": report["system"],
    }
