"""The tags of a trial's run: what a person filters by. Pure functions; knows no MLflow.

What was measured is a metric, what was asked for a param, what became of the trial a tag.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sweeps.answers.diagnosis import diagnose
from sweeps.record.drift import TAG as DRIFT_TAG
from sweeps.record.trial import TERMINAL, TrialRecord
from sweeps.tracking.spelling import renamed, value_text
from trainable.config import TrainConfig

PREFIX = "steadysweep."
LONGEST_REASON = 500


def definition_tags(config: TrainConfig, fingerprint: str) -> dict[str, str]:
    """What is known of a trial before it trains."""
    return {f"{PREFIX}seed": str(config.seed), f"{PREFIX}fingerprint": fingerprint}


def trial_tags(record: TrialRecord, sweep_tags: Mapping[str, str], *, compiled: bool) -> dict[str, str]:
    """What a trial's record says of it now. sweep_tags: those that all runs of the sweep have; compiled: as it was
    asked for (the trial's notes say where it fell back)."""
    wanted = {
        f"{PREFIX}state": record.state,
        f"{PREFIX}attempts": str(record.attempts),
        f"{PREFIX}compile": "on" if compiled else "off",
        **{f"{PREFIX}{name}": value_text(value) for name, value in record.notes.items()},
    }
    if record.state in ("diverged", "pruned"):
        wanted[record.state] = "true"
    if record.state == "running" and DRIFT_TAG in sweep_tags:
        wanted[DRIFT_TAG] = sweep_tags[DRIFT_TAG]
    # While it runs there is none; an old one is taken back.
    wanted[f"{PREFIX}reason"] = _reason(record) if record.state in TERMINAL else "it has not ended"
    if record.weights_sha256:
        wanted[f"{PREFIX}weights_sha256"] = record.weights_sha256
    return wanted


def diagnosis_tags(record: TrialRecord, reports: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What the curves of a trial that has ended say together."""
    if record.state not in TERMINAL:
        return {}
    found = diagnose(reports)
    kind = "unknown" if found is None else found.kind  # too few reports to say
    return {f"{PREFIX}diagnosis": "diverged" if record.state == "diverged" else kind}


def name_tags(names: Any) -> dict[str, str]:
    """A tag with the original of each name that MLflow has under another."""
    return {f"{PREFIX}name.{name}": value_text(original) for name, original in renamed(names).items()}


def _reason(record: TrialRecord) -> str:
    """Why a trial ended, in one line."""
    if record.reason:
        return record.reason.strip().splitlines()[-1][:LONGEST_REASON]
    return record.notes.get("stopped_early") or "trained to its last epoch"
