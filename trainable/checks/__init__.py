"""Is a task ready to be trained? The tutorial's seven questions on one batch, and four longer ones.

`python -m trainable.checks` asks them all. torch is imported only when they are asked.
"""

from __future__ import annotations

from trainable.checks.findings import Finding
from trainable.config import TrainConfig
from trainable.task import Task


def quick_checks(task: Task, config: TrainConfig) -> list[Finding]:
    """The seven questions of one batch: what a sweep asks before its first trial. Nothing is written."""
    return _ask(task, config, quick=True)


def all_checks(task: Task, config: TrainConfig) -> list[Finding]:
    """The seven questions, then those that train a few steps: overfitting, split, resume, loader."""
    return _ask(task, config, quick=False)


def _ask(task: Task, config: TrainConfig, *, quick: bool) -> list[Finding]:
    # torch is imported only now: whoever only wants the names of the checks does not pay for it
    from trainable.checks.findings import interview
    from trainable.checks.full import FULL
    from trainable.checks.quick import QUICK
    from trainable.checks.subject import Subject

    subject = Subject(task, config)
    try:
        return interview(QUICK if quick else (*QUICK, *FULL), subject)
    finally:
        subject.close()
