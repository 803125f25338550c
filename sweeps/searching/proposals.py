"""What a trial is to try: a function of the sweep's seed, the trial's number and the trials that have ended.

An Optuna study in memory is told what the ledger knows, in the order of the numbers, and is asked there. Writes
nothing: whatever it comes up with is the ledger's to keep. Nothing is ever unpickled from a database.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import InMemoryStorage
from optuna.trial import BaseTrial, FixedTrial, FrozenTrial, TrialState, create_trial

from sweeps.searching.samplers import GRID_LIMIT, WITH_MEMORY, number_from, sampler_for
from sweeps.spaces.draw import draw, encode, inside
from sweeps.spaces.finite import configurations, num_configurations
from sweeps.spaces.function import FunctionSpace, find_function, is_function
from sweeps.spaces.grammar import Entries, parse_space, text_of
from sweeps.sweep import Sweep

DRAWS = 20  # by the sampler, before the rest of a space that can be counted is looked through
RANDOM_DRAWS = 100  # and where it cannot be counted, so many more at random
BAD = 1e300  # for samplers that see ranks only: worse than whatever was measured


class SpaceExhausted(Exception):
    """Every configuration of the space has been a trial already: the sweep has come to its end."""


@dataclass(frozen=True)
class Outcome:
    """How a trial ended, for a sampler. `bad`: diverged or out of memory, a finding about its parameters; `absent`:
    it says nothing about them. reports: values by report; violations: of the sweep's constraints, above 0 is off."""

    kind: Literal["complete", "pruned", "bad", "absent"]
    values: tuple[float, ...] = ()
    reports: Mapping[int, float] = field(default_factory=dict)
    violations: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Past:
    """An earlier trial: its parameters, as the trial and as Optuna knows them, and which trials had not ended when
    it was proposed. asked: what was asked for it as a point. outcome: None while it runs."""

    params: Mapping[str, Any]
    text: str  # of the parameters
    internal: FrozenTrial
    unended: frozenset[int]
    asked: Mapping[str, Any]
    outcome: Outcome | None


@dataclass(frozen=True)
class Proposal:
    """Parameters as the trial gets them; and as Optuna knows them, with their distributions."""

    params: dict[str, Any]
    known: dict[str, Any]
    distributions: dict[str, BaseDistribution]


