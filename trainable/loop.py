"""The textbook training loop: forward, backward, accumulate, clip, step; and evaluation.

Between two reports nothing is fetched from the device. Knows nothing of files, Ray or sweeps.
"""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn

from trainable import memory
from trainable.config import TrainConfig
from trainable.data import Batches, make_batches, num_samples_of, step_sizes
from trainable.device import Probe, choose_device, configure_backends
from trainable.precision import Numerics, choose_numerics
from trainable.schedule import lr_factor
from trainable.seeding import generator
from trainable.state import Interval, TrainState, joined
from trainable.task import Splits, Task

if TYPE_CHECKING:
    from trainable.task import Batch

MIN_EVAL_BATCH = 256
CURVES = ("loss", "lr", "grad_norm", "grad_norm_clipped")


@dataclass(frozen=True)
class Report:
    """What a run says at the end of a report interval.

    `metrics`: train_loss, and after an evaluation val_loss and the task's own as val_*; all are means.
    `curves`: one value a step of the interval, beginning with step `first_step` (counted from 0).
    """

    number: int
    epoch: float
    step: int
    total_steps: int
    first_step: int
    metrics: dict[str, float]
    curves: dict[str, list[float]]
    done: bool
    diverged: str | None = None
    weights_sha256: str | None = None
    samples_per_s: float = 0.0
    seconds: float = 0.0
    data_wait_share: float = 0.0
    peak_mem_gib: float = 0.0
    notes: dict[str, str] = field(default_factory=dict)


@dataclass
class Training:
    """One run: the task, its config, its data on the device, its state. Made by `start`."""

    task: Task
    config: TrainConfig
    numerics: Numerics
    state: TrainState
    train: Batches
    val: Batches
    notes: dict[str, str]
    stream: Iterator[Batch] | None = None

    @property
    def total_steps(self) -> int:
        return self.config.epochs * len(self.train.sizes)

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from a checkpoint's state. Raises StateMismatch where it is of another model."""
        self.state.load(saved)
        self.stream = None  # the old one stands at another position

    def close(self) -> None:
        """Let go of loader processes and of the samples on the device."""
        self.stream = None
        self.train.close()
        self.val.close()


def start(task: Task, config: TrainConfig, splits: Splits, probe: Probe | None = None) -> Training:
    """A run at its step 0, on its device; a function of its arguments alone, whatever ran here before.

    Raises ValueError for settings that the device or the task cannot honour.
    """
    probe = probe or Probe.here()
    configure_backends(config)
    device, device_reason = choose_device(config.device, probe)
    numerics = choose_numerics(config.precision, device, probe)
    state = TrainState(task, config, numerics)
    notes = {
        "device": device.type,
        "device_reason": device_reason,
        "precision": numerics.name,
        "precision_reason": numerics.reason,
        "threads": str(torch.get_num_threads()),
    }
    num_train = num_samples_of(splits.train)
    if num_train == 0 or num_samples_of(splits.val) == 0:
        raise ValueError(f"the task has {num_train} train and {num_samples_of(splits.val)} val samples; both need some")
    has_batch_norm = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in state.model.modules())
    sizes = step_sizes(num_train, config.batch_size, merge_single=has_batch_norm)
    if has_batch_norm and num_train % config.batch_size == 1 and len(sizes) * config.batch_size < num_train:
        notes["merged_rest"] = "the one sample left over joins the last step of an epoch: BatchNorm needs two"
    eval_batch = config.eval_batch_size or max(MIN_EVAL_BATCH, config.batch_size)
    common: dict[str, Any] = {
        "draw_seed": config.seed,
        "resident_gib": config.resident_gib,
        "num_workers": config.num_workers,
    }
    train = make_batches(splits.train, sizes, device, seed=config.seed, **common)
    val_sizes = step_sizes(num_samples_of(splits.val), eval_batch, merge_single=False)
    val = make_batches(splits.val, val_sizes, device, seed=None, **common)
    return Training(task, config, numerics, state, train, val, notes)


@overload
def advance(run: Training) -> Report: ...


@overload
def advance(run: Training, should_stop: Callable[[], bool]) -> Report | None: ...


