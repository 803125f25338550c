"""Sweep -> Ray Tune -> what the ledger then says: thin adapters by which Tune asks the ledger what to do.

Tune executes; it decides nothing and its own records are never read. Knows no MLflow and no torch.
"""

from __future__ import annotations

import logging
import os
import tempfile
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol

# Tune reads these while it runs; the workers inherit them.
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # no CSV, JSON, TensorBoard beside MLflow
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # signals are ours: they checkpoint first
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "1000000")  # its snapshots are never read
os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")  # a failure stands in the answer and in MLflow
os.environ.setdefault("TUNE_FORCE_TRIAL_CLEANUP_S", "1")  # a step that hangs does not keep the driver
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # a relative path in a task means what it says

import ray
from ray import tune
from ray.tune.search import Searcher

from cluster.fit import our_versions
from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder, attempt_folder
from sweeps.record.stored import Stored
from sweeps.record.trial import TrialRecord
from sweeps.running.account import Account
from sweeps.running.failures import Failure, Refused
from sweeps.running.keeper import RecordKeeper, StaysHere
from sweeps.running.observer import Observer
from sweeps.running.placement import Placement
from sweeps.running.scheduling import FreshFirst
from sweeps.running.signals import Interruption
from sweeps.running.work import Work
from sweeps.searching.proposals import SpaceExhausted
from trainable.marks import IN_RAY, marks_at
from trainable.objects import Objects
from trainable.trial import Trial


class Watcher(Protocol):
    """Whoever is told how trials stand: MLflow, the live table. Must not block and not raise."""

    def update(self, record: TrialRecord) -> None: ...


def run_trials(
    folder: Folder,
    stored: Stored,
    ledger: Ledger,
    history: History,
    placement: Placement,
    watchers: list[Watcher],
    interruption: Interruption,
    *,
    retries: int,
    account: Account,
    more: Callable[[], list[int]],
) -> Failure | None:
    """Run all trials of the ledger that are not finished. Returns when they are, or after an interruption.

    account: says when the sweep has spent its budget; trials then stop, `account.end` says which it was.
    more: asked once all have ended; the trials whose numbers it gives are run too, by the same actors.
    The caller has connected to Ray. A trial that fails is a record in the ledger, not an exception; it is tried
    again `retries` times where its own code raised. When the first trials all fail in one way, that is returned.
    Raises Refused where the task cannot be trained at all: then no trial has made a step.
    """
    trials = ledger.trials()
    # Interrupted ones first: theirs is the work that is already paid for.
    waiting = [record.number for state in ("running", "waiting") for record in trials if record.state == state]
    waiting = waiting or more()
    if not waiting or account.is_used_up(0):
        return None
    storage = folder.storage
    everywhere: dict[str, Any] = {  # what is the same for all trials
        "folder": storage or str(folder.path),
        "splits_file": folder.name_of(folder.splits),
        "torch": our_versions()["torch"],
        "marks": str(folder.stop_file) if storage is None else f"{IN_RAY}steadysweep/{uuid.uuid4().hex}",
        "workers": placement.workers,
        "resources": placement.resources(),
        "max_seconds": account.budget.max_trial_s,
    }
    marks = marks_at(everywhere["marks"])
    interruption.trials_run(marks)

    def tell(number: int) -> None:
        record = ledger.trial(number)
        for watcher in watchers:
            watcher.update(record)

    ended_well = sum(record.state in ("complete", "pruned", "diverged") for record in trials)
    work = Work(waiting, one_at_a_time=placement.first_alone, ended=[None] * ended_well)
    objects = None if storage is None else Objects(storage)
    keeper = RecordKeeper(ledger, history, interruption, account, tell)
    observer = Observer(stored, marks, ledger, work, keeper, interruption, retries, tell, placement)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # failures are told by the ledger, in words
    _fit(
        trainable=tune.with_resources(Trial, tune.PlacementGroupFactory([placement.resources()] * placement.workers)),
        tune_config=tune.TuneConfig(
            search_alg=_Asker(folder, everywhere, ledger, work, interruption, account, tell, more, placement),
            scheduler=FreshFirst(),
            num_samples=-1,  # until the asker says that there is no more
            max_concurrent_trials=placement.trials_at_once,
            reuse_actors=True,
            trial_dirname_creator=_folder_of,
        ),
        run_config=tune.RunConfig(
            name=folder.trials.name,
            storage_path=objects.path if objects else str(folder.path),
            storage_filesystem=objects.filesystem if objects else None,
            stop=keeper,
            callbacks=[observer],
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # the trial asks for each itself
            verbose=0,
        ),
    )
    marks.clear()  # the nodes' own: they are gone, or will be
    if work.refused is not None:
        raise Refused(f"task {ledger.sweep.task!r} cannot be trained: {work.refused.reason}")
    return work.all_fail_alike()


