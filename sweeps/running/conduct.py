"""From a sweep's definition to its answer: folder, ledger, Ray, MLflow, live table, result.json.

The one place that holds all of them together; each does its own work. Knows no question: a judge is handed in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rich.console import Console

from cluster.capacity import this_machine
from cluster.connect import connected
from sweeps.answers.judgement import Grow, Judge, Judgement, more_trials
from sweeps.answers.remarks import exit_code, on_checks, on_failures
from sweeps.answers.result import SweepResult
from sweeps.record.drift import drift_tags, environment_tags
from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder, nearest_existing
from sweeps.record.stored import ANSWER, Stored, stored_of
from sweeps.reporting.facts import so_far
from sweeps.reporting.make import Report, try_report
from sweeps.reporting.page import library
from sweeps.running.account import Account
from sweeps.running.budget import NO_BUDGET, Budget, End
from sweeps.running.failures import Refused
from sweeps.running.measuring import measured
from sweeps.running.opening import free_if_refused, open_ledger
from sweeps.running.placement import Placement, Wish, place
from sweeps.running.progress import Progress
from sweeps.running.rays_words import shortened
from sweeps.running.run_ids import RunIds
from sweeps.running.signals import Interruption
from sweeps.sweep import Sweep, check_size
from sweeps.tracking.client import import_client, why_refused
from sweeps.tracking.tracker import Tracker
from trainable.files import write_text

TRACKING_WAIT_S = 30.0  # how long the end of a sweep waits for a tracking server that shows no further trial
DISCARD_WAIT_S = 10.0  # for the runs of a sweep that never began
INTERRUPTED_WAIT_S = 1.0  # and each of its two waits after a signal
MLFLOW_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


@dataclass(frozen=True)
class Outcome:
    """A result, and what the command says and returns beside it."""

    result: SweepResult
    judgement: Judgement
    sweep: Sweep
    folder: Folder
    exit_code: int
    remarks: Sequence[str]
    report: Report | None = None  # None where it could not be made


class Phases:
    """How long each part of a command took, for benchmarks and for whoever wonders."""

    def __init__(self, began: float) -> None:
        self.seconds: dict[str, float] = {}
        self._last = began

    def end(self, name: str) -> None:
        now = time.time()
        self.seconds[name] = round(now - self._last, 3)
        self._last = now


def conduct(
    folder: Folder,
    sweep: Sweep,
    *,
    tracking_uri: str,
    wish: Wish,
    address: str | None,
    database: str | None = None,
    storage: str | None = None,
    judge: Judge,
    console: Console,
    began: float,
    grow: Grow | None = None,
    noted: Mapping[str, Any] | None = None,
    retries: int = 0,
    retry_failed: bool = False,
    drift: Sequence[str] = (),
    budget: Budget = NO_BUDGET,
    exits: bool = True,
) -> Outcome:
    """Run what is not finished of a sweep, and answer. A folder without a ledger is a new sweep.

    grow: asked once all trials have ended, whether there shall be more; noted: for the ledger, beside the definition.
    budget: what may end the sweep before all trials are done. exits: signals end the process, as a command's do.
    database: the PostgreSQL address of a new sweep's ledger; None: a file in the folder.
    storage: the address of a new sweep's own folder in an object store; None: what trials leave is in the folder.
    retries: how often a trial whose own code raises is tried again; retry_failed: also trials that failed before.
    Raises ValueError for what cannot be done, before anything is written; where only a trial's process could see
    it (Refused), what was written of a new sweep is taken away again.
    """
    began_s, phases = time.monotonic(), Phases(began)
    check_size(sweep)
    if address is None:  # what can never be placed here is refused before Ray starts
        place(wish, this_machine(count_gpus=wish.needs_gpus(sweep.train)), sweep.num_planned, sweep.train)
    threading.Thread(target=_import_ahead, args=[bool(sweep.space)], daemon=True).start()
    let_in = ThreadPoolExecutor(max_workers=1).submit(why_refused, tracking_uri)  # while Ray starts
    phases.end("imports_s")
    with contextlib.ExitStack() as stack:
        stack.enter_context(free_if_refused(folder))
        interruption = stack.enter_context(Interruption(lambda text: console.print(text, soft_wrap=True), exits=exits))
        # Ray prints what happens to its workers on stdout, which belongs to the answer.
        stack.enter_context(contextlib.redirect_stdout(shortened(sys.stderr)))
        shared = storage or folder.storage or str(nearest_existing(folder.path))
        capacity = stack.enter_context(connected(address, shared=shared, task=sweep.task))
        interruption.claim()  # Ray has its own handler of SIGTERM
        phases.end("ray_start_s")
        placement = place(wish, capacity, sweep.num_planned, sweep.train)
        if refused := let_in.result():
            raise ValueError(refused)
        if wish.is_auto:  # after whatever may be refused at once
            wish = measured(wish, capacity, sweep, interruption.say)
            placement = place(wish, capacity, sweep.num_planned, sweep.train)
            phases.end("gpu_memory_s")
        folder.path.mkdir(parents=True, exist_ok=True)
        stack.enter_context(folder.owned())
        ledger = open_ledger(folder, sweep, tracking_uri, drift, noted or {}, database, storage)
        stack.callback(ledger.close)
        stored = stored_of(folder)
        stored.begin()
        stored.bring(ledger.trials())
        if retry_failed:
            ledger.retry_failed()
        phases.end("ledger_s")
        account = Account(ledger, budget, began_s, placement.gpus_per_trial)
        outcome = _run(folder, stored, ledger, placement, judge, grow, console, phases, interruption, retries, account)
    phases.end("ray_stop_s")
    write_text(folder.phases, json.dumps(phases.seconds, indent=1))
    unsent = stored.send_answer([folder.path / name for name in ANSWER])
    return dataclasses.replace(outcome, remarks=[*outcome.remarks, unsent]) if unsent else outcome


def _run(
    folder: Folder,
    stored: Stored,
    ledger: Ledger,
    placement: Placement,
    judge: Judge,
    grow: Grow | None,
    console: Console,
    phases: Phases,
    interruption: Interruption,
    retries: int,
    account: Account,
) -> Outcome:
    from sweeps.running.run import Watcher, run_trials  # here: it brings Ray Tune, which is imported meanwhile

    history = History(folder.history, stored.add_report)
    tracker = start_tracker(ledger, folder)
    status, alike = "failed", None

    def answer() -> tuple[SweepResult, Judgement, Report | None, list[str]]:
        phases.end("trials_s")
        wait_s = TRACKING_WAIT_S if interruption.signal is None else INTERRUPTED_WAIT_S
        found = _answer(folder, ledger, history, tracker, judge, status, account.end, wait_s)
        phases.end("answer_s")
        return found

    try:
        with Progress(console, ledger.trials(), ledger.sweep.epochs, history, ledger.sweep.objectives) as progress:
            watchers: list[Watcher] = [tracker, progress, RunIds(ledger, tracker)]

            def more() -> list[int]:
                added = more_trials(judge, grow, ledger, history)
                if added:
                    tracker.redefine(ledger.sweep)
                for record in added:
                    progress.update(record)
                return [record.number for record in added]

            try:
                alike = run_trials(
                    folder,
                    stored,
                    ledger,
                    history,
                    placement,
                    watchers,
                    interruption,
                    retries=retries,
                    account=account,
                    more=more,
                )
            finally:
                given_up = account.close(num_running=0)
            for number in given_up:
                for watcher in watchers:
                    watcher.update(ledger.trial(number))
        states = {record.state for record in ledger.trials()}
        if alike is None and states != {"failed"}:
            left = states & {"running", "waiting"} and account.end is None
            status = "interrupted" if left else "finished"
    except Refused:
        tracker.discard(DISCARD_WAIT_S)
        raise
    except BaseException:
        answer()
        raise
    stored.bring(())
    result, judgement, report, doubts = answer()
    remarks = [f"at most {placement.trials_at_once} trial(s) at once, {placement.reason}"]
    remarks += on_checks(folder)
    remarks += on_failures(ledger.trials(), alike, folder.name)
    remarks += doubts
    code = exit_code(result, interruption.exit_code)
    return Outcome(result, judgement, ledger.sweep, folder, code, remarks, report)


def _answer(
    folder: Folder,
    ledger: Ledger,
    history: History,
    tracker: Tracker,
    judge: Judge,
    status: str,
    end: End | None,
    wait_s: float,
) -> tuple[SweepResult, Judgement, Report | None, list[str]]:
    """Judge, and write it down: at once, and again when MLflow has told the runs' names."""
    result, judgement = _judge(folder, ledger, history, judge, status, end)
    write_text(folder.result, result.to_json())
    report, remark = try_report(folder, ledger, history, judgement, status, result.verdict)
    tracker.flush(wait_s, interrupted=status != "finished" or end is not None, patiently=status == "finished")
    RunIds(ledger, tracker).note()
    result, judgement = _judge(folder, ledger, history, judge, status, end)
    write_text(folder.result, result.to_json())
    ended_by = end.budget if end else {"finished": "trials"}.get(status, "none")
    tags = {"steadysweep.ended_by": ended_by}
    files = [folder.result, *(report.files if report else ())]
    missing = tracker.close(MLFLOW_STATUS[status], files, wait_s, tags, result.verdict)
    tracker.stop()
    return result, judgement, report, [remark for remark in (remark, missing) if remark]


