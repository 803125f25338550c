"""What a trial was trained on, as an MLflow dataset: name of the task, fingerprint of the data, sizes of their parts.

Knows no data: all of it stands in the trial's notes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sweeps.tracking.spelling import value_text

LONGEST_DIGEST = 36  # characters that MLflow takes
LONGEST_NAME = 500
PARTS = ("train_samples", "val_samples")


def dataset_of(task: str, settings: Mapping[str, Any], notes: Mapping[str, str]) -> Any:
    """An MLflow DatasetInput, or None while nobody has said what the data are.

    The digest is the beginning of the fingerprint, which is whole in the profile.
    """
    if "data" not in notes:
        return None
    from mlflow.entities import Dataset, DatasetInput, InputTag

    fingerprint = notes["data"]
    profile = {**{part: int(notes[part]) for part in PARTS if part in notes}, "fingerprint": fingerprint}
    return DatasetInput(
        Dataset(
            name=task.rpartition(":")[2][-LONGEST_NAME:] or "task",
            digest=fingerprint[:LONGEST_DIGEST],
            source_type="code",  # MLflow's word for data that a program makes
            source=json.dumps({"tags": {"task": task, "settings": value_text(json.dumps(settings, default=str))}}),
            profile=json.dumps(profile),
        ),
        tags=[InputTag("mlflow.data.context", "train and val")],
    )