def _fit(**asked: Any) -> None:
    """Tune in this process, also behind ray://: there it would send itself to the cluster, which has neither our ledger
    nor our signals."""
    if not ray.util.client.ray.is_connected():
        tune.Tuner(**asked).fit()
        return
    from ray.train._internal import storage
    from ray.tune.impl.tuner_internal import TunerInternal

    found = storage._get_ray_train_session_dir
    with tempfile.TemporaryDirectory(prefix="steadysweep-tune-") as place:
        storage._get_ray_train_session_dir = lambda: place  # a node has a folder for it, and this process is none
        try:
            TunerInternal(**asked, _tuner_kwargs={"_remote": False}).fit()
        finally:
            storage._get_ray_train_session_dir = found


def _folder_of(trial: Any) -> str:
    return attempt_folder(trial.config["number"], trial.config["attempt"])


class _Asker(StaysHere, Searcher):  # type: ignore[misc]
    """Tune asks for the next trial: it is the next unfinished one of the ledger."""

    def __init__(
        self,
        folder: Folder,
        everywhere: Mapping[str, Any],
        ledger: Ledger,
        work: Work,
        interruption: Interruption,
        account: Account,
        tell: Callable[[int], None],
        more: Callable[[], list[int]],
        placement: Placement,
    ) -> None:
        super().__init__(metric="training_iteration", mode="max")  # Tune wants some; the ledger has its own
        self._more = more
        self._placement = placement
        self._folder = folder
        self._everywhere = everywhere
        self._ledger = ledger
        self._work = work
        self._interruption = interruption
        self._account = account
        self._tell = tell
        self._asked = False

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._interruption.stopping_since is not None:
            return None
        if self._work.is_done():
            self._work.waiting += self._more()
        if self._account.is_used_up(len(self._work.running)):
            self._interruption.stop_trials()
            return None
        record = self._begin_next()
        if record is None:
            return str(Searcher.FINISHED) if self._work.is_done() else None
        number, checks = record.number, self._checks()
        config, settings = self._ledger.sweep.trial_config(record.params)
        self._tell(number)
        return {
            **self._everywhere,
            "number": number,
            "attempt": record.attempts,
            "task": self._ledger.sweep.task,
            "task_settings": settings,
            "train": config.to_dict(),
            "attempts": self._folder.attempts(number, record.attempts),
            "log": self._folder.name_of(self._folder.log(number)),
            "stacks": self._folder.name_of(self._folder.stacks(number, record.attempts)),
            "gpu_share": self._gpu_share(number),
            "ranked_by": self._ledger.sweep.ranked_by,
            "checks": checks,
        }

    def _gpu_share(self, number: int) -> float:
        """Alone, after it ran out of memory, a trial may have all of a GPU that it otherwise shares."""
        gpus = self._placement.gpus
        return 1.0 if gpus and number in self._work.alone else min(gpus, 1.0)

    def _begin_next(self) -> TrialRecord | None:
        """The next trial, running from now on; None where there is none now, or the space has no more."""
        while (number := self._work.next()) is not None:
            try:
                record = self._ledger.begin(number)
            except SpaceExhausted:
                self._work.running.discard(number)
                self._work.waiting.clear()
                return None
            if record.state == "running":
                return record
            self._work.running.discard(number)  # a repetition of what was pruned: it ended as it began
            self._tell(number)
        return None

    def _checks(self) -> dict[str, Any] | None:
        """What the first trial is to ask before it trains, if nobody has asked before.

        With what all trials share and not with its own parameters, which may be bad ones.
        """
        if self._asked or self._folder.checks.exists():
            return None
        self._asked = True
        sweep, targets = self._ledger.sweep, self._account.budget.metrics
        return {
            "file": self._folder.name_of(self._folder.checks),
            "train": sweep.train.to_dict(),
            "metrics": [*sweep.named_metrics, *targets],
        }

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        pass  # the record keeper has seen it

    def save(self, checkpoint_path: str) -> None:
        pass  # nothing of Tune's is ever restored

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("a sweep goes on from its ledger")
