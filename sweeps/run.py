"""Sweep -> Ray Tune -> what the ledger then says: thin adapters by which Tune asks the ledger what to do.

Tune executes; it decides nothing and its own records are never read. Knows no MLflow and no torch.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

# Tune reads these while it runs; the workers inherit them.
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # no CSV, JSON, TensorBoard beside MLflow
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # signals are ours: they checkpoint first
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "1000000")  # its snapshots are never read
os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")  # a failure stands in the answer and in MLflow
os.environ.setdefault("TUNE_FORCE_TRIAL_CLEANUP_S", "1")  # a step that hangs does not keep the driver
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # a relative path in a task means what it says

from ray import tune
from ray.tune import Callback, Stopper
from ray.tune.search import Searcher

from sweeps.history import History
from sweeps.ledger import Ledger, TrialRecord
from sweeps.placement import Placement
from sweeps.signals import Interruption
from sweeps.store import Folder, attempt_folder
from trainable.crashpoint import crash_point
from trainable.trial import Trial

MAX_LOSSES = 3  # how often a trial's worker may die before the trial counts as failed
LOST_WORKER = re.compile(
    r"The actor died unexpectedly|actor is (temporarily )?unavailable|node .{0,80}died|worker died|memory monitor|"
    r"ActorDiedError|NodeDiedError|WorkerCrashedError",
    re.IGNORECASE,
)
PROCESS_COSTS_S = 5.0  # of CPU time, to start a process that can train
GRACE_S = 5.0  # how long running trials have, after a signal, to save at their current step


class Watcher(Protocol):
    """Whoever is told how trials stand: MLflow, the live table. Must not block and not raise."""

    def update(self, record: TrialRecord) -> None: ...


def run_trials(
    folder: Folder,
    ledger: Ledger,
    history: History,
    placement: Placement,
    watchers: list[Watcher],
    interruption: Interruption,
) -> None:
    """Run all trials of the ledger that are not finished. Returns when they are, or after an interruption.

    The caller has connected to Ray. A trial that fails is a record in the ledger, not an exception.
    """
    trials = ledger.trials()
    # Interrupted ones first: theirs is the work that is already paid for.
    waiting = [record.number for state in ("running", "waiting") for record in trials if record.state == state]
    if not waiting:
        return
    interruption.trials_run(folder.stop_file)

    def tell(number: int) -> None:
        record = ledger.trial(number)
        for watcher in watchers:
            watcher.update(record)

    work = _Work(waiting, alone=placement.first_alone)
    keeper = _RecordKeeper(ledger, history, interruption, tell)
    tuner = tune.Tuner(
        tune.with_resources(Trial, {"cpu": placement.cpus_per_trial, "gpu": placement.gpus_per_trial}),
        tune_config=tune.TuneConfig(
            search_alg=_Asker(folder, ledger, work, interruption, tell),
            num_samples=-1,  # until the asker says that there is no more
            max_concurrent_trials=placement.trials_at_once,
            reuse_actors=True,
            trial_dirname_creator=_folder_of,
        ),
        run_config=tune.RunConfig(
            name=folder.trials.name,
            storage_path=str(folder.path),
            stop=keeper,
            callbacks=[_Observer(ledger, work, keeper, interruption, tell)],
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # the trial asks for each itself
            verbose=0,
        ),
    )
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # failures are told by the ledger, in words
    tuner.fit()


def _folder_of(trial: Any) -> str:
    return attempt_folder(trial.config["number"], trial.config["attempt"])


@dataclass
class _Work:
    """The numbers of the trials to run, and of those that run."""

    waiting: list[int]
    alone: bool = False  # one trial at a time, until one has shown how long it takes
    running: set[int] = field(default_factory=set)
    training_since: float | None = None
    losses: dict[int, int] = field(default_factory=dict)  # how often a trial's worker or node was lost

    def hold_back(self) -> bool:
        """Whether the next trial waits for the one that runs: a second process would cost more than it saves."""
        if self.alone and self.training_since is not None:
            taken = time.monotonic() - self.training_since
            # The trial under way counts as one that takes at least as long as it has taken.
            self.alone = taken * (len(self.waiting) + 1) < PROCESS_COSTS_S
        return self.alone and bool(self.running)

    def lost(self, number: int) -> bool:
        """A trial's worker died under it: put it back, unless that happens again and again."""
        self.losses[number] = self.losses.get(number, 0) + 1
        if self.losses[number] > MAX_LOSSES:
            return False
        self.waiting.insert(0, number)
        return True


