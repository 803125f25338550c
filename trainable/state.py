"""TrainState: everything of a run that changes, and the one table of what a checkpoint holds.

`parts()` is walked by saving and by loading alike, so the two cannot drift apart.
Knows nothing of files.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainable import seeding
from trainable.average import Average
from trainable.config import TrainConfig
from trainable.interval import Interval
from trainable.optim import freeze, load_named_state, make_optimizer, named_state
from trainable.precision import Numerics
from trainable.task import Task


class StateMismatch(Exception):
    """A checkpoint of another model or configuration: which names or shapes differ first."""


@dataclass
class Progress:
    """Where the run stands. `step` alone is the position in the data."""

    step: int = 0  # steps taken, of all epochs
    updates: int = 0  # optimizer steps; fewer than `step` where the scaler skipped some
    reports: int = 0
    finished: bool = False  # trained to its end, or stopped early
    seconds: float = 0.0  # spent in training and evaluation, over all attempts


@dataclass
class Best:
    """The best evaluation so far, and for how long there was none better."""

    value: float | None = None
    step: int = 0
    evaluations_since: int = 0
    decays: int = 0  # of the plateau schedule
    evaluations_since_decay: int = 0


@dataclass(frozen=True)
class Part:
    """One row of the table: how a part is read for saving, and how it is put back."""

    save: Callable[[], Any]
    load: Callable[[Any], None]


class TrainState:
    """The mutable side of a run: model, optimizer, scaler, averages, progress, best, generators."""

    def __init__(self, task: Task, config: TrainConfig, numerics: Numerics) -> None:
        self.config = config
        self.device = numerics.device
        seeding.seed_everything(config.seed)
        self.model: nn.Module = task.model().to(self.device)
        self.frozen = freeze(self.model, (*config.freeze, *task.frozen()))
        self.optimizer: Optimizer = make_optimizer(self.model, config)
        self.trained = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self._numerics = numerics
        self.scaler = numerics.scaler(config.loss_scale)
        self.loss_scale = self.scaler.get_scale()  # after the last step, on the host
        # Before compiling: a compiled model cannot be copied.
        self.average = None if config.ema_decay is None else Average(self.model, config.ema_decay)
        self.progress = Progress()
        self.best = Best()
        self.interval = Interval()
        self.micro_batch: int | None = config.micro_batch  # made smaller by a rescue from out-of-memory
        # What is called. The compiled wrapper shares the model's tensors, and the model's own state dict, whose keys
        # stay raw, is what is saved. (Module.compile, which needs no wrapper, compiles nothing up to torch 2.13.)
        self.called: nn.Module = self.model
        self.compiled = config.compile
        if config.compile:
            # One kernel per shape: a kernel for all shapes may round otherwise, and which of the two a step gets
            # would depend on the shapes this process met before, and so on where the run was interrupted.
            self.called = cast(nn.Module, torch.compile(self.model, dynamic=False))

    def zero_grad(self) -> None:
        """What the optimizer's zero_grad(set_to_none=True) does; that one also opens a profiler's bracket."""
        for parameter in self.trained:
            parameter.grad = None

    def drop_compiled(self) -> None:
        """Go on in eager mode."""
        self.compiled = False
        self.called = self.model

    def renew_scaler(self) -> None:
        """The scaler as it stood after the last update: a failed try leaves it in the middle of one."""
        saved = self.scaler.state_dict()
        self.scaler = self._numerics.scaler(self.config.loss_scale)
        self._load_scaler(saved)

    def train_mode(self) -> None:
        """train(), but frozen modules stay in eval(): their buffers must not move."""
        self.model.train()
        for module in self.frozen:
            module.eval()

    @property
    def evaluated(self) -> nn.Module:
        """The model that evaluation looks at: the average of weights, where one is kept."""
        return self.model if self.average is None else self.average.model

    @property
    def called_in_evaluation(self) -> nn.Module:
        """The same, compiled where it is."""
        return self.called if self.average is None else self.average.model

    def parts(self) -> dict[str, Part]:
        """Everything that an exact continuation needs. Values are tensors and plain values only."""
        return {
            "model": Part(self.model.state_dict, lambda saved: load_strictly(self.model, saved)),
            "optimizer": Part(self._save_optimizer, self._load_optimizer),
            "scaler": Part(self.scaler.state_dict, self._load_scaler),
            "average": Part(self._save_average, self._load_average),
            "progress": Part(lambda: asdict(self.progress), lambda saved: _assign(self.progress, saved)),
            "best": Part(lambda: asdict(self.best), lambda saved: _assign(self.best, saved)),
            "interval": Part(lambda: self.interval.save(), lambda saved: self.interval.load(saved, self.device)),
            "micro_batch": Part(lambda: self.micro_batch, lambda saved: setattr(self, "micro_batch", saved)),
            "random": Part(
                lambda: seeding.global_state(self.device), lambda saved: seeding.set_global_state(saved, self.device)
            ),
        }

    def save(self) -> dict[str, Any]:
        return {name: part.save() for name, part in self.parts().items()}

    def load(self, saved: dict[str, Any]) -> None:
        """Put back what `save` gave. Raises StateMismatch where the two do not fit."""
        parts = self.parts()
        if set(saved) != set(parts):
            raise StateMismatch(f"the checkpoint holds {sorted(saved)}, this version needs {sorted(parts)}")
        for name, part in parts.items():
            part.load(saved[name])

    def weights_sha256(self) -> str:
        """See `weights_sha256`."""
        return weights_sha256(self.model)

    def _save_optimizer(self) -> dict[str, Any]:
        return {"name": self.config.optimizer, "state": named_state(self.optimizer, self.model)}

    def _load_optimizer(self, saved: dict[str, Any]) -> None:
        if saved["name"] != self.config.optimizer:
            raise StateMismatch(
                f"the checkpoint was made with optimizer={saved['name']}, "
                f"the configuration says {self.config.optimizer}; its state fits no other"
            )
        load_named_state(self.optimizer, self.model, saved["state"])

    def _load_scaler(self, saved: dict[str, Any]) -> None:
        # A disabled scaler has an empty state; a run may move between devices with and without one.
        if saved and self.scaler.is_enabled():
            self.scaler.load_state_dict(saved)
        self.loss_scale = self.scaler.get_scale()

    def _save_average(self) -> dict[str, Any]:
        if self.average is None:
            return {}
        return {"model": self.average.model.state_dict(), "num_updates": self.average.num_updates}

    def _load_average(self, saved: dict[str, Any]) -> None:
        if self.average is None:
            return
        if saved:
            load_strictly(self.average.model, saved["model"])
            self.average.num_updates = saved["num_updates"]
        else:
            warnings.warn("the checkpoint has no average of weights; the average starts from its weights", stacklevel=2)
            load_strictly(self.average.model, self.model.state_dict())


def weights_sha256(model: nn.Module) -> str:
    """sha256 over names, dtypes, shapes and bytes of the model's state, so results compare to the bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        tensor = tensor.detach().cpu().contiguous()
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        if tensor.numel():  # its memory as it stands: numpy, which torch does not need, is not needed here either
            digest.update((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()))
    return digest.hexdigest()


def load_strictly(module: nn.Module, saved: dict[str, Tensor]) -> None:
    """load_state_dict, with the first differences named (tutorial: 检查架构和 key 名)."""
    own = module.state_dict()
    differences = [f"{name} is missing in the checkpoint" for name in own if name not in saved]
    differences += [f"{name} is unknown to the model" for name in saved if name not in own]
    differences += [
        f"{name} has shape {tuple(saved[name].shape)} in the checkpoint, {tuple(own[name].shape)} in the model"
        for name in own
        if name in saved and isinstance(own[name], Tensor) and own[name].shape != saved[name].shape
    ]
    if differences:
        first = "; ".join(itertools.islice(differences, 3))
        raise StateMismatch(f"the checkpoint is of another model ({len(differences)} differences): {first}")
    module.load_state_dict(saved)


def _assign(target: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(target, name, value)
