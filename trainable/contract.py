"""TaskContract: the laws that the loop, a sweep and a resume rely on, as tests that a task's own test inherits.

    class TestMine(TaskContract):
        task = Mine()

Runs under pytest, on the CPU. Knows no built-in task.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trainable.checks import all_checks
from trainable.checks.full import KEEPS_UP, LEAK_SHARE, contents_of
from trainable.checks.subject import first_samples
from trainable.config import TrainConfig, unknown_name
from trainable.data import num_samples_of
from trainable.plain import plain
from trainable.seeding import global_state, isolated, seed_everything
from trainable.settings import TASK_PREFIX
from trainable.task import Task, load_task

CPU = torch.device("cpu")
TOLERANCE = 1e-3  # relative, of sums of 32 bit numbers
NUM_COMPARED = 16  # samples of two splits
NUM_TWINS = 3  # samples of real data that are equal by chance, however small the part


class TaskContract:
    """Inherit, and set `task`. `config`: knobs of TrainConfig that the task needs to learn, such as a smaller lr."""

    task: ClassVar[Task]
    config: ClassVar[Mapping[str, Any]] = {}
    seed: ClassVar[int] = 0
    num_samples: ClassVar[int] = 8  # of the batches that sums are compared on

    def test_the_same_seed_gives_the_same_split(self) -> None:
        first, second = (replace(self.task).splits(self.seed) for _ in range(2))  # type: ignore[type-var]
        assert first.fingerprint() == second.fingerprint(), "splits(seed) differs between two calls with one seed"
        for one, other in ((first.train, second.train), (first.val, second.val)):
            assert num_samples_of(one) == num_samples_of(other), "the parts differ in size between two calls"
            with isolated(0):
                samples = first_samples(one, NUM_COMPARED)
            with isolated(0):
                again = first_samples(other, NUM_COMPARED)
            assert _equal(samples, again), "the samples differ between two calls of splits with one seed"

    def test_the_parts_are_disjoint(self) -> None:
        splits = self.task.splits(self.seed)
        train, val = (set(splits.indices.get(name, ())) for name in ("train", "val"))
        assert not train & val, f"train and val share samples of the source: {sorted(train & val)[:5]}"
        try:
            # The one place beside acceptance that opens the test samples: to see that nobody trains on them.
            test = self.task.test(self.seed)
        except NotImplementedError:
            return
        held = contents_of(test)
        assert held, "the test part is empty; leave test() out where there is none"
        for name, part in (("train", splits.train), ("val", splits.val)):
            seen = set(contents_of(part))
            shared = sum(digest in seen for digest in held)
            assert shared <= max(NUM_TWINS, LEAK_SHARE * len(held)), (
                f"{shared} of {len(held)} test samples stand in {name} too"
            )

    def test_the_loss_is_a_sum(self) -> None:
        batch = self._batch()
        once, twice = (float(self._loss(part)) for part in (batch, _doubled(batch)))
        assert math.isfinite(once), f"the loss is {once}"
        assert math.isclose(twice, 2 * once, rel_tol=TOLERANCE), (
            f"a batch has the loss {once:.5g}, the same batch twice over {twice:.5g}: return the sum (reduction='sum')"
        )

    def test_the_weight_is_positive_and_adds_up(self) -> None:
        batch = self._batch()
        once, twice = (float(self.task.weight(part)) for part in (batch, _doubled(batch)))
        assert once > 0, f"weight() is {once}: return what the loss is summed over"
        assert math.isclose(twice, 2 * once), f"a batch weighs {once:g}, the same batch twice over {twice:g}"

    def test_metrics_are_sums(self) -> None:
        batch = self._batch()
        once, twice = (self._metrics(part) for part in (batch, _doubled(batch)))
        assert set(once) == set(twice), "which metrics there are depends on the batch"
        assert "loss" not in once, "val_loss is made from loss(); call the metric another name"
        for name, value in once.items():
            number = torch.as_tensor(value)
            assert number.numel() == 1, f"metric {name!r} is no single number but {tuple(number.shape)}"
            assert math.isclose(float(twice[name]), 2 * float(number), rel_tol=TOLERANCE, abs_tol=1e-6), (
                f"metric {name!r} is {float(number):.5g} for a batch, {float(twice[name]):.5g} for it twice over: "
                "return the sum; evaluation divides it by the weight"
            )

    def test_answers_are_one_for_each_sample(self) -> None:
        batch = self._batch()
        with torch.no_grad():
            found = self.task.answers(self.task.predict(self._model(), batch), batch)
        if found is None:
            return
        said, true = found
        assert said.shape == true.shape == (len(batch[0]),), (
            f"answers() gives {tuple(said.shape)} and {tuple(true.shape)}: return one number for each of "
            f"{len(batch[0])} samples, or None"
        )
        assert said.is_floating_point() == true.is_floating_point(), "answers() mixes classes and quantities"

    def test_the_model_is_a_function_of_the_global_seed(self) -> None:
        first, second = (self._model().state_dict() for _ in range(2))
        assert list(first) == list(second), "the model has other parameters the second time"
        for name, tensor in first.items():
            assert torch.equal(tensor, second[name]), f"{name} differs though the seed is the same"

    def test_augment_draws_from_its_generator_only(self) -> None:
        batch = self._batch()
        untouched = copy.deepcopy(batch)
        with isolated(0):
            before = plain(global_state(CPU), torch.clone)
            changed = self.task.augment(batch, torch.Generator().manual_seed(1))
            after = plain(global_state(CPU), torch.clone)
        assert _equal(before, after), "augment() draws from a global generator; draw from the one it is given"
        assert _equal(batch, untouched), "augment() changes the batch in place: the samples on the device are views"
        again = self.task.augment(batch, torch.Generator().manual_seed(1))
        assert _equal(changed, again), "augment() differs though its generator is seeded alike"
        assert len(changed[0]) == len(batch[0]), "augment() changes the number of samples"

    def test_settings_come_back_through_load_task(self) -> None:
        kind = type(self.task)
        settings = json.loads(json.dumps(self.task.settings()))
        found = load_task(f"{kind.__module__}:{kind.__qualname__}", settings)
        assert found == self.task, f"the settings {settings} make another task: {found}"
        assert hash(found) == hash(self.task)

    def test_the_space_names_what_there_is(self) -> None:
        known = TrainConfig.names() + [f"{TASK_PREFIX}{name}" for name in self.task.settings()]
        for name, spec in self.task.space().items():
            assert name in known, unknown_name("name in space()", name, known)
            for value in _extremes(spec):
                if name.startswith(TASK_PREFIX):
                    replace(self.task, **{name.removeprefix(TASK_PREFIX): value})  # type: ignore[type-var]
                else:
                    TrainConfig.from_dict({name: value})

    def test_a_released_model_can_be_watched(self) -> None:
        """Plain values are all that new samples need, and every column has a row for each sample."""
        preparing = self.task.preparing(self.seed)
        try:
            kept = json.loads(json.dumps(preparing, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise AssertionError(f"preparing() is kept as JSON, and holds what JSON has not: {error}") from error
        assert self.task.preparing(self.seed) == preparing, "preparing(seed) differs between two calls with one seed"
        batch = self._batch()
        untouched = copy.deepcopy(batch)
        columns = self.task.features(batch, kept)
        assert _equal(batch, untouched), "features() changes the batch in place"
        assert columns, "features() gives no column that drift could be looked for in"
        for name, values in columns.items():
            whole = not (values.is_floating_point() or values.is_complex())
            assert values.ndim == 1 or (whole and values.ndim == 2), (
                f"features() gives {name!r} with the shape {tuple(values.shape)} and type {values.dtype}; give (N,) "
                "floats, or (N,) or (N, T) integers"
            )
            assert len(values) == len(batch[0]), f"features() gives {len(values)} of {len(batch[0])} rows of {name!r}"
        names = self.task.code_names(kept)
        assert set(names) <= set(columns), "code_names() names columns that features() does not give"

    def test_the_checks_say_yes(self) -> None:
        """Among them: one batch is learned, the loss is that of its halves, evaluation is still, a resume is exact."""
        config = TrainConfig.from_dict({"device": "cpu", "threads": 1, "epochs": 2, "seed": self.seed, **self.config})
        findings = all_checks(self.task, config)
        # How fast the data come depends on the machine, not on the task alone.
        wrong = [str(finding) for finding in findings if finding.passed is False and finding.question != KEEPS_UP]
        assert not wrong, "\n".join(wrong)

    def _batch(self) -> tuple[Tensor, ...]:
        with isolated(0):
            return tuple(first_samples(self.task.splits(self.seed).train, self.num_samples))

    def _model(self) -> nn.Module:
        with isolated(self.seed):
            seed_everything(self.seed)
            return self.task.model().eval()

    def _loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        with torch.no_grad():
            return self.task.loss(self.task.predict(self._model(), batch), batch)

    def _metrics(self, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        with torch.no_grad():
            return self.task.metrics(self.task.predict(self._model(), batch), batch)


def _doubled(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.cat([part, part]) for part in batch)


def _equal(one: Any, other: Any) -> bool:
    """Equal to the bit, whatever tensors are nested in."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def _extremes(spec: Any) -> Iterator[Any]:
    """The values at the ends of a range, all values of a choice."""
    for kind, values in spec.items() if isinstance(spec, Mapping) else ():
        assert kind in ("float", "log", "int", "choice"), f"{spec} is none of float, log, int and choice"
        yield from map(float, values) if kind in ("float", "log") else values
