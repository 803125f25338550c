"""The longer questions: does one batch overfit, is the split disjoint, is a resume exact, is the loader slow?

They train a few steps with the real loop and write a checkpoint into a temporary folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainable import checkpoint, loop
from trainable.checks.findings import Fault, NotAsked, Question
from trainable.checks.quick import FINITE, LOADS, MOVE, STILL
from trainable.checks.subject import Subject, advance_to, first_samples
from trainable.data import num_samples_of
from trainable.plain import plain
from trainable.seeding import isolated
from trainable.task import Splits

OVERFIT_STEPS = 20
RESUME_STEPS = 3
METER_STEPS = 10
SLOW_SHARE = 0.5  # of the time spent waiting for data
NUM_COMPARED = 2000  # samples of a Dataset that are loaded to compare their content
LEAK_SHARE = 0.01  # real data holds a few twins; more than these are a mistake in the split


def one_batch_overfits(subject: Subject) -> str:
    samples = _samples_of(subject, subject.config.batch_size)
    # The plain model on one batch, without what slows it down on purpose.
    config = dataclasses.replace(
        subject.config,
        epochs=OVERFIT_STEPS,
        schedule="constant",
        warmup_steps=0,
        ema_decay=None,
        patience=None,
        eval_every=1,
        report_steps=1,
    )
    run = loop.start(subject.task, config, Splits(train=samples, val=samples))
    try:
        losses = []
        while True:
            report = loop.advance(run)
            if report.diverged is not None:
                raise Fault(f"training on one batch diverged: {report.diverged}", "try a smaller lr, or clip_norm")
            losses.append(report.metrics["val_loss"])
            if report.done:
                break
    finally:
        run.close()
    said = f"from {losses[0]:.4g} to {losses[-1]:.4g} in {len(losses)} steps on {num_samples_of(samples)} samples"
    if not losses[-1] < losses[0]:
        raise Fault(
            f"the loss went {said}: it does not fall",
            "check that labels belong to their samples, that the model is large enough and lr neither tiny nor huge",
        )
    return f"loss {said}"


def split_is_disjoint(subject: Subject) -> str:
    splits = subject.splits
    parts = {name: set(indices) for name, indices in splits.indices.items()}
    names = sorted(parts)
    for position, name in enumerate(names):
        if len(parts[name]) < len(splits.indices[name]):
            twice = len(splits.indices[name]) - len(parts[name])
            raise Fault(
                f"{twice} indices stand twice in {name}", "let every sample of the source stand in one part once"
            )
        for other in names[position + 1 :]:
            shared = sorted(parts[name] & parts[other])
            if shared:
                raise Fault(
                    f"{name} and {other} share {len(shared)} samples of the source: {shared[:5]}",
                    "split one permutation of the indices, e.g. with trainable.data.stratified_split",
                )
    by_index = f"indices of {', '.join(names)} are disjoint" if parts else "no indices are recorded"
    train, val = set(contents_of(splits.train)), contents_of(splits.val)
    shared_content = [digest for digest in val if digest in train]
    share = len(shared_content) / max(1, len(val))
    looked = f"{len(train)} different train and {len(val)} val samples compared by content"
    if share > LEAK_SHARE:
        raise Fault(
            f"{len(shared_content)} of {len(val)} val samples stand in train too, by content ({by_index})",
            "remove duplicates before splitting, or keep groups (patients, documents, augmentations) in one part",
        )
    twins = f", {len(shared_content)} twins" if shared_content else ", none in both"
    return f"{by_index}; {looked}{twins}"


def resume_is_exact(subject: Subject) -> str:
    run = loop.start(subject.task, subject.config, subject.splits)
    try:
        stop = min(RESUME_STEPS, run.total_steps - 1)
        if stop < 1:
            raise NotAsked("the whole run is one step; ask again with more epochs or a smaller batch_size")
        advance_to(run, stop)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint.write(Path(folder) / "resume", run.state.save(), step=stop, config=run.config.to_dict())
            saved = checkpoint.read(Path(folder) / "resume")
        advance_to(run, stop + 1)
        unbroken = plain(run.state.save(), torch.clone)
    finally:
        run.close()
    again = loop.start(subject.task, subject.config, subject.splits)
    try:
        again.load(saved)
        advance_to(again, stop + 1)
        resumed = plain(again.state.save(), torch.clone)
    finally:
        again.close()
    for state in (unbroken, resumed):
        state["progress"].pop("seconds", None)  # the clock's, not the run's
    differs = first_difference(unbroken, resumed)
    if differs is not None:
        raise Fault(
            f"one step after a resume {differs} differs from the unbroken run's",
            "keep what changes during training in parameters and buffers; draw random numbers from torch's generators "
            "or the one given to augment(); set deterministic=true",
        )
    return f"a checkpoint after {stop} steps, loaded: the next step is equal to the bit"


def loader_keeps_up(subject: Subject) -> str:
    config = dataclasses.replace(
        subject.config, epochs=2 * METER_STEPS, report_steps=METER_STEPS, eval_every=10**9, patience=None
    )
    run = loop.start(subject.task, config, subject.splits)
    try:
        loop.advance(run)  # starts workers and warms up
        report = loop.advance(run)
    finally:
        run.close()
    share = report.data_wait_share
    said = f"{share:.0%} of the time is spent waiting for data, {report.samples_per_s:,.0f} samples/s"
    if share > SLOW_SHARE:
        raise Fault(
            said,
            "give splits() as tensors if they fit (resident_gib), raise num_workers, move work out of __getitem__ or "
            "into augment(), which runs on the device",
        )
    return said


KEEPS_UP = "Does the loader keep up?"

FULL: tuple[Question[Subject], ...] = (
    Question("Does one batch overfit?", one_batch_overfits, (MOVE, STILL)),
    Question("Is the split disjoint?", split_is_disjoint, (LOADS,)),
    Question("Does a resume give the same next step?", resume_is_exact, (MOVE,)),
    Question(KEEPS_UP, loader_keeps_up, (FINITE,)),
)


def first_difference(one: Any, other: Any, name: str = "state") -> str | None:
    """The name of the first place where two states differ, NaN being equal to NaN; None where they are equal."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same = one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
        return None if same else name
    if isinstance(one, dict) and isinstance(other, dict) and list(one) == list(other):
        pairs = [(f"{name}[{key!r}]", one[key], other[key]) for key in one]
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        pairs = [(f"{name}[{index}]", *pair) for index, pair in enumerate(zip(one, other, strict=True))]
    else:
        same = type(one) is type(other) and (one == other or (one != one and other != other))
        return None if same else name
    return next((found for place, a, b in pairs if (found := first_difference(a, b, place)) is not None), None)


def _samples_of(subject: Subject, num_samples: int) -> Any:
    examples = subject.splits.train
    if isinstance(examples, tuple):
        return first_samples(examples, num_samples)
    return torch.utils.data.Subset(examples, range(min(num_samples, num_samples_of(examples))))


def contents_of(examples: Any) -> list[str]:
    """A digest of what each sample shows the model (its first tensor); of a Dataset, of the first few thousand."""
    if isinstance(examples, tuple):
        rows = examples[0].detach().cpu().contiguous()
        return [_digest(row) for row in rows]
    digests = []
    for index in range(min(NUM_COMPARED, len(examples))):
        with isolated(0):  # random transforms draw alike, so that equal sources stay equal
            digests.append(_digest(examples[index][0]))
    return digests


def _digest(tensor: Tensor) -> str:
    array = torch.as_tensor(tensor).detach().cpu().contiguous()
    return hashlib.sha256(f"{array.dtype}{tuple(array.shape)}".encode() + array.numpy().tobytes()).hexdigest()