def advance(run: Training, should_stop: Callable[[], bool] | None = None) -> Report | None:
    """Train up to the next report, and say how it went.

    A run that is finished already says so without training: its checkpoint was its last word.
    `should_stop` is asked before every step; once it says yes there is no report (None), and the state,
    saved as it stands, goes on from this very step.
    """
    state, progress = run.state, run.state.progress
    if progress.finished or progress.step >= run.total_steps:
        return _report(run, {}, {name: [] for name in CURVES}, progress.step, done=True)
    began, waited = time.perf_counter(), run.train.wait_s
    end = _next_report_step(run)
    state.train_mode()
    if run.stream is None:
        run.stream = _stream(run.train, progress.step)
    while progress.step < end:
        if should_stop is not None and should_stop():
            progress.seconds += time.perf_counter() - began
            return None
        _step(run, next(run.stream))
        progress.step += 1

    curves, weights = _fetch(state.interval, run.config)
    state.interval = Interval()
    num_steps = len(curves["loss"])
    first_step = progress.step - num_steps
    train_s = time.perf_counter() - began
    speeds = {
        "samples_per_s": _num_samples(run, progress.step) - _num_samples(run, first_step),
        "data_wait_share": (run.train.wait_s - waited) / max(train_s, 1e-9),
    }
    speeds["samples_per_s"] /= max(train_s, 1e-9)
    progress.reports += 1
    diverged = _divergence(curves, run.numerics.scaled, first_step)
    metrics: dict[str, float] = {}
    if diverged is None:
        metrics["train_loss"] = sum(loss * weight for loss, weight in zip(curves["loss"], weights, strict=True)) / sum(
            weights
        )
        last = progress.step >= run.total_steps
        if last or progress.reports % run.config.eval_every == 0:
            metrics |= evaluate(run)
            if not math.isfinite(metrics["val_loss"]):
                diverged = f"the validation loss became {metrics['val_loss']} at step {progress.step}"
            else:
                _remember_best(run, metrics["val_loss"])
        progress.finished = last or progress.finished
    progress.seconds += time.perf_counter() - began
    return _report(
        run, metrics, curves, first_step, done=progress.finished or diverged is not None, diverged=diverged, **speeds
    )


def evaluate(run: Training) -> dict[str, float]:
    """val_loss and the task's metrics as val_*: sums over all samples, divided once.

    The batch size, and a short last batch, therefore never change a value.
    """
    model, autocast = run.state.evaluated, run.numerics.autocast()
    was_training = model.training
    model.eval()
    sums: dict[str, Tensor] = {}
    # mps has no float64
    wide = torch.float32 if run.numerics.device.type == "mps" else torch.float64
    weight: Any = 0
    with torch.inference_mode():
        for batch in run.val.epoch(0, 0):
            with autocast():
                outputs = run.task.predict(model, batch)
                found = {"loss": run.task.loss(outputs, batch), **run.task.metrics(outputs, batch)}
            for name, value in found.items():
                sums[name] = sums.get(name, 0) + torch.as_tensor(value).detach().to(wide)
            weight = weight + run.task.weight(batch)
    model.train(was_training)
    total = float(weight)
    return {f"val_{name}": float(value) / total for name, value in sums.items()}


def _step(run: Training, batch: Batch) -> None:
    """One optimizer step on one batch, in the textbook's order, whatever number of micro-batches it takes."""
    state, config = run.state, run.config
    optimizer, scaler = state.optimizer, state.scaler
    factor = lr_factor(config, state.progress.updates, run.total_steps, len(run.train.sizes), state.best.decays)
    for group in optimizer.param_groups:
        group["lr"] = config.lr * factor * group["lr_multiplier"]
    if type(run.task).augment is not Task.augment:
        # A stream of its own for every step: what augmentation draws never depends on an interruption.
        stream = generator(state.device, config.seed, "augment", state.progress.step)
        batch = run.task.augment(batch, stream)
    # All micro-batches of the step share its weight, so their gradients add up to the full batch's.
    weight = run.task.weight(batch)
    weight = weight.clamp(min=1) if isinstance(weight, Tensor) else max(weight, 1)
    loss = _gradients(run, batch, weight)
    scaled = scaler.is_enabled() and any(parameter.grad is not None for parameter in state.trained)
    if scaled:
        scaler.unscale_(optimizer)
    norm, norm_after = _clip(state.trained, config)
    if scaled:
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        # A step with overflow is skipped and lowers the scale; the schedule does not move on then.
        state.progress.updates += scaler.get_scale() >= scale
    else:
        optimizer.step()
        state.progress.updates += 1
    if state.average is not None:
        state.average.update_parameters(state.model)
    state.interval.record(config.lr * factor, weight, loss, norm, norm_after)


def _gradients(run: Training, batch: Batch, weight: Any) -> Tensor:
    """The step's mean loss, with its gradient in the parameters; smaller micro-batches where memory demands."""
    state = run.state
    size = len(batch[0])
    while True:
        state.optimizer.zero_grad(set_to_none=True)
        micro_batch = min(state.micro_batch or size, size)
        try:
            if micro_batch == size:
                return _forward_backward(run, batch, weight)
            pieces = zip(*(tensor.split(micro_batch) for tensor in batch), strict=True)
            losses = [_forward_backward(run, piece, weight) for piece in pieces]
            return torch.stack(losses).sum()
        except Exception as error:
            if memory.is_out_of_memory(error):
                state.optimizer.zero_grad(set_to_none=True)
                state.micro_batch = memory.smaller(micro_batch, error)
                run.notes["micro_batch"] = f"{state.micro_batch}, after running out of memory at {micro_batch}"
                warnings.warn(
                    f"out of memory with {micro_batch} samples at a time; going on with {state.micro_batch}",
                    stacklevel=2,
                )
            elif state.compiled and state.progress.updates == 0:
                state.compiled = False
                state.model._compiled_call_impl = None
                run.notes["compile"] = f"fell back to eager: {type(error).__name__}: {str(error)[:200]}"
                warnings.warn(
                    f"torch.compile failed, going on without it: {type(error).__name__}: {error}", stacklevel=2
                )
            else:
                raise


