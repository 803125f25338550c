"""What is to be accepted: which trial of a sweep, whether it may be, and the weights of its best checkpoint.

Reads and writes nothing else, and never the test samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sweeps.answers.judgement import Judge
from sweeps.record.drift import data_key, differences, identity
from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.record.stored import stored_of
from sweeps.record.trial import TERMINAL, TrialRecord
from sweeps.running.account import ENDED_BY
from sweeps.running.failures import storage_problem
from sweeps.running.resume import resume_command
from trainable.config import TrainConfig
from trainable.task import Task, load_task

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainable.task import Splits

Found = TypeVar("Found")


@dataclass(frozen=True)
class Candidate:
    """A trial that may be accepted. ranked_by: (metric, mode) without `val_`, as it is asked of the test samples;
    remarks: what of it is unusual and was allowed, in words."""

    record: TrialRecord
    task_spec: str
    task_settings: Mapping[str, Any]
    task: Task
    config: TrainConfig
    metric: str
    mode: str
    ranked_by: tuple[str, str] | None
    chosen: str
    remarks: tuple[str, ...] = ()
    partial: bool = False
    drift: tuple[str, ...] = ()


@dataclass(frozen=True)
class Weights:
    """The weights to accept, and where they come from, in plain values."""

    tensors: dict[str, Tensor] = field(repr=False)
    source: Mapping[str, Any]


def candidate_of(
    folder: Folder, ledger: Ledger, judge: Judge, *, trial: int | None, partial: bool, allow_drift: bool
) -> Candidate:
    """The winner, or the trial that was asked for. Raises ValueError for a sweep or a trial that is not ready, or
    whose task's code is another than its trials were trained with."""
    sweep = ledger.sweep
    judgement = judge(ledger.trials(), History(folder.history))
    remarks: list[str] = []
    left = [record for record in judgement.trials if record.state not in TERMINAL]
    unfinished = bool(left) and ledger.attribute(ENDED_BY) is None
    if unfinished and not partial:
        raise ValueError(
            f"{folder.name} is not finished: {len(left)} of {len(judgement.trials)} trials are left; "
            f"go on with it ({resume_command(folder, sweep.question)}), or accept what it has so far with --partial, "
            "which is recorded"
        )
    if unfinished:
        remarks.append(f"accepted from an unfinished sweep: {len(left)} of {len(judgement.trials)} trials were left")
    record, chosen = _trial(folder, judgement.ranked, judgement.trials, trial, unfinished)
    try:
        config, settings = sweep.trial_config(record.params)
        task = load_task(sweep.task, settings)
    except ValueError as error:
        raise ValueError(f"{folder.name}: its task cannot be had any more: {error}") from error
    drift = differences(ledger.attribute("identity") or {}, identity(sweep)) if ledger.attribute("identity") else []
    if drift and not allow_drift:
        raise ValueError(
            f"{folder.name}: what its trials were trained with has changed since: {'; '.join(drift)}; bring that back, "
            "train anew, or accept it all the same with --allow-drift, which is recorded"
        )
    if drift:
        remarks.append(f"changed since the sweep: {'; '.join(drift)}")
    metric, mode = sweep.objectives[0]
    if metric.startswith("val_"):
        metric = metric.removeprefix("val_")
    else:
        remarks.append(f"the sweep ranks by {metric}, which no test samples have; the test is about the loss")
        metric, mode = "loss", "min"
    return Candidate(
        record=record,
        task_spec=sweep.task,
        task_settings=settings,
        task=task,
        config=config,
        metric=metric,
        mode=mode,
        ranked_by=sweep.ranked_by,
        chosen=chosen,
        remarks=tuple(remarks),
        partial=unfinished,
        drift=tuple(drift),
    )


