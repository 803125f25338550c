"""Pruners by name: Optuna's, made anew for each decision, so that a decision follows from the ledger alone.

Knows how a trial's reports are judged by those of others; not what becomes of the judgement.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, PatientPruner, SuccessiveHalvingPruner
from optuna.trial import FrozenTrial, TrialState

PRUNERS = ("none", "median", "asha", "hyperband")


class _Noting:
    """A storage as a pruner sees it: what it would write is noted, so that it can be written with the decision.

    A pruner that finds its own note of a report, but not the decision on it, would decide otherwise the second time.
    """

    def __init__(self, storage: Any, trials: Sequence[FrozenTrial]) -> None:
        self._storage = storage
        self._trials = trials
        self.noted: dict[str, Any] = {}

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        return [trial for trial in self._trials if states is None or trial.state in states]

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        self.noted[key] = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


@dataclass(frozen=True)
class Rules:
    """pruner: its name; startup: complete trials before median prunes; warmup: the report before which nothing is
    pruned; patience: reports without a new best that a trial is granted first; full_length: reports of a whole trial,
    where known."""

    pruner: str
    startup: int
    warmup: int
    patience: int | None
    full_length: int | None


def decide(
    study: optuna.Study, trials: Sequence[FrozenTrial], trial: FrozenTrial, rules: Rules
) -> tuple[bool, dict[str, Any]]:
    """Whether a trial, of these trials, should stop after its last report; and what is to be noted in it with that."""
    made = _pruner(rules)
    if made is None or (trial.last_step or 0) < rules.warmup:
        return False, {}
    noting = _Noting(study._storage, trials)
    watched = copy.copy(study)
    watched._storage = noting
    prune = made.prune(watched, trial)
    if prune and rules.patience is not None:  # asked second: successive halving counts every trial at its rungs
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            prune = PatientPruner(None, rules.patience).prune(watched, trial)
    return bool(prune), noting.noted


def _pruner(rules: Rules) -> BasePruner | None:
    first, length = max(1, rules.warmup), rules.full_length
    if rules.pruner == "median":
        return MedianPruner(n_startup_trials=rules.startup, n_warmup_steps=rules.warmup)
    if rules.pruner == "asha":
        return SuccessiveHalvingPruner(min_resource=first)
    if rules.pruner == "hyperband" and length is not None and length > first:
        return HyperbandPruner(min_resource=first, max_resource=length)
    return None