def _forward_backward(run: Training, batch: Batch, weight: Any) -> Tensor:
    with run.numerics.autocast()():
        outputs = run.task.predict(run.state.model, batch)
        loss: Tensor = run.task.loss(outputs, batch) / weight
    if loss.requires_grad:  # not so when everything the batch touches is frozen
        run.state.scaler.scale(loss).backward()
    return loss.detach()


def _clip(parameters: list[Tensor], config: TrainConfig) -> tuple[Tensor, Tensor]:
    """Clip the gradients; their norm before and after (tutorial lab 2)."""
    if config.clip_norm is not None:
        norm = nn.utils.clip_grad_norm_(parameters, config.clip_norm)
        return norm, norm  # the norm after follows from the norm before: `_fetch` works it out, for all steps at once
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if config.clip_value is None:
        return norm, norm
    nn.utils.clip_grad_value_(parameters, config.clip_value)
    return norm, nn.utils.get_total_norm(gradients)


def _stream(batches: Batches, step: int) -> Iterator[Batch]:
    """Batches without end, from `step` of the whole run on."""
    epoch, first_step = divmod(step, len(batches.sizes))
    for number in itertools.count(epoch):
        yield from batches.epoch(number, first_step if number == epoch else 0)


def _next_report_step(run: Training) -> int:
    every = run.config.report_steps or len(run.train.sizes)
    return min(run.total_steps, (run.state.progress.step // every + 1) * every)


def _num_samples(run: Training, step: int) -> int:
    """Training samples seen in the first `step` steps."""
    epochs, rest = divmod(step, len(run.train.sizes))
    return epochs * sum(run.train.sizes) + sum(run.train.sizes[:rest])


def _fetch(interval: Interval, config: TrainConfig) -> tuple[dict[str, list[float]], list[float]]:
    """The recorded curves on the host, and each step's weight: the one place that waits for the device."""
    norms = joined(interval.norms).double().cpu()
    after = joined(interval.norms_after).double().cpu()
    if config.clip_norm is not None:
        # clip_grad_norm_ multiplies by this very factor; working it out here saves a pass over the gradients.
        after = norms * (config.clip_norm / (norms + 1e-6)).clamp(max=1.0)
    curves = {
        "loss": joined(interval.losses).double().cpu().tolist(),
        "lr": list(interval.lrs),
        "grad_norm": norms.tolist(),
        "grad_norm_clipped": after.tolist(),
    }
    weights = torch.stack([torch.as_tensor(weight).detach().cpu() for weight in interval.weights]).double().tolist()
    return curves, weights


def _divergence(curves: dict[str, list[float]], scaled: bool, first_step: int) -> str | None:
    """Why the run counts as diverged, or None. With a scaler, overflowing gradients are its daily work."""
    watched = (
        {"loss": "the training loss"} if scaled else {"loss": "the training loss", "grad_norm": "the gradient norm"}
    )
    for step in range(len(curves["loss"])):
        for name, words in watched.items():
            if not math.isfinite(curves[name][step]):
                return f"{words} became {curves[name][step]} at step {first_step + step}; try a smaller lr or clip_norm"
    if scaled and curves["loss"] and not any(map(math.isfinite, curves["grad_norm"])):
        return f"no gradient was finite from step {first_step} on, at any loss scale"
    return None


def _remember_best(run: Training, value: float) -> None:
    """Note a new best, count towards early stopping and towards plateau's next decay."""
    best, config = run.state.best, run.config
    if best.value is None or value < best.value:
        best.value, best.step = value, run.state.progress.step
        best.evaluations_since = best.evaluations_since_decay = 0
        return
    best.evaluations_since += 1
    best.evaluations_since_decay += 1
    if config.schedule == "plateau" and best.evaluations_since_decay > config.plateau_patience:
        best.decays += 1
        best.evaluations_since_decay = 0
    if config.patience is not None and best.evaluations_since >= config.patience:
        run.state.progress.finished = True
        run.notes["stopped_early"] = f"no better val_loss for {config.patience} evaluations"


def _report(
    run: Training, metrics: dict[str, float], curves: dict[str, list[float]], first_step: int, **said: Any
) -> Report:
    progress = run.state.progress
    return Report(
        number=progress.reports,
        epoch=progress.step / len(run.train.sizes),
        step=progress.step,
        total_steps=run.total_steps,
        first_step=first_step,
        metrics=metrics,
        curves=curves,
        weights_sha256=run.state.weights_sha256() if said["done"] else None,
        seconds=progress.seconds,
        peak_mem_gib=memory.peak_gib(run.numerics.device),
        notes=dict(run.notes),
        **said,
    )
