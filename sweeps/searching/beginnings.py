"""How the trials of a space begin: what the next one is to try, from all that the ledger has of those before it.

Between the ledger, which keeps trials, and proposals.py, which knows no ledger. Writes nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeps.record.writes import Facts
from sweeps.searching.outcomes import outcome_of, state_of, warm_start_of
from sweeps.searching.proposals import Outcome, Past, Proposer, SpaceExhausted
from sweeps.searching.samplers import STARTUP
from sweeps.spaces.grammar import text_of
from sweeps.sweep import SEED, Sweep, same_text


class Beginnings:
    """Remembers what it has read of trials that ended, until one of them runs again.

    Where a configuration is repeated over seeds, the sampler knows configurations and no seeds: of each it is told one
    value, the mean. Told every seed, it would take three tries of one place for three places.
    """

    def __init__(self, sweep: Sweep, warm_start: Sequence[Mapping[str, Any]] | None) -> None:
        self._sweep = sweep
        self._proposer = Proposer(sweep, warm_start_of(warm_start, sweep))
        self._ended: dict[int, Past] = {}

    def of_trial(self, number: int, there: Sequence[FrozenTrial]) -> Facts:
        """All that is to be written of trial `number` as it begins. Raises SpaceExhausted."""
        assert number == len(there), "the trials of a space begin in the order of their numbers"
        size = self._sweep.num_seeds
        index, repeat = divmod(number, size)
        if repeat:
            return self._again(there[index * size], repeat)
        past = [self._past(one, there[one * size : (one + 1) * size]) for one in range(index)]
        asked = dict(next(iter(points_left(self._sweep, there)), {})) if self._sweep.points else {}
        found = self._proposer.propose(index, past, asked)
        # What a sampler with a memory needs to get it back after a kill.
        unended = [earlier for earlier, other in enumerate(past) if other.outcome is None]
        params = found.params if size == 1 else {**found.params, SEED: self._sweep.train.seed}
        noted = {"params": params, "asked": asked, "unended": unended, "attempts": 1}
        return Facts(params=_as_stored(found.known, found.distributions), user=noted)

    def _again(self, first: FrozenTrial, repeat: int) -> Facts:
        """The configuration of `first` with another seed; at its end at once, where there is no sense in it."""
        params = {**params_of(first), SEED: self._sweep.train.seed + repeat}
        noted: dict[str, Any] = {"params": params, "asked": {}, "unended": [], "attempts": 0}
        stored = _as_stored(first.params, first.distributions)
        if state_of(first) in ("pruned", "diverged"):
            reason = f"not repeated, as trial {first.number}, its first seed, {_BECAME[state_of(first)]}"
            return Facts(params=stored, user={**noted, "state": "pruned", "reason": reason}, end="PRUNED")
        return Facts(params=stored, user={**noted, "attempts": 1})

    def _past(self, index: int, group: Sequence[FrozenTrial]) -> Past:
        if index in self._ended:
            return self._ended[index]
        first, size = group[0], self._sweep.num_seeds
        params = {name: value for name, value in params_of(first).items() if size == 1 or name != SEED}
        noted, outcome = first.user_attrs, self._outcome(group)
        found = Past(params, text_of(params), first, frozenset(noted["unended"]), noted["asked"], outcome)
        if outcome is not None:
            self._ended[index] = found
        return found

    def _outcome(self, group: Sequence[FrozenTrial]) -> Outcome | None:
        """Of a configuration, once all of its seeds have ended: their mean; one that diverged makes it a bad one."""
        outcomes = [outcome_of(trial, self._sweep) for trial in group]
        known = [outcome for outcome in outcomes if outcome is not None]
        if state_of(group[0]) in ("pruned", "diverged"):
            return outcomes[0]
        if len(known) < self._sweep.num_seeds:
            return None
        order = {"bad": 0, "complete": 1, "pruned": 2, "absent": 3}
        decisive = min(known, key=lambda outcome: order[outcome.kind])
        if decisive.kind != "complete":
            return decisive
        complete = [outcome for outcome in known if outcome.kind == "complete"]
        values = zip(*(outcome.values for outcome in complete), strict=True)
        return Outcome(
            "complete",
            tuple(math.fsum(column) / len(column) for column in values),
            violations={name: max(one.violations[name] for one in complete) for name in complete[0].violations},
        )


_BECAME = {"pruned": "was pruned", "diverged": "diverged"}


def _as_stored(known: Mapping[str, Any], distributions: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    return {
        name: (distribution.to_internal_repr(known[name]), distribution) for name, distribution in distributions.items()
    }


def proposed_ahead(sweep: Sweep, warm_start: Sequence[Mapping[str, Any]] | None, count: int) -> list[dict[str, Any]]:
    """The parameters of the first trials, as far as they follow from the definition alone. Writes nothing.

    count: how many are wanted at most; a sampler that learns proposes fewer without results. Raises ValueError for
    a space that gives a trial what it cannot have.
    """
    optuna.logging.set_verbosity(logging.WARNING)  # it announces every study on stderr
    learns_after = STARTUP.get(sweep.sampler)
    if learns_after is not None:
        blind = max(1, learns_after - len(warm_start or ()), len(sweep.points)) * sweep.num_seeds
        count = min(count, blind)
    begins = Beginnings(sweep, warm_start)
    there: list[FrozenTrial] = []
    for number in range(count):
        try:
            facts = begins.of_trial(number, there)
        except SpaceExhausted:
            break
        distributions = {name: distribution for name, (_, distribution) in facts.params.items()}
        values = {name: distributions[name].to_external_repr(value) for name, (value, _) in facts.params.items()}
        trial = create_trial(
            state=TrialState.RUNNING, params=values, distributions=distributions, user_attrs=dict(facts.user)
        )
        trial.number = number
        there.append(trial)
    return [params_of(trial) for trial in there]


def params_of(trial: FrozenTrial) -> dict[str, Any]:
    """As they were proposed, or asked for as a point: with their types, which Optuna's tables do not keep."""
    return dict(trial.user_attrs.get("params", trial.system_attrs.get("fixed_params", {})))


def points_left(sweep: Sweep, there: Sequence[FrozenTrial]) -> list[Mapping[str, Any]]:
    """The points of a space's sweep that no trial has tried yet."""
    params = [params_of(trial) for trial in there] if sweep.points else []
    # A point may leave some to the sampler: it is compared by what it names, and most name the same.
    tried = {
        names: {same_text({name: found[name] for name in names if name in found}) for found in params}
        for names in {tuple(point) for point in sweep.points}
    }
    return [point for point in sweep.points if same_text(point) not in tried[tuple(point)]]