class _StaysHere:
    """Tune copies and pickles what it is given, for a restore that is never done; this has no second copy."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Asker(_StaysHere, Searcher):  # type: ignore[misc]
    """Tune asks for the next trial: it is the next unfinished one of the ledger."""

    def __init__(
        self, folder: Folder, ledger: Ledger, work: _Work, interruption: Interruption, tell: Callable[[int], None]
    ) -> None:
        super().__init__(metric="training_iteration", mode="max")  # Tune wants some; the ledger has its own
        self._folder = folder
        self._ledger = ledger
        self._work = work
        self._interruption = interruption
        self._tell = tell

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._interruption.signal is not None or self._work.hold_back():
            return None
        if not self._work.waiting:
            # A trial that still runs may lose its worker and be run again.
            return None if self._work.running else str(Searcher.FINISHED)
        number = self._work.waiting.pop(0)
        self._work.running.add(number)
        record = self._ledger.begin(number)
        config, settings = self._ledger.sweep.trial_config(record.params)
        self._tell(number)
        return {
            "number": number,
            "attempt": record.attempts,
            "task": self._ledger.sweep.task,
            "task_settings": settings,
            "train": config.to_dict(),
            "checkpoints": self._folder.checkpoints(number),
            "stop_file": str(self._folder.stop_file),
        }

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        pass  # the record keeper has seen it

    def save(self, checkpoint_path: str) -> None:
        pass  # nothing of Tune's is ever restored

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("a sweep goes on from its ledger")


class _RecordKeeper(_StaysHere, Stopper):  # type: ignore[misc]
    """Sees every result first, writes it down, and then says whether the trial goes on.

    A Stopper and not a scheduler, because Tune shows a trial's last result to no scheduler.
    """

    def __init__(
        self, ledger: Ledger, history: History, interruption: Interruption, tell: Callable[[int], None]
    ) -> None:
        self.running: list[Any] = []
        self._ledger = ledger
        self._history = history
        self._interruption = interruption
        self._tell = tell

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        number, report = result["number"], json.loads(result["report"])
        if report is None:  # stopped at a step in the middle of an interval; its checkpoint follows
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
        return stop or self._interruption.signal is not None

    def stop_all(self) -> bool:
        if self._interruption.signal is None:
            return False
        waited = time.monotonic() - self._interruption.at
        return waited > GRACE_S or not any(trial.status == "RUNNING" for trial in self.running)


class _Observer(_StaysHere, Callback):  # type: ignore[misc]
    """Told by Tune when a trial ends or fails."""

    def __init__(
        self,
        ledger: Ledger,
        work: _Work,
        keeper: _RecordKeeper,
        interruption: Interruption,
        tell: Callable[[int], None],
    ) -> None:
        self._ledger = ledger
        self._work = work
        self._keeper = keeper
        self._interruption = interruption
        self._tell = tell

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._keeper.running = trials
        self._interruption.claim()  # Tune has its own handler of SIGUSR1

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._work.training_since = time.monotonic()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._work.running.discard(trial.config["number"])

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        number = trial.config["number"]
        self._work.running.discard(number)
        text = Path(trial.error_file).read_text(errors="replace") if trial.error_file else "no message"
        if not (is_lost_worker(text) and self._work.lost(number)):
            self._ledger.finish(number, "failed", reason=text)
        self._tell(number)


def is_lost_worker(text: str) -> bool:
    """Whether an error of Ray's says that a process or node died, and not that the trial's own code raised."""
    return bool(LOST_WORKER.search(text)) and "creation task" not in text


def _history_record(report: dict[str, Any]) -> dict[str, Any]:
    kept = ("epoch", "step", "total_steps", "first_step", "metrics", "curves", "samples_per_s", "seconds")
    return {
        "report": report["number"],
        "time_ms": int(time.time() * 1000),
        **{name: report[name] for name in (*kept, "data_wait_share", "peak_mem_gib")},
    }
