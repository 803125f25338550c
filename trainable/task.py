"""Task and Splits: what a user brings, and finding a task by its name.

Knows nothing of training, and imports no torch: describing a sweep must not pay for it.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import importlib
import importlib.util
import pkgutil
import sys
import types
import typing
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainable.config import unknown_name
from trainable.declared import as_declared

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.utils.data import Dataset

    from trainable.release.fresh import Fresh

    Batch = tuple[Tensor, ...]
    Examples = tuple[Tensor, ...] | Dataset[Any]


@dataclass(frozen=True)
class Splits:
    """The samples a sweep may see. The test part is not here: only `Task.test` opens it.

    `train` and `val` are each a tuple of tensors whose first dimension counts the samples
    (images: (N, C, H, W) float, labels: (N,) long), or a map-style Dataset that gives such a tuple
    for one sample. `indices` records which samples of the source went where; `source` says which
    source that was (a digest of its files), where the samples themselves are not at hand.
    """

    train: Examples
    val: Examples
    indices: Mapping[str, list[int]] = dataclasses.field(default_factory=dict)
    source: str = ""

    def fingerprint(self) -> str:
        """sha256 over the source, the recorded indices and, for tensors, the samples themselves."""
        import torch

        digest = hashlib.sha256(self.source.encode())
        for name in sorted(self.indices):
            digest.update(f"{name}:{self.indices[name]};".encode())
        for examples in (self.train, self.val):
            if isinstance(examples, tuple):
                for tensor in examples:
                    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
                    # As bytes: numpy has no bfloat16. Nothing is copied.
                    plain = tensor.detach().cpu().contiguous().reshape(-1)
                    digest.update(plain.view(torch.uint8).numpy().data)
        return digest.hexdigest()


class Task(abc.ABC):
    """What a user brings: model, data, loss, metrics. Subclasses are frozen dataclasses.

    Their fields can be set (`--set task.width=64`) and searched. Losses and metrics are **sums**
    over the batch; the loop divides them by the weight of everything they were summed over, so
    batch sizes, micro-batches, short last batches and padding never change a result.
    """

    @abc.abstractmethod
    def model(self) -> nn.Module:
        """A new model on the CPU; its initial weights come from torch's global generator."""

    @abc.abstractmethod
    def splits(self, seed: int) -> Splits:
        """The train and val samples; the same seed gives the same split."""

    def test(self, seed: int) -> Examples:
        """The test samples of the same split. Only acceptance calls this, once."""
        raise NotImplementedError(f"{type(self).__name__} has no test part")

    @abc.abstractmethod
    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        """The sum of the losses of the batch: a scalar."""

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """The model's outputs for a batch."""
        return model(batch[0])

    def weight(self, batch: Batch) -> int | Tensor:
        """What the losses of the batch are summed over: samples, or tokens that count."""
        return len(batch[0])

    def metrics(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Sums over the batch that become means in evaluation, such as the number of hits."""
        return {}

    def answers(self, outputs: Any, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """What the outputs say and what is true, for a table of confusions ((N,) long each) or of errors ((N,) float
        each, in the target's own unit); None where the task has neither. Guessed here from `batch[1]`."""
        shape, truth = getattr(outputs, "shape", None), batch[1] if len(batch) > 1 else None
        if shape is None or truth is None or truth.is_complex():
            return None
        if len(shape) == 2 and truth.ndim == 1 and not truth.is_floating_point():
            return outputs.argmax(1), truth
        if truth.is_floating_point() and shape == truth.shape and truth.numel() == len(truth):
            return outputs.flatten(), truth.flatten()
        return None

    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        """A training batch, changed at random on its device; draws only from `generator`."""
        return batch

    def space(self) -> dict[str, Any]:
        """What a search of this task tries unless told otherwise: names are TrainConfig's, or `task.<field>`.

        `{"lr": {"log": [1e-4, 1e-1]}, "task.width": {"choice": [32, 64]}, "task.depth": {"int": [1, 4]},
        "task.dropout": {"float": [0.0, 0.5]}}`.
        """
        return {}

    def frozen(self) -> tuple[str, ...]:
        """Glob patterns of parameters and modules of the model that stay as they are, beside config.freeze."""
        return ()

    def preparing(self, seed: int) -> dict[str, Any]:
        """What new samples need to be treated as in training, of the train part, as plain JSON values: a released model
        is watched where the training data are not. By default type and shape of each part of a batch."""
        from trainable.release.fresh import parts_of

        return {"parts": parts_of(self.splits(seed).train)}

    def fresh(self, path: Path, preparing: Mapping[str, Any]) -> Fresh:
        """Samples that came after release, from a file or folder; by default an .npz file of the parts of a batch.

        Touches nothing of the training data. Raises ValueError in words for what is other than in training.
        """
        from trainable.release.fresh import read_arrays

        return read_arrays(path, preparing["parts"])

    def features(self, batch: Batch, preparing: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """The columns that drift is looked for in, one row a sample: (N,) float, a gap is NaN; or codes of categories,
        (N,) or (N, T) integers, of which one below 0 is nothing. By default by the shape of `batch[0]`."""
        from trainable.release.columns import columns_of

        return columns_of(batch[0])

    def code_names(self, preparing: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
        """What the codes 0, 1, ... of a column of `features` are called, where they have names."""
        return {}

    def settings(self) -> dict[str, Any]:
        """The fields of the task, as plain values."""
        found = {
            item.name: getattr(self, item.name)
            for item in dataclasses.fields(self)  # type: ignore[arg-type]
        }
        return {name: str(value) if isinstance(value, Path) else value for name, value in found.items()}


def known_tasks() -> list[str]:
    """The names of the built-in tasks."""
    package = importlib.import_module("trainable.tasks")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def absolute_spec(spec: str) -> str:
    """`spec` in a form that means the same in any working directory."""
    path, colon, name = spec.rpartition(":")
    return f"{Path(path).resolve()}:{name}" if colon and path.endswith(".py") else spec


def absolute_settings(spec: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` whose relative paths mean the same in any working directory, as plain values."""
    hints = _hints(spec, _find_class(spec))
    return {
        name: str(Path(value).expanduser().absolute())
        if Path in (hints.get(name), *typing.get_args(hints.get(name))) and isinstance(value, str | Path) and value
        else value
        for name, value in settings.items()
    }


def load_task(spec: str, settings: Mapping[str, Any] | None = None) -> Task:
    """The task that `spec` names: a built-in one, `package.module:Class` or `path/file.py:Class`.

    Raises ValueError in words: unknown name, file or class missing, import fails, unknown setting, a setting that
    is missing or of the wrong type.
    """
    task_class = _find_class(spec)
    settings = dict(settings or {})
    fields = dataclasses.fields(task_class)  # type: ignore[arg-type]
    known = [item.name for item in fields]
    for name in settings:
        if name not in known:
            raise ValueError(unknown_name(f"setting of task {spec!r}", f"task.{name}", [f"task.{k}" for k in known]))
    nothing = dataclasses.MISSING
    needed = [item.name for item in fields if item.init and item.default is nothing and item.default_factory is nothing]
    missing = [f"task.{name}" for name in needed if name not in settings]
    if missing:
        example = " ".join(f"--set {name}=..." for name in missing)
        raise ValueError(f"task {spec!r} needs {' and '.join(missing)}: say {example}")
    hints = _hints(spec, task_class)
    try:
        task = task_class(
            **{name: as_declared(f"task.{name}", value, hints.get(name)) for name, value in settings.items()}
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"task {spec!r} refuses {settings}: {error}") from error
    for item in fields:
        if item.compare and not isinstance(value := getattr(task, item.name), Hashable):
            raise ValueError(
                f"task {spec!r}: the field {item.name} is a {type(value).__name__}, which may change: make it a tuple, "
                "or something else that is fixed"
            )
    return task


def _hints(spec: str, task_class: type[Task]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(task_class)
    except NameError as error:
        raise ValueError(
            f"task {spec!r}: the type of a field cannot be read: {error}; import it where the class can see it, "
            "not only for type checkers"
        ) from error


def _find_class(spec: str) -> type[Task]:
    location, colon, name = spec.rpartition(":")
    if not colon:
        if spec not in known_tasks():
            raise ValueError(
                unknown_name("task", spec, known_tasks())
                + "; or bring your own: package.module:Class or path/file.py:Class"
            )
        module = importlib.import_module(f"trainable.tasks.{spec}")
        name = spec.title().replace("_", "")
    elif location.endswith(".py"):
        module = _module_from_file(Path(location), spec)
    else:
        try:
            module = importlib.import_module(location)
        except Exception as error:  # the user's module may raise anything while it is imported
            raise ValueError(f"task {spec!r}: importing {location} failed: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if found is None:
        classes = [key for key, value in vars(module).items() if _is_task(value)]
        raise ValueError(f"task {spec!r}: no {name!r} there; tasks in it: {', '.join(classes) or 'none'}")
    if not _is_task(found):
        raise ValueError(
            f"task {spec!r}: {name} must be a class that derives from trainable.task.Task "
            "and is marked @dataclass(frozen=True)"
        )
    return typing.cast(type[Task], found)


def _is_task(value: Any) -> bool:
    how = getattr(value, "__dataclass_params__", None)
    return isinstance(value, type) and issubclass(value, Task) and how is not None and bool(how.frozen)


def _module_from_file(path: Path, spec: str) -> types.ModuleType:
    if not path.is_file():
        raise ValueError(f"task {spec!r}: there is no file {path.resolve()}")
    # The name holds the path, so that two files of one name are two modules; it stands in
    # sys.modules because dataclasses and pickle look a class's module up there.
    name = f"{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:  # the user's file may raise anything while it is imported
        del sys.modules[name]
        raise ValueError(f"task {spec!r}: importing {path} failed: {type(error).__name__}: {error}") from error
    return module
