"""`python -m trainable.checks --task T`: the tutorial's seven questions on one batch, and four longer ones.

One line each: the question, the answer, and what to do. The exit code is 1 if an answer is no, 2 for bad input.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from trainable.checks import all_checks
from trainable.config import TrainConfig
from trainable.settings import parse_settings
from trainable.task import absolute_spec, load_task

OK, FAILED, BAD_INPUT = 0, 1, 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings; the exit code."""
    parser = _Parser(
        prog="python -m trainable.checks", description="Is this task ready to be trained?", allow_abbrev=False
    )
    parser.add_argument(
        "--task", required=True, metavar="T", help="a built-in task, package.module:Class or path/file.py:Class"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, e.g. lr=1e-3 or task.width=32"
    )
    try:
        flags = parser.parse_args(arguments)
        given, settings = parse_settings(flags.set)
        task = load_task(absolute_spec(flags.task), settings)
        config = TrainConfig.from_dict(given)
    except ValueError as error:
        print(f"python -m trainable.checks: {error}", file=sys.stderr)
        return BAD_INPUT
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
        findings = all_checks(task, config)
    for finding in findings:
        print(finding)
    num_failed = sum(finding.passed is False for finding in findings)
    num_unasked = sum(finding.passed is None for finding in findings)
    print(f"{len(findings) - num_failed - num_unasked} yes, {num_failed} no, {num_unasked} not asked")
    return FAILED if num_failed else OK


if __name__ == "__main__":
    sys.exit(main())