def _judge(
    folder: Folder, ledger: Ledger, history: History, judge: Judge, status: str, end: End | None
) -> tuple[SweepResult, Judgement]:
    judgement = judge(ledger.trials(), history)
    verdict = judgement.verdict
    if status == "interrupted":
        verdict = so_far(verdict, judgement.trials, status)
    if end is not None:
        verdict = f"{verdict} {end.words}"
    result = SweepResult(
        name=ledger.sweep.name,
        status=status,
        task=ledger.sweep.task,
        best=judgement.ranked[0] if judgement.ranked else None,
        verdict=verdict,
        tracking_uri=ledger.attribute("tracking_uri"),
        mlflow_run_id=ledger.attribute("mlflow_run_id"),
        trials=judgement.trials,
        configurations=judgement.configurations,
        ended_by=end.budget if end else None,
        folder=folder.path,
    )
    return result, judgement


def start_tracker(ledger: Ledger, folder: Folder) -> Tracker:
    """A tracker at work on all that the ledger knows: also on what an earlier driver could not send."""
    tracker = Tracker(
        ledger.attribute("tracking_uri"),
        ledger.sweep,
        ledger.attribute("sweep_id"),
        folder,
        tags={**environment_tags(ledger.sweep.question), **drift_tags(ledger.attribute("drift"))},
        parent_run_id=ledger.attribute("mlflow_run_id"),
        run_ids=ledger.mlflow_runs(),
    )
    tracker.start()
    for record in ledger.trials():
        tracker.update(record)
    return tracker


def _import_ahead(is_search: bool) -> None:
    """Import what the end of a sweep needs while Ray starts; each import is cached for whoever comes next."""
    with contextlib.suppress(ImportError):  # whoever needs it will say so
        import_module("ray.tune")
        import_client()
        import_module("matplotlib.backends.backend_agg")
        library()
        if is_search:  # a second, which the end of a scan does not need
            import_module("optuna.importance")
