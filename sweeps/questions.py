"""The questions that a sweep can ask, by their names, and how each judges the trials of a sweep that is there.

For the commands that come after a sweep.
"""

from __future__ import annotations

from sweeps.answers.judgement import Judge
from sweeps.command import Question
from sweeps.lr_scan import LR_SCAN
from sweeps.record.ledger import Ledger
from sweeps.search import SEARCH

QUESTIONS: dict[str, Question] = {question.name: question for question in (LR_SCAN, SEARCH)}


def judge_of(ledger: Ledger) -> Judge:
    """As the sweep's own question judges it. Raises ValueError for a question of another version."""
    sweep = ledger.sweep
    question = QUESTIONS.get(sweep.question)
    if question is None:
        raise ValueError(f"{sweep.name}: it asks {sweep.question!r}, which this version does not know")
    # Sweeps of older versions noted nothing beside their definition.
    return question.judge(sweep, ledger.attribute(question.name) or {"asked": [], "extend_edges": False})[0]
