"""Samplers by name: Optuna's, each with what it can and cannot do, and seeded for one proposal.

Knows spaces and their shape; nothing of a ledger or of trials.
"""

from __future__ import annotations

import hashlib
import warnings
from importlib.util import find_spec

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import (
    BaseSampler,
    CmaEsSampler,
    GPSampler,
    NSGAIISampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)

from sweeps.spaces.finite import is_conditional, is_continuous, num_configurations
from sweeps.spaces.grammar import Entries, Range

SAMPLERS = ("tpe", "gp", "cmaes", "random", "qmc", "grid", "nsga2")
WITH_MEMORY = ("cmaes", "nsga2", "qmc")  # what they propose depends on what they proposed before
# How many trials a sampler draws at random before it learns from results (Optuna's defaults); others never learn.
STARTUP = {"tpe": 10, "gp": 10, "cmaes": 1, "nsga2": 50}
NEEDS = {"cmaes": ("cmaes",), "gp": ("scipy", "torch"), "qmc": ("scipy",)}
GRID_LIMIT = 10_000


def check_sampler(name: str, entries: Entries | None, num_objectives: int) -> None:
    """Raises ValueError for a sampler that does not exist or cannot do what is asked. entries: None for a function."""
    if name not in SAMPLERS:
        raise ValueError(f"sampler={name!r} must be one of {', '.join(SAMPLERS)}")
    for package in NEEDS.get(name, ()):
        if find_spec(package) is None:
            raise ValueError(f"sampler={name} needs the package {package}: pip install {package}, or use sampler=tpe")
    if name == "cmaes" and num_objectives > 1:
        raise ValueError("sampler=cmaes knows one objective only; for several use nsga2 or tpe")
    if name == "grid":
        _check_grid(entries)
    if name == "cmaes" and entries is not None and not any(isinstance(entry, Range) for entry in entries.values()):
        raise ValueError(
            "sampler=cmaes moves numbers, and this space has none that every trial has, only choices; use tpe or grid"
        )


def _check_grid(entries: Entries | None) -> None:
    if entries is None:
        raise ValueError(
            "sampler=grid cannot list what a function might draw; write the space as a mapping, or use tpe"
        )
    for name, entry in entries.items():
        if is_continuous(entry):
            raise ValueError(
                f"sampler=grid cannot try all values of {name}: its range has no steps; "
                "give it a step, list its values with choice, or use another sampler"
            )
    count = num_configurations(entries) or 0
    if count > GRID_LIMIT:
        raise ValueError(
            f"sampler=grid would be {count:,} trials, and at most {GRID_LIMIT:,} are allowed; use fewer values, or tpe"
        )


def sampler_for(name: str, entries: Entries | None, seed: int, *where: object) -> BaseSampler:
    """The sampler for one proposal of a sweep with this seed; `where` says which (trial number, draw)."""
    own = number_from(seed, *where)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        match name:
            case "random":
                return RandomSampler(seed=own)
            case "gp":
                return GPSampler(seed=own, warn_independent_sampling=False)
            case "cmaes":
                return CmaEsSampler(seed=own, warn_independent_sampling=False)
            case "nsga2":
                return NSGAIISampler(seed=own)
            case "qmc":  # one sequence for all proposals: scrambled, or it would begin in a corner, whatever the seed
                others = RandomSampler(seed=own)
                return QMCSampler(
                    seed=number_from(seed),
                    scramble=True,
                    independent_sampler=others,
                    warn_independent_sampling=False,
                )
        # Without the liar: trials that run would be taken for bad ones, so a proposal would depend on who runs.
        # In groups, the names of a branch are drawn together too.
        if entries is None or is_conditional(entries):
            return TPESampler(seed=own, constant_liar=False, multivariate=True, group=True)
        return TPESampler(seed=own, constant_liar=False)


def number_from(*parts: object) -> int:
    """A seed that depends on all of these, and differs wherever they do."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big")