class Proposer:
    """The study in memory. It remembers what it was told, so that a proposal costs the same at trial 1,000."""

    def __init__(self, sweep: Sweep, observed: Sequence[tuple[Mapping[str, Any], Outcome]] = ()) -> None:
        self._sweep = sweep
        self._space: FunctionSpace | None = None
        self._entries: Entries | None = None
        if is_function(sweep.space):
            self._space = find_function(sweep.space)
        else:
            self._entries = parse_space(sweep.space)
        self._observed = observed
        self._begin()

    def _begin(self) -> None:
        directions = ["minimize" if mode == "min" else "maximize" for _, mode in self._sweep.objectives]
        self._study = optuna.create_study(storage=InMemoryStorage(), directions=directions)
        self._ids: list[int] = []  # of the trials, by number
        self._told: set[int] = set()
        for params, outcome in self._observed:
            internal = self._internal({name: value for name, value in params.items() if name != "seed"})
            if internal is not None:
                self._tell(self._add(internal), outcome, [outcome for _, outcome in self._observed])

    def propose(self, number: int, past: Sequence[Past], asked: Mapping[str, Any]) -> Proposal:
        """The parameters of trial `number`, all of whose predecessors are `past`. asked: those a point fixes.

        Raises SpaceExhausted when there is nothing left that was not a trial already.
        """
        assert len(past) == number, "trials are proposed in the order of their numbers"
        if self._sweep.sampler == "gp":  # it also looks at those that run: they are not shown to it
            self._begin()
        for earlier in range(len(self._ids), number):
            self._remember(earlier, past)
        self._tell_ended(number, past, frozenset())
        return self._ask(number, asked, {other.text for other in past})

    def _remember(self, number: int, past: Sequence[Past]) -> None:
        """Make the study what it was after trial `number` was proposed."""
        trial = past[number]
        if self._sweep.sampler in WITH_MEMORY:
            self._tell_ended(number, past, trial.unended)
            before = {other.text for other in past[:number]}
            try:
                proposal = self._ask(number, trial.asked, before)
            except (SpaceExhausted, ValueError):
                proposal = None
            if proposal is not None and text_of(proposal.params) == trial.text:
                return
            if len(self._ids) > number:  # proposed by another version of the sampler, or from another space
                self._study._storage.set_trial_state_values(self._ids.pop(), TrialState.FAIL)
        hidden = self._sweep.sampler == "gp" and trial.outcome is None
        internal = None if hidden else self._as_it_is_now(trial)
        self._ids.append(self._add(internal))
        if internal is None and not hidden:  # the space is another one now, and it does not lie in it
            self._study._storage.set_trial_state_values(self._ids[-1], TrialState.FAIL)
            self._told.add(number)

    def _as_it_is_now(self, trial: Past) -> FrozenTrial | None:
        """The trial as Optuna knew it, unless the space has changed: then, if it can, as it would be drawn now."""
        if self._space is not None:
            return trial.internal
        now = self._internal(inside(self._entries or {}, trial.params))
        return trial.internal if now is not None and now.distributions == trial.internal.distributions else now

    def _add(self, like: FrozenTrial | None) -> int:
        params, distributions = ({}, {}) if like is None else (like.params, like.distributions)
        self._study.add_trial(create_trial(state=TrialState.RUNNING, params=params, distributions=distributions))
        return int(self._study.get_trials(deepcopy=False)[-1]._trial_id)

    def _ask(self, number: int, asked: Mapping[str, Any], seen: set[str]) -> Proposal:
        """A proposal that was not seen before; the study has it as its trial `number` from now on."""
        if self._sweep.sampler == "grid" and not asked:
            return self._one_left(number, seen, in_order=True)
        refusal: ValueError | None = None
        for attempt in range(DRAWS + RANDOM_DRAWS):
            name = self._sweep.sampler
            if attempt >= DRAWS or name == "grid":
                if self._can_be_listed() and not asked:
                    return self._one_left(number, seen, in_order=False)
                name = "random"
            self._study.sampler = sampler_for(name, self._entries, self._sweep.train.seed, number, attempt)
            if asked:
                self._study.enqueue_trial(self._fixed(asked))
            trial = self._study.ask()
            params = self._draw(trial)
            params |= {name: value for name, value in asked.items() if name not in params}
            frozen = self._study.get_trials(deepcopy=False)[-1]
            if text_of(params) not in seen:
                try:
                    self._sweep.trial_config(params)
                except ValueError as error:  # two values that do not go together
                    refusal = error
                else:
                    self._ids.append(frozen._trial_id)
                    return Proposal(params, dict(frozen.params), dict(frozen.distributions))
            self._study._storage.set_trial_state_values(frozen._trial_id, TrialState.FAIL)
        if refusal is not None:
            raise refusal
        raise SpaceExhausted

    def _draw(self, trial: BaseTrial) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Optuna's, of choices that a function gives it
            if self._space is not None:
                return self._space.draw(trial)
            assert self._entries is not None
            return draw(self._entries, trial)

    def _fixed(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return (
            dict(asked) if self._entries is None else encode(self._entries, inside(self._entries, asked), partial=True)
        )

    def _internal(self, params: Mapping[str, Any]) -> FrozenTrial | None:
        """These parameters as a trial of the study would have had them; None where they do not lie in the space."""
        try:
            trial = FixedTrial(self._fixed(params))
            if text_of(self._draw(trial)) != text_of(params):
                return None
        except ValueError:
            return None
        return create_trial(state=TrialState.RUNNING, params=trial.params, distributions=trial.distributions)

    def _can_be_listed(self) -> bool:
        count = None if self._entries is None else num_configurations(self._entries)
        return count is not None and count <= GRID_LIMIT

    def _one_left(self, number: int, seen: set[str], *, in_order: bool) -> Proposal:
        """One of the configurations that were no trial yet: the next one, or one that the seed picks."""
        assert self._entries is not None
        left = (
            params
            for params in configurations(self._entries)
            if text_of(params) not in seen and self._is_accepted(params)
        )
        found = list(islice(left, 1)) if in_order else list(left)
        if not found:
            raise SpaceExhausted
        params = found[0 if in_order else number_from(self._sweep.train.seed, number, "left") % len(found)]
        internal = self._internal(params)
        assert internal is not None, "what the space lists lies in it"
        self._ids.append(self._add(internal))
        return Proposal(params, internal.params, internal.distributions)

    def _is_accepted(self, params: Mapping[str, Any]) -> bool:
        try:
            self._sweep.trial_config(params)
        except ValueError:
            return False
        return True

    def _tell_ended(self, number: int, past: Sequence[Past], unended: frozenset[int]) -> None:
        outcomes = [other.outcome for other in past[:number] if other.outcome is not None]
        for earlier, trial in enumerate(past[:number]):
            if earlier not in self._told and earlier not in unended and trial.outcome is not None:
                self._tell(self._ids[earlier], trial.outcome, outcomes)
                self._told.add(earlier)

    def _tell(self, trial_id: int, outcome: Outcome, all_ended: Sequence[Outcome]) -> None:
        storage, sampler = self._study._storage, self._sweep.sampler
        bad = outcome.kind == "bad"
        if outcome.kind == "absent":
            storage.set_trial_state_values(trial_id, TrialState.FAIL)
            return
        limits = {"trained": 1e12, **dict.fromkeys(outcome.violations, 1.0)} if bad else outcome.violations
        if sampler == "gp":  # models every limit, and so wants the same of all trials
            limits = {name: limit for name, limit in limits.items() if name != "trained"}
        for name, limit in limits.items():
            storage.set_trial_system_attr(trial_id, f"constraints:{name}", limit)
        off_limits = any(limit > 0 for limit in limits.values())
        if outcome.kind == "pruned" and sampler not in ("gp", "cmaes", "nsga2"):
            for report, value in outcome.reports.items():
                storage.set_trial_intermediate_value(trial_id, report, value)
            storage.set_trial_state_values(trial_id, TrialState.PRUNED)
            return
        values = outcome.values or ((outcome.reports[max(outcome.reports)],) if outcome.reports and not bad else ())
        if not values or (off_limits and sampler == "cmaes"):
            values = self._bad_values(all_ended)
        storage.set_trial_state_values(trial_id, TrialState.COMPLETE, values)

    def _bad_values(self, all_ended: Sequence[Outcome]) -> tuple[float, ...]:
        """For a trial without a value. Ranks are all that most samplers look at; a Gaussian process needs a value
        that is near the others: the worst of them."""
        found = []
        for column, (_, mode) in enumerate(self._sweep.objectives):
            sign = 1 if mode == "min" else -1
            known = [sign * outcome.values[column] for outcome in all_ended if len(outcome.values) > column]
            worst = max(known, default=0.0) if self._sweep.sampler == "gp" else BAD
            found.append(sign * worst)
        return tuple(found)


def finite_values(values: Sequence[float | None]) -> tuple[float, ...] | None:
    """The values, if all of them are there and finite."""
    if any(value is None or not math.isfinite(value) for value in values):
        return None
    return tuple(float(value) for value in values if value is not None)
