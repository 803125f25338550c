"""A question about a task, its answer, and what to do: how the checks speak.

A question whose ground fell away with an earlier one is not asked, and says so. Knows no questions.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Finding:
    """`passed` is None where the question could not be asked."""

    question: str
    passed: bool | None
    answer: str
    advice: str = ""

    def __str__(self) -> str:
        mark = {True: "ok  ", False: "FAIL", None: "?   "}[self.passed]
        lines = [f"{mark}  {self.question}  {self.answer}"]
        if self.advice:
            lines.append(f"      -> {self.advice}")
        return "\n".join(lines)


class Fault(Exception):
    """The answer is no: what was found, and what to do about it."""

    def __init__(self, answer: str, advice: str) -> None:
        super().__init__(answer)
        self.answer, self.advice = answer, advice


class NotAsked(Exception):
    """The question makes no sense here: why."""


@dataclass(frozen=True)
class Question(Generic[Subject]):
    """`ask` gives the answer, or raises Fault. `needs`: the questions that must have passed before."""

    text: str
    ask: Callable[[Subject], str]
    needs: tuple[str, ...] = ()
    advice: str = "read the message above: it comes from the task's own code or from torch under it"


def interview(questions: Iterable[Question[Subject]], subject: Subject) -> list[Finding]:
    """Ask in order. Whatever the task's code raises is the answer to the question that met it."""
    found: list[Finding] = []
    roots: dict[str, str] = {}  # what each question that was not answered with yes goes back to
    for question in questions:
        root = next((roots[need] for need in question.needs if need in roots), None)
        if root is not None:
            roots[question.text] = root
            found.append(Finding(question.text, None, f"could not be asked; first: {root}"))
            continue
        try:
            finding = Finding(question.text, True, question.ask(subject))
        except Fault as fault:
            finding = Finding(question.text, False, fault.answer, fault.advice)
        except NotAsked as reason:
            finding = Finding(question.text, None, str(reason))
        except Exception as error:  # an edge: the task's code is what is being examined
            finding = Finding(question.text, False, raised(error), question.advice)
        found.append(finding)
        if not finding.passed:
            roots[question.text] = question.text
    return found


def raised(error: BaseException) -> str:
    """An exception in one line, with the place in the user's code that led to it."""
    package = Path(__file__).parent
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if not path.is_relative_to(package) and "site-packages" not in path.parts and path.is_file():
            place = f" ({path}:{frame.lineno})"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}{place}"
