"""Sweep -> Ray Tune -> what the ledger then says: thin adapters by which Tune asks the ledger what to do.

Tune executes; it decides nothing and its own records are never read. Knows no MLflow and no torch.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

# Tune reads these while it runs; the workers inherit them.
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # no CSV, JSON, TensorBoard beside MLflow
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # signals are ours: they checkpoint first
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "1000000")  # its snapshots are never read
os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")  # a failure stands in the answer and in MLflow
os.environ.setdefault("TUNE_FORCE_TRIAL_CLEANUP_S", "5")  # a step that hangs does not keep the driver
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # a relative path in a task means what it says

from ray import tune
from ray.tune import Callback, Stopper
from ray.tune.search import Searcher

from sweeps.history import History
from sweeps.ledger import Ledger, TrialRecord
from sweeps.placement import Placement
from sweeps.store import Folder, trial_folder
from trainable.trial import Trial

GRACE_S = 8.0  # how long running trials have, after a signal, to save at their current step


class Watcher(Protocol):
    """Whoever is told how trials stand: MLflow, the live table. Must not block and not raise."""

    def update(self, record: TrialRecord) -> None: ...


@dataclass
class Interruption:
    """SIGINT or SIGTERM: the first asks all trials to save and stop, the second leaves at once."""

    stop_file: Path
    signal: int | None = None
    at: float = 0.0
    _before: dict[int, Any] = field(default_factory=dict)

    def __enter__(self) -> Interruption:
        self.stop_file.unlink(missing_ok=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.stop_file.unlink(missing_ok=True)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal, self.at = number, time.monotonic()
        self.stop_file.touch()

    @property
    def exit_code(self) -> int | None:
        """128 plus the signal, as shells have it."""
        return None if self.signal is None else 128 + self.signal


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
    todo = [record.number for record in ledger.trials() if record.state == "running"]
    todo += [record.number for record in ledger.trials() if record.state == "waiting"]
    if not todo:
        return

    def tell(number: int) -> None:
        record = ledger.trial(number)
        for watcher in watchers:
            watcher.update(record)

    keeper = _RecordKeeper(ledger, history, interruption, tell)
    tuner = tune.Tuner(
        tune.with_resources(Trial, {"cpu": placement.cpus_per_trial, "gpu": placement.gpus_per_trial}),
        tune_config=tune.TuneConfig(
            search_alg=_Asker(folder, ledger, todo, tell),
            num_samples=len(todo),
            max_concurrent_trials=placement.trials_at_once,
            reuse_actors=True,
            trial_dirname_creator=_folder_of,
        ),
        run_config=tune.RunConfig(
            name=folder.next_attempt(),
            storage_path=str(folder.attempts),
            stop=keeper,
            callbacks=[_Observer(folder, ledger, history, keeper, tell)],
            verbose=0,
        ),
    )
    tuner.fit()


def _folder_of(trial: Any) -> str:
    return trial_folder(trial.config["number"])


class _StaysHere:
    """Tune copies and pickles what it is given, for a restore that is never done; this has no second copy."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Asker(_StaysHere, Searcher):  # type: ignore[misc]
    """Tune asks for the next trial: it is the next unfinished one of the ledger."""

    def __init__(self, folder: Folder, ledger: Ledger, todo: list[int], tell: Callable[[int], None]) -> None:
        super().__init__(metric="training_iteration", mode="max")  # Tune wants some; the ledger has its own
        self._folder = folder
        self._ledger = ledger
        self._todo = list(todo)
        self._tell = tell

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        if not self._todo:
            return str(Searcher.FINISHED)
        number = self._todo.pop(0)
        record = self._ledger.begin(number)
        config, settings = self._ledger.sweep.trial_config(record.params)
        self._tell(number)
        return {
            "number": number,
            "task": self._ledger.sweep.task,
            "task_settings": settings,
            "train": config.to_dict(),
            "checkpoints": [str(path) for path in self._folder.checkpoints(number)],
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
    """Told by Tune of failures and checkpoints."""

    def __init__(
        self,
        folder: Folder,
        ledger: Ledger,
        history: History,
        keeper: _RecordKeeper,
        tell: Callable[[int], None],
    ) -> None:
        self._folder = folder
        self._ledger = ledger
        self._history = history
        self._keeper = keeper
        self._tell = tell

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._keeper.running = trials

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        number = trial.config["number"]
        text = Path(trial.error_file).read_text(errors="replace") if trial.error_file else "no message"
        self._ledger.finish(number, "failed", reason=text)
        self._tell(number)

    def on_checkpoint(self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any) -> None:
        number = trial.config["number"]
        folders = self._folder.checkpoints(number)
        if len(folders) > NUM_KEPT + 1:
            best = best_report(self._history.reports(number), self._ledger.sweep.metric, self._ledger.sweep.mode)
            _rotate(folders, best["step"] if best else None)


NUM_KEPT = 2  # newest checkpoints of a trial that are kept, beside its best


def best_report(reports: list[dict[str, Any]], metric: str, mode: str) -> dict[str, Any] | None:
    """The report with the best value of `metric`; the first of equals."""
    found = [report for report in reports if report["metrics"].get(metric) is not None]
    sign = 1 if mode == "min" else -1
    return min(found, key=lambda report: sign * report["metrics"][metric], default=None)


def _rotate(folders: list[Path], best_step: int | None) -> None:
    """Delete what is neither among the newest nor the best, once the newest is known to be good."""
    from trainable import checkpoint  # here: few sweeps are long enough to need it, and it imports torch

    newest = checkpoint.newest_valid(folders)
    steps: dict[Path, int] = {}
    for path in folders:
        try:
            steps[path] = int(json.loads((path / checkpoint.MANIFEST).read_text())["step"])
        except (OSError, ValueError, KeyError):
            continue  # not a checkpoint, or not yet
    if newest is None or steps.get(newest) != max(steps.values()):
        return
    kept = sorted(steps, key=lambda path: steps[path])[-NUM_KEPT:]
    for path, step in steps.items():
        if path not in kept and step != best_step:
            checkpoint.delete(path)


def _history_record(report: dict[str, Any]) -> dict[str, Any]:
    kept = ("epoch", "step", "total_steps", "first_step", "metrics", "curves", "samples_per_s", "seconds")
    return {
        "report": report["number"],
        "time_ms": int(time.time() * 1000),
        **{name: report[name] for name in (*kept, "data_wait_share", "peak_mem_gib")},
    }
