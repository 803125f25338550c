"""What a question makes of a sweep's trials: their order, the words, and whether more of them are wanted.

Each question has its own judge, and whoever runs sweeps is handed one. Knows nothing of how trials run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweeps.answers.seeds import Configuration
from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.record.trial import TrialRecord
from sweeps.sweep import Sweep


@dataclass(frozen=True)
class Judgement:
    """What a question makes of the trials: all of them with its measure among their metrics, the order, the words.

    ranked: one trial of each configuration that has a rank, the best first; configurations: all, in their order;
    measure, mode: the metric that it ranks by, and whether "min" or "max" of it is best; "": the sweep's own.
    """

    trials: Sequence[TrialRecord]
    ranked: Sequence[TrialRecord]
    verdict: str
    configurations: Sequence[Configuration] = ()
    measure: str = ""
    mode: str = ""


Judge = Callable[[Sequence[TrialRecord], History], Judgement]
# The same sweep with more trials, or None where it has its answer.
Grow = Callable[[Judgement, Sweep], Sweep | None]


def more_trials(judge: Judge, grow: Grow | None, ledger: Ledger, history: History) -> list[TrialRecord]:
    """Those that are wanted beside the trials that have all ended; they wait in the ledger from now on."""
    trials = ledger.trials()
    grown = grow(judge(trials, history), ledger.sweep) if grow else None
    if grown is None:
        return []
    ledger.extend(grown)
    return ledger.trials()[len(trials) :]
