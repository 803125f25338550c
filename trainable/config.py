"""TrainConfig: every knob of one training run, with its unit, its reason and its limits.

Knows no torch: a driver that only describes trials must not pay for importing it.
"""

from __future__ import annotations

import difflib
import math
import operator
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from trainable.declared import as_declared

Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
OptimizerName = Literal["adamw", "adam", "sgd", "rmsprop", "muon"]
ScheduleName = Literal["constant", "cosine", "one_cycle", "step", "plateau"]
WorkerStart = Literal["default", "fork", "spawn", "forkserver"]
MatmulPrecision = Literal["highest", "high", "medium"]


def _knob(
    default: Any,
    help: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> Any:
    """A field of TrainConfig: its default, what it is for, and the values that are allowed."""
    limits = {"above": above, "at_least": at_least, "at_most": at_most, "below": below}
    metadata = {"help": help, **{name: limit for name, limit in limits.items() if limit is not None}}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Every knob of one training run. Validated once, here; `None` means off.

    Raises ValueError for a value outside its limits and for settings that contradict each other.
    """

    # The step
    lr: float = _knob(1e-3, "learning rate: the optimizer's step size", above=0)
    batch_size: int = _knob(32, "samples that one optimizer step sees", at_least=1)
    micro_batch: int | None = _knob(
        None, "samples in memory at a time; gradients of the micro-batches of a step are summed", at_least=1
    )
    epochs: int = _knob(1, "passes over the training samples", at_least=1)
    seed: int = _knob(0, "where every random number of the run comes from", at_least=0, below=2**63)
    split_seed: int | None = _knob(
        None, "seed of the train/val/test split; None: the same as seed", at_least=0, below=2**63
    )

    # Optimizer
    optimizer: OptimizerName = _knob("adamw", "update rule, from torch.optim")
    weight_decay: float = _knob(0.01, "weight decay; never on biases and norms unless decay_all", at_least=0)
    decay_all: bool = _knob(False, "apply weight decay to biases and norms too")
    momentum: float = _knob(0.9, "momentum of sgd, rmsprop and muon", at_least=0, below=1)
    nesterov: bool = _knob(False, "Nesterov momentum for sgd and muon")
    beta1: float = _knob(0.9, "decay of Adam's first moment", at_least=0, below=1)
    beta2: float = _knob(0.999, "decay of Adam's second moment", at_least=0, below=1)
    eps: float = _knob(1e-8, "added to Adam's and RMSprop's denominator", above=0)
    fused: bool | None = _knob(None, "fused update kernels; None: where torch has them for the optimizer")
    lr_multipliers: Mapping[str, float] = _knob(
        {}, "factor on lr for parameters whose name matches a glob pattern, e.g. {'head.*': 10}; first match wins"
    )
    freeze: tuple[str, ...] = _knob((), "glob patterns of parameter or module names that stay as they are, buffers too")
    ema_decay: float | None = _knob(None, "decay of the moving average of weights used in evaluation", above=0, below=1)

    # Schedule of the learning rate, in optimizer steps
    schedule: ScheduleName = _knob("constant", "shape of the learning rate over the run")
    warmup_steps: int = _knob(0, "optimizer steps of linear warm-up", at_least=0)
    lr_min_factor: float = _knob(0.0, "where cosine and plateau end, as a share of lr", at_least=0, at_most=1)
    decay_epochs: int = _knob(1, "epochs between the decays of schedule=step", at_least=1)
    decay_factor: float = _knob(0.1, "factor of each decay of schedule=step and plateau", above=0, at_most=1)
    plateau_patience: int = _knob(2, "evaluations without a new best before plateau decays", at_least=0)

    # Gradients
    clip_norm: float | None = _knob(1.0, "largest gradient norm (tutorial lab 2)", above=0)
    clip_value: float | None = _knob(None, "largest absolute value of a gradient's entries", above=0)

    # Where and how it is computed
    device: Device = _knob("auto", "auto: cuda, else mps, else cpu (tutorial lab 1)")
    precision: Precision = _knob("auto", "auto: bf16 or fp16 on cuda, fp32 elsewhere (tutorial lab 3)")
    loss_scale: float = _knob(
        2.0**16, "what fp16 multiplies the loss by at first; overflow halves it, calm doubles it", above=0
    )
    matmul_precision: MatmulPrecision = _knob(
        "highest", "fp32 matmuls on cuda: high and medium use TF32 or bf16 inside, faster and less exact"
    )
    cudnn_benchmark: bool = _knob(
        False, "let cudnn time its kernels at the start: faster, but runs may differ in the last bits"
    )
    deterministic: bool = _knob(True, "refuse kernels whose result depends on the order of threads, where possible")
    compile: bool = _knob(
        False, "torch.compile the model in place, one kernel per batch shape; small models often lose"
    )
    threads: int | None = _knob(
        None, "CPU threads of torch; None: torch's own choice. The last bits depend on it", at_least=1
    )

    # Data
    num_workers: int = _knob(0, "loader processes, for data that is not held on the device", at_least=0)
    worker_start: WorkerStart = _knob(
        "default", "how loader processes start; spawn or forkserver where fork hangs (threads) or is missing"
    )
    stall_s: float | None = _knob(
        None,
        "a sweep's trial that makes no step for so many seconds is ended; None: from its pace, at least 120",
        above=0,
    )
    resident_gib: float = _knob(2.0, "tensors up to this size live on the device for the whole run", at_least=0)

    # Reports, evaluation, checkpoints
    report_steps: int | None = _knob(None, "optimizer steps between reports; None: one report an epoch", at_least=1)
    eval_every: int = _knob(1, "evaluate at every n-th report (and at the last)", at_least=1)
    eval_batch_size: int | None = _knob(None, "samples at a time in evaluation; None: at least 256", at_least=1)
    measure_latency: bool = _knob(
        False, "time the model on one sample at the first evaluation, as latency_ms for limits and objectives"
    )
    patience: int | None = _knob(None, "stop early after this many evaluations without a new best", at_least=1)

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for item in fields(self):
            value = as_declared(item.name, getattr(self, item.name), hints[item.name])
            _check_limits(item.name, value, item.metadata)
            object.__setattr__(self, item.name, value)
        if self.clip_norm is not None and self.clip_value is not None:
            raise ValueError(
                f"clip_norm={self.clip_norm} and clip_value={self.clip_value} are both set; "
                "choose one and set the other to null"
            )
        if self.nesterov and (self.optimizer not in ("sgd", "muon") or self.momentum == 0):
            raise ValueError(
                f"nesterov=true needs optimizer=sgd or muon with momentum above 0; "
                f"got optimizer={self.optimizer}, momentum={self.momentum}"
            )
        for pattern, factor in self.lr_multipliers.items():
            if not (factor > 0 and math.isfinite(factor)):
                raise ValueError(
                    f"lr_multipliers[{pattern!r}]={factor} must be a number above 0; to train nothing there use freeze"
                )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """A config from plain values (YAML, JSON, command line).

        Raises ValueError for an unknown name, listing the near ones.
        """
        known = cls.names()
        for name in values:
            if name not in known:
                raise ValueError(unknown_name("config key", name, known))
        return cls(**values)

    @classmethod
    def names(cls) -> list[str]:
        """The names of all knobs, in the order of their declaration."""
        return [item.name for item in fields(cls)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values only (JSON, YAML); `from_dict` gives the same config back."""
        plain: dict[str, Any] = {}
        for name in self.names():
            value = getattr(self, name)
            if isinstance(value, tuple):
                value = list(value)
            elif isinstance(value, Mapping):
                value = dict(value)
            plain[name] = value
        return plain

    @property
    def data_seed(self) -> int:
        """The seed of the data split."""
        return self.seed if self.split_seed is None else self.split_seed


def unknown_name(kind: str, name: str, known: list[str]) -> str:
    """The message for a name that does not exist: what was given, the near ones, all of them."""
    near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"unknown {kind} {name!r}; {hint}known: {', '.join(known)}"


def _check_limits(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name}={value} must be a finite number")
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return
    tests = {"above": operator.gt, "at_least": operator.ge, "at_most": operator.le, "below": operator.lt}
    for word, holds in tests.items():
        if word in limits and not holds(value, limits[word]):
            raise ValueError(f"{name}={value!r} must be {word.replace('_', ' ')} {limits[word]}")
