"""What a sweep asks before its first trial: the seven questions on a few samples, and whether its metric is there.

A no to a decisive one stops the sweep, as it would be the same for all trials; the others are doubts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

import torch

from trainable.checks.findings import Fault, Finding, Question, interview
from trainable.checks.quick import DEVICE, FINITE, FIT, LOADS, QUICK
from trainable.checks.subject import Subject, forward
from trainable.config import TrainConfig, unknown_name
from trainable.data import num_samples_of
from trainable.report import MEASURED
from trainable.task import Splits, Task

MOST_SAMPLES = 8  # of a batch: the questions need no more, and a whole batch may not fit in memory at once
SOUND = "Are all samples finite?"
ENOUGH, METRICS = "Are there enough samples for a batch?", "Does the task report what decides?"
DECISIVE = (LOADS, FIT, DEVICE, FINITE, ENOUGH, METRICS)
MEMORY = re.compile(r"out of memory|OutOfMemory|MemoryError", re.IGNORECASE)  # the loop has its own ways out of that


class Refused(ValueError):
    """The task cannot be trained, whatever the hyperparameters."""


def ask_before(
    task: Task, config: TrainConfig, load: Callable[[], Splits], metrics: Sequence[str] = ()
) -> list[Finding]:
    """The findings. Raises Refused, in one line, where no trial of this task could give an answer.

    load: gives the task's splits; metrics: the names of what the sweep ranks, prunes and limits by.
    """
    small = dataclasses.replace(
        config,
        batch_size=min(config.batch_size, MOST_SAMPLES),
        micro_batch=None,
        eval_batch_size=MOST_SAMPLES,
        num_workers=0,
        compile=False,
    )
    subject = Subject(task, small, load)
    questions = (
        *QUICK,
        Question(SOUND, _sound, (LOADS,)),
        Question(ENOUGH, lambda subject: _enough(subject, config.batch_size), (LOADS,)),
        Question(METRICS, lambda subject: _has(subject, metrics), (FIT, DEVICE)),
    )
    try:
        findings = interview(questions, subject)
    finally:
        subject.close()
    for finding in findings:
        if finding.passed is False and finding.question in DECISIVE and not MEMORY.search(finding.answer):
            raise Refused(f"{finding.question} {finding.answer}; {finding.advice}")
    return findings


def _sound(subject: Subject) -> str:
    """Of samples that are tensors; those of a Dataset would have to be read one by one."""
    for part, examples in (("train", subject.splits.train), ("val", subject.splits.val)):
        for position, tensor in enumerate(examples if isinstance(examples, tuple) else ()):
            if not tensor.is_floating_point():
                continue
            bad = ~torch.isfinite(tensor.reshape(len(tensor), -1)).all(1)
            if bool(bad.any()):
                raise Fault(
                    f"{int(bad.sum())} samples of {part} hold NaN or infinity in part {position} of the batch, "
                    f"the first is number {int(bad.nonzero()[0])}",
                    "drop or fill them in splits(): one such sample is enough to make every trial diverge",
                )
    return "as far as they are tensors"


def _enough(subject: Subject, batch_size: int) -> str:
    num_samples = num_samples_of(subject.splits.train)
    if num_samples < batch_size:
        raise Fault(
            f"the task has {num_samples} training samples, fewer than batch_size={batch_size}",
            f"use --set batch_size={max(1, num_samples // 4)} or more data",
        )
    return f"{num_samples} for batches of {batch_size}"


def _has(subject: Subject, metrics: Sequence[str]) -> str:
    outputs, _ = forward(subject.run, subject.batch)
    own = (f"val_{name}" for name in subject.task.metrics(outputs, subject.batch))
    reported = ["train_loss", "val_loss", *own, *MEASURED]
    for name in metrics:
        if name not in reported:
            raise Fault(unknown_name("metric", name, reported), "name one of these, or have metrics() return it")
    return ", ".join(reported)