def _trial(
    folder: Folder,
    ranked: Sequence[TrialRecord],
    trials: Sequence[TrialRecord],
    number: int | None,
    unfinished: bool,
) -> tuple[TrialRecord, str]:
    if number is None:
        complete = [record for record in ranked if record.state == "complete" or (unfinished and record.reports)]
        if not complete:
            raise ValueError(
                f"{folder.name} has no complete trial, so nothing has won; see python -m sweeps.show {folder.name}"
            )
        return complete[0], "the winner of the sweep"
    found = next((record for record in trials if record.number == number), None)
    if found is None:
        raise ValueError(f"{folder.name} has no trial {number}; it has {len(trials)}, counted from 0")
    if found.state in ("diverged", "failed") or not found.reports:
        raise ValueError(
            f"trial {number} of {folder.name} is {found.state}: there is no model to accept; choose another"
        )
    return found, "asked for"


def check_data(candidate: Candidate, ledger: Ledger, splits: Splits, *, allow_drift: bool) -> tuple[str, list[str]]:
    """The fingerprint of train and val samples, and what has changed of them.

    Other samples are another split, whose test part the model may have been trained on. Raises ValueError for that,
    unless it is allowed.
    """
    found = splits.fingerprint()
    known = (ledger.attribute("data") or {}).get(data_key(candidate.task_settings, candidate.config.data_seed))
    if known is None or known == found:
        return found, []
    words = f"data: {known[:8]} -> {found[:8]}"
    if not allow_drift:
        raise ValueError(
            f"{ledger.sweep.name}: its samples are not those that it was trained on ({words}): the test part of these "
            "may be among them; bring the old ones back, or accept it all the same with --allow-drift, which is "
            "recorded"
        )
    return found, [words]


def of_task(what: str, ask: Callable[[], Found]) -> Found:
    """What a task answers; whatever its code raises instead, in words."""
    try:
        return ask()
    except (ValueError, MemoryError):
        raise
    except Exception as error:
        if storage_problem(error) is not None:
            raise
        raise ValueError(f"the task's {what}() fails: {type(error).__name__}: {error}") from error


def model_of(candidate: Candidate, weights: Weights) -> nn.Module:
    """On the CPU and in eval(). Raises ValueError for weights of another model."""
    from trainable.inference import model_with

    return of_task("model", lambda: model_with(candidate.task, weights.tensors))


def best_weights(folder: Folder, candidate: Candidate) -> Weights:
    """Those of the trial's best checkpoint. Raises ValueError where it is missing or damaged: another one is not what
    won."""
    from trainable import checkpoint
    from trainable.inference import in_order, weights_of

    number = candidate.record.number
    remedy = "--retrain trains this configuration anew; --trial N takes another trial"
    stored = stored_of(folder)
    folders = in_order(stored.checkpoints(candidate.record), "best")
    if not folders:
        raise ValueError(f"trial {number} of {folder.name} has no checkpoint left in {folder.trials}; {remedy}")
    best = folders[0]
    _check_is_best(folder, candidate, best, remedy)
    try:
        saved, manifest = checkpoint.read(stored.with_state(best)), checkpoint.read_manifest(best)
    except checkpoint.CheckpointError as error:
        raise ValueError(f"the best checkpoint of trial {number} cannot be used: {error}; {remedy}") from error
    source = {
        "step": manifest["step"],
        "folder": str(best.relative_to(folder.path)),
        "sha256": manifest["files"][checkpoint.STATE]["sha256"],
        "torch": manifest["versions"]["torch"],
    }
    return Weights(weights_of(saved), source)


def _check_is_best(folder: Folder, candidate: Candidate, found: Path, remedy: str) -> None:
    """Raises ValueError where the checkpoint that the reports say is best is not there, or says nothing any more."""
    from trainable import checkpoint
    from trainable.saving import score_of

    number = candidate.record.number
    scored = [
        (score, report["step"])
        for report in History(folder.history).reports(number)
        if (score := score_of(report["metrics"], candidate.ranked_by)) is not None
    ]
    score = checkpoint.read_manifest(found)["score"]
    # One that was pruned or interrupted may have reported what it never saved.
    if candidate.record.state == "complete" and scored and (score is None or score > min(scored)[0]):
        raise ValueError(
            f"the best checkpoint of trial {number} of {folder.name}, of step {min(scored)[1]}, is missing or damaged "
            f"in {folder.trials}; {remedy}"
        )
