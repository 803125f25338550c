"""What is measured of a candidate, on samples that are handed in: outcomes, errors, what its export gives instead.

Opens nothing: whose samples these are is the caller's business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeps.release.candidate import Candidate, of_task
from sweeps.release.packaging import RELATIVE_TOLERANCE, Packed, load_folder, pack, size_bytes
from sweeps.release.pictures import draw_errors, errors_of

if TYPE_CHECKING:
    from torch import nn

    from trainable.release.outcomes import Outcomes
    from trainable.task import Examples, Splits

COMPARED = (1, 2, 64)  # samples of the batches by which an export is compared, as far as there are so many
MOST_COMPARED = 512  # test samples


def export(folder: Path, candidate: Candidate, model: nn.Module, val: Examples, reason: str | None = None) -> Packed:
    """Pack the model up, by what it is called with for val samples. reason: why it shall not be a graph."""
    from trainable.data import num_samples_of
    from trainable.release.export import NotExportable, call_of, first_batch, inputs_of

    batches = [first_batch(val, min(size, num_samples_of(val)), candidate.config) for size in COMPARED]
    call: Any = reason
    try:
        if call is None:
            call = call_of(candidate.task, model, val, candidate.config)
        given = [inputs_of(candidate.task, model, batch) for batch in batches]
    except NotExportable as error:
        call, given = str(error), []  # what it is called with is no tensors, which could be handed on
    return pack(folder, model, call, candidate.task_spec, candidate.task_settings, given)


def apart_on(candidate: Candidate, model: nn.Module, packed: nn.Module, examples: Examples) -> tuple[float, float]:
    """The largest difference of any output on the first samples, through the task, and what it may be."""
    import torch

    from trainable.data import num_samples_of
    from trainable.release.export import difference, first_batch, flat

    batch = first_batch(examples, min(num_samples_of(examples), MOST_COMPARED), candidate.config)
    task = candidate.task
    with torch.inference_mode():
        ours, theirs = task.predict(model, batch), task.predict(packed, batch)
        if flat(ours) is None:  # what they are only the task knows
            ours, theirs = task.loss(ours, batch), task.loss(theirs, batch)
    largest = max([1.0, *(float(part.abs().max()) for part in flat(ours) or () if part.numel())])
    return difference(ours, theirs), RELATIVE_TOLERANCE * largest


def released_model(
    folder: Path, candidate: Candidate, model: nn.Module, packed: Packed, val: Examples, test: Examples
) -> tuple[nn.Module, dict[str, Any]]:
    """What others will load, compared on test samples too, and what is said of it."""
    from trainable.state import weights_sha256

    loaded = load_folder(folder)
    apart, tolerance = apart_on(candidate, model, loaded, test)
    if apart > tolerance and packed.kind == "pt2":
        packed = export(folder, candidate, model, val, f"the graph's outputs differ by {apart:.3g} on the test samples")
        loaded = load_folder(folder)
        apart, tolerance = apart_on(candidate, model, loaded, test)
    if math.isnan(apart) or apart > tolerance:
        raise ValueError(
            f"the exported model's outputs differ by {apart:.3g} on the test samples, more than {tolerance:.3g}; look "
            "for state that is neither a parameter nor a buffer of the model"
        )
    return loaded, {
        "kind": packed.kind,
        "reason": packed.reason,
        "max_difference": max(apart, packed.max_difference),
        "tolerance": tolerance,
        "batch_sizes": list(packed.batch_sizes),
        "weights_sha256": weights_sha256(model),
    }


def errors(outcomes: Outcomes, preparing: Mapping[str, Any], title: str, folder: Path) -> dict[str, Any] | None:
    """Confusions or errors, also as a picture; None where the task has neither. preparing: may name the classes."""
    if outcomes.answers is None or outcomes.truth is None or not len(outcomes.truth):
        return None
    schema = preparing.get("schema")  # of a table
    names = (schema if isinstance(schema, Mapping) else preparing).get("classes")
    known = [str(name) for name in names] if isinstance(names, list) else None
    found = errors_of(outcomes.answers, outcomes.truth, known, classes=not outcomes.quantity)
    draw_errors(found, outcomes.answers, outcomes.truth, title, folder)
    return found


def baseline(
    candidate: Candidate,
    preparing: Mapping[str, Any],
    splits: Splits,
    test: Examples,
    loaded: nn.Module,
    outcomes: Outcomes,
    folder: Path,
) -> tuple[dict[str, Any] | None, list[str]]:
    """What the model is watched against after release, see `trainable.release.baseline`; or why there is none: the test
    samples were opened for more than that."""
    from trainable.release.baseline import baseline_of

    def ask() -> dict[str, Any]:
        return baseline_of(
            task=candidate.task,
            preparing=preparing,
            train_examples=splits.train,
            test_examples=test,
            model=loaded,
            config=candidate.config,
            metrics=outcomes.metrics(),
            size_bytes=size_bytes(folder),
        )

    try:
        return of_task("features", ask), []
    except ValueError as error:
        return None, [f"there is nothing to watch it against after release: {error}"]
