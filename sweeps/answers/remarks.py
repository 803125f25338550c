"""What a command says and returns beside the answer: doubts, failures, its exit code.

Knows nothing of how trials run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from sweeps.answers.result import SweepResult
from sweeps.record.store import Folder
from sweeps.record.trial import TrialRecord
from sweeps.running.failures import Failure


def on_checks(folder: Folder) -> list[str]:
    """What the checks before the first trial doubted, and did not refuse."""
    try:
        findings = json.loads(folder.checks.read_text())
    except (OSError, ValueError):  # a sweep that was interrupted before
        return []
    doubted = [finding for finding in findings if finding["passed"] is False]
    return [f"a doubt: {item['question']} {item['answer']}; {item['advice']}" for item in doubted]


def on_failures(trials: Sequence[TrialRecord], alike: Failure | None, name: str) -> list[str]:
    failed = sum(record.state == "failed" for record in trials)
    if alike is not None:
        return [
            f"the first trials all failed alike ({alike}), so no others were begun; "
            f"once that is mended, go on with --resume {name} --retry-failed"
        ]
    if failed:
        return [f"{failed} failed trial(s) are left out by a resume; include them with --resume {name} --retry-failed"]
    return []


def exit_code(result: SweepResult, interrupted: int | None) -> int:
    """0: answered. 1: a trial failed, or no trial gave an answer. 128 + signal: interrupted."""
    if interrupted is not None:
        return interrupted
    return 0 if result.best is not None and result.num_failed() == 0 else 1
