"""SweepResult: the answer of a sweep as values: result.json, a frame of its trials, the winner's model.

Knows what the ledger and the checkpoints hold, and nothing of how it came about. pandas and torch only where they are
asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sweeps.answers.seeds import Configuration, without_seed
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.record.stored import stored_of
from sweeps.record.trial import TrialRecord
from trainable.task import load_task

if TYPE_CHECKING:
    import pandas
    from torch import nn


@dataclass(frozen=True)
class SweepResult:
    """What a sweep came to. `status` is "finished", "interrupted" or "failed"; `best` is the winner (of several
    objectives the knee), None where no trial has an answer; `configurations` stand in the order of the answer, each
    with its value for every seed; `ended_by` is the budget that ended it, None: all trials are done."""

    name: str
    status: str
    task: str
    best: TrialRecord | None
    verdict: str
    tracking_uri: str
    mlflow_run_id: str | None
    trials: Sequence[TrialRecord]
    folder: Path
    configurations: Sequence[Configuration] = ()
    ended_by: str | None = None

    @property
    def best_params(self) -> dict[str, Any]:
        """The winner's parameters, without the seed where there were several. ValueError where nothing has won."""
        if self.best is None:
            raise ValueError(f"{self.name} has no best trial: {self.verdict}")
        several = any(len(one.trials) > 1 for one in self.configurations)
        return without_seed(self.best.params) if several else dict(self.best.params)

    def frame(self) -> pandas.DataFrame:
        """A row a trial, in the order of their numbers (the index): state, epochs, a column for each parameter and
        for each metric of its last report. What a trial lacks is NaN, or None among texts."""
        import pandas

        rows = [
            {"number": trial.number, "state": trial.state, "epochs": trial.epochs, **trial.params, **trial.metrics}
            for trial in self.trials
        ]
        return pandas.DataFrame(rows).set_index("number")

    def figures(self) -> dict[str, Path]:
        """The plots of the sweep, by name."""
        return {path.stem: path for path in sorted(self.folder.glob("*.png"))}

    def load_best(self, which: Literal["best", "last"] = "best", *, trial: int | None = None) -> nn.Module:
        """The winner's model, on the CPU and in eval(), ready for inference: of its checkpoint with the best value
        of what the sweep ranks by (val_loss, where that is no val metric), or of its last one; with the average of
        weights where one was kept. trial: another one's than the winner's.

        Raises ValueError where there is none, or its checkpoints are gone.
        """
        from trainable.inference import load_model

        if trial is None:
            if self.best is None:
                raise ValueError(f"{self.name} has no best trial: {self.verdict}")
            trial = self.best.number
        found = next((record for record in self.trials if record.number == trial), None)
        if found is None:
            raise ValueError(f"{self.name} has no trial {trial}; it has {len(self.trials)}, counted from 0")
        folder = Folder(self.folder)
        ledger = Ledger(folder.ledger)
        try:
            _, settings = ledger.sweep.trial_config(found.params)
            task = load_task(ledger.sweep.task, settings)
        finally:
            ledger.close()
        try:
            stored = stored_of(folder)
            return load_model(task, stored.checkpoints(found), which, stored.with_state)
        except ValueError as error:
            raise ValueError(f"trial {trial} of {self.name}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Strict JSON: a number that is not finite becomes null."""
        return {
            "name": self.name,
            "status": self.status,
            "ended_by": self.ended_by,
            "task": self.task,
            "best": self.best
            and {"number": self.best.number, "params": self.best.params, "metrics": _finite(self.best.metrics)},
            "verdict": self.verdict,
            "tracking_uri": self.tracking_uri,
            "mlflow_run_id": self.mlflow_run_id,
            "trials": [
                {
                    "number": trial.number,
                    "params": trial.params,
                    "state": trial.state,
                    "attempts": trial.attempts,
                    "epochs": trial.epochs,
                    "metrics": _finite(trial.metrics),
                    "mlflow_run_id": trial.mlflow_run_id,
                    "weights_sha256": trial.weights_sha256,
                }
                for trial in self.trials
            ],
            "configurations": [configuration.to_dict() for configuration in self.configurations],
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def num_failed(self) -> int:
        return sum(trial.state == "failed" for trial in self.trials)


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}
