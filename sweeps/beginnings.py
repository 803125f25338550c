"""How the trials of a space begin: what the next one is to try, from all that the ledger has of those before it.

Between the ledger, which keeps trials, and proposals.py, which knows no ledger. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.trial import FrozenTrial

from sweeps.outcomes import outcome_of, warm_start_of
from sweeps.proposals import Past, Proposer
from sweeps.spaces.grammar import text_of
from sweeps.sweep import Sweep, same_text
from sweeps.writes import Facts


class Beginnings:
    """Remembers what it has read of trials that ended, until one of them runs again."""

    def __init__(self, sweep: Sweep, warm_start: Sequence[Mapping[str, Any]] | None) -> None:
        self._sweep = sweep
        self._proposer = Proposer(sweep, warm_start_of(warm_start, sweep))
        self._ended: dict[int, Past] = {}

    def of_trial(self, number: int, there: Sequence[FrozenTrial]) -> Facts:
        """All that is to be written of trial `number` as it begins. Raises SpaceExhausted."""
        assert number == len(there), "the trials of a space begin in the order of their numbers"
        past = [self._past(trial) for trial in there]
        asked = dict(next(iter(points_left(self._sweep, there)), {})) if self._sweep.points else {}
        found = self._proposer.propose(number, past, asked)
        # What a sampler with a memory needs to get it back after a kill.
        unended = [earlier for earlier, other in enumerate(past) if other.outcome is None]
        noted = {"params": found.params, "asked": asked, "unended": unended, "attempts": 1}
        known = {
            name: (distribution.to_internal_repr(found.known[name]), distribution)
            for name, distribution in found.distributions.items()
        }
        return Facts(params=known, user=noted)

    def _past(self, trial: FrozenTrial) -> Past:
        if trial.number in self._ended:
            return self._ended[trial.number]
        noted, params = trial.user_attrs, params_of(trial)
        unended, outcome = frozenset(noted["unended"]), outcome_of(trial, self._sweep)
        found = Past(params, text_of(params), trial, unended, noted["asked"], outcome)
        if outcome is not None:
            self._ended[trial.number] = found
        return found


def params_of(trial: FrozenTrial) -> dict[str, Any]:
    """As they were proposed, or asked for as a point: with their types, which Optuna's tables do not keep."""
    return dict(trial.user_attrs.get("params", trial.system_attrs.get("fixed_params", {})))


def points_left(sweep: Sweep, there: Sequence[FrozenTrial]) -> list[Mapping[str, Any]]:
    """The points of a space's sweep that no trial has tried yet."""
    tried = [params_of(trial) for trial in there] if sweep.points else []
    return [
        point
        for point in sweep.points
        if not any(same_text({name: p[name] for name in point if name in p}) == same_text(point) for p in tried)
    ]
