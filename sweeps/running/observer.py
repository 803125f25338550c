"""Told by Tune when a trial begins, ends or fails, and when its loop turns: what then becomes of the trial.

Writes into the ledger and puts trials back; trains and places nothing. Imported by run.py only, which says first how
Tune is to behave.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.tune import Callback

from cluster.drain import Notices
from sweeps.record.ledger import Ledger
from sweeps.record.stored import Stored, text_of
from sweeps.running.failures import Failure, classify, may_try_again
from sweeps.running.keeper import RecordKeeper, StaysHere
from sweeps.running.placement import Placement
from sweeps.running.signals import Interruption
from sweeps.running.waiting import Waiting
from sweeps.running.work import Work
from trainable.marks import Marks


class Observer(StaysHere, Callback):  # type: ignore[misc]
    """Told by Tune when a trial ends or fails."""

    def __init__(
        self,
        stored: Stored,
        marks: Marks,
        ledger: Ledger,
        work: Work,
        keeper: RecordKeeper,
        interruption: Interruption,
        retries: int,
        tell: Callable[[int], None],
        placement: Placement,
    ) -> None:
        self._stored = stored
        self._marks = marks
        self._retries = retries
        self._ledger = ledger
        self._work = work
        self._keeper = keeper
        self._interruption = interruption
        self._tell = tell
        self._notices = Notices()
        self._waiting = Waiting(placement.reason)

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._keeper.running = trials
        self._interruption.claim()  # Tune has its own handler of SIGUSR1
        if words := self._waiting.look(trials):
            self._interruption.say(words)
        for node_id in self._notices.new():
            self._marks.leave(node_id)
            self._interruption.say("a node is to leave: its trials save at their current step and go on elsewhere")

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._work.training_since = time.monotonic()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        number = trial.config["number"]
        record = self._ledger.trial(number)
        if record.state == "failed":  # it ended without a word on what it was asked for
            self._end(number, Failure("exception", record.reason or "no message"))
        elif record.state != "running":
            self._end(number, None)
        elif self._interruption.stopping_since is not None:
            self._work.running.discard(number)
        else:  # its node has been given notice: it has saved, and goes on elsewhere
            self._work.put_back(number, alone=False)
            self._tell(number)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        stacks = self._stored.stacks(trial.config["number"], trial.config["attempt"])
        text = text_of(Path(trial.error_file)) if trial.error_file else ""
        self._fail(trial, classify(text or "no message", stacks))

    def _fail(self, trial: Any, failure: Failure) -> None:
        """Write the failure down first, and then see whether the trial is tried again."""
        number = trial.config["number"]
        if failure.kind == "refused":
            self._work.refused = failure
            self._work.running.discard(number)
            if self._interruption.stopping_since is None:
                self._interruption.stop_trials()
            return
        if self._interruption.stopping_since is not None and failure.kind == "infrastructure":
            self._work.running.discard(number)  # ended by us: it did not stop in time
            return
        if failure.kind == "moved":
            self._work.put_back(number, alone=False)
            return
        failures = self._ledger.note_failure(number, failure.kind, failure.line)
        if may_try_again(failures, self._retries):
            self._work.put_back(number, alone=failure.kind == "out of memory")
        else:
            self._ledger.finish(number, "failed", reason=failure.reason)
            self._end(number, failure)
        self._tell(number)

    def _end(self, number: int, failure: Failure | None) -> None:
        self._work.end(number, failure)
        alike = self._work.all_fail_alike()
        if alike is not None and self._interruption.stopping_since is None:
            self._interruption.say(f"the first trials all failed alike ({alike}): the others are not begun")
            self._interruption.stop_trials()
