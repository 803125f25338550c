"""The textbook training loop: batches, steps, reports, evaluation, and when to stop.

Between two reports nothing is fetched from the device. Knows nothing of files, Ray or sweeps.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, overload

import torch

from trainable import memory
from trainable.config import TrainConfig
from trainable.crashpoint import crash_point
from trainable.data import Batches, make_batches, num_samples_of, step_sizes
from trainable.device import Probe, choose_device, configure_backends
from trainable.evaluation import evaluate as evaluate
from trainable.group import Alone, Workers
from trainable.interval import Interval
from trainable.precision import choose_numerics
from trainable.report import CURVES, data_wait_advice, divergence, weight_norms
from trainable.report import Report as Report
from trainable.state import TrainState
from trainable.step import take_step
from trainable.task import Splits, Task
from trainable.training import Training as Training
from trainable.training import check_for_workers, has_batch_norm, memory_shape

if TYPE_CHECKING:
    from trainable.task import Batch

MIN_EVAL_BATCH = 256


def start(
    task: Task, config: TrainConfig, splits: Splits, probe: Probe | None = None, group: Workers | None = None
) -> Training:
    """A run at its step 0, on its device; a function of its arguments alone, whatever ran here before.

    group: the workers that train it together; None: this process alone. Each of them makes the same calls.
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
    num_train, num_val = num_samples_of(splits.train), num_samples_of(splits.val)
    if num_train == 0 or num_val == 0:
        raise ValueError(f"the task has {num_train} train and {num_val} val samples; both need some")
    merge_single = has_batch_norm(state.model)
    sizes = step_sizes(num_train, config.batch_size, merge_single)
    notes["train_samples"], notes["val_samples"] = str(sum(sizes)), str(num_val)
    if merge_single and num_train > config.batch_size > 1 and num_train % config.batch_size == 1:
        notes["merged_rest"] = "the one sample left over joins the last step of an epoch: BatchNorm needs two"
    if merge_single and config.micro_batch is not None and config.micro_batch < config.batch_size:
        notes["batch_norm"] = f"sees {config.micro_batch} samples at a time: its statistics are of those"
    eval_batch = config.eval_batch_size or max(MIN_EVAL_BATCH, config.batch_size)
    val_sizes = step_sizes(num_val, eval_batch, merge_single=False)
    train = make_batches(splits.train, sizes, device, config, shuffled=True)
    val = make_batches(splits.val, val_sizes, device, config, shuffled=False)
    group = group or Alone()
    check_for_workers(state.model, group.size)
    if group.size > 1:
        notes["workers"] = str(group.size)
    shape = memory_shape(task, config, numerics, splits)
    run = Training(task, config, numerics, state, train, val, notes, group, shape)
    if group.size == 1:  # the others may have another past
        _heed_earlier_runs(run)
    memory.reset_peak(device)
    return run


def _heed_earlier_runs(run: Training) -> None:
    """Begin with the micro-batch that an earlier run of the same shape had to come down to."""
    fits, state = memory.remembered(run.shape), run.state
    if fits is not None and fits < min(state.micro_batch or run.config.batch_size, run.config.batch_size):
        state.micro_batch = fits
        run.notes["micro_batch"] = f"{fits}, where an earlier run of the same shape ended up"
    run.eval_pieces = memory.remembered((run.shape, "evaluation"))


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
    began, began_at, waited = time.perf_counter(), progress.step, run.train.wait_s
    end = _next_report_step(run)
    state.train_mode()
    if run.stream is None:
        run.stream = _stream(run.train, progress.step)
    while progress.step < end:
        if should_stop is not None and run.group.decide(should_stop()):
            progress.seconds += time.perf_counter() - began
            return None
        crash_point("step", poison=state.trained)
        take_step(run, next(run.stream))
        progress.step += 1

    curves, weights = state.interval.fetch(run.config.clip_norm)
    state.interval = Interval()
    first_step = progress.step - len(curves["loss"])
    train_s = max(time.perf_counter() - began, 1e-9)
    speeds = {
        "samples_per_s": (_num_samples(run, progress.step) - _num_samples(run, began_at)) / train_s,
        "data_wait_share": (run.train.wait_s - waited) / train_s,
    }
    if advice := data_wait_advice(speeds["data_wait_share"], run.config.num_workers):
        run.notes["data_wait"] = advice
    progress.reports += 1
    largest_weight, weight_norm = weight_norms(state.trained)
    run.group.check_equal(weight_norm)
    diverged = divergence(curves, largest_weight, run.numerics.scaled, first_step)
    metrics: dict[str, float] = {}
    if diverged is None:
        metrics["train_loss"] = _mean(curves["loss"], weights)
        last = progress.step >= run.total_steps
        if last or progress.reports % run.config.eval_every == 0:
            metrics |= evaluate(run)
            if not math.isfinite(metrics["val_loss"]):
                diverged = f"the validation loss became {metrics['val_loss']} at step {progress.step}"
            else:
                _remember_best(run, metrics["val_loss"])
        progress.finished = last or progress.finished
    progress.seconds += time.perf_counter() - began
    done = progress.finished or diverged is not None
    return _report(run, metrics, curves, first_step, done=done, diverged=diverged, weight_norm=weight_norm, **speeds)


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


def _mean(values: list[float], weights: list[float]) -> float:
    """Each step's loss counts by what it was summed over. A step of weight 0 (padding alone) says nothing."""
    total = sum(weights)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total if total else 0.0


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
        run.note_early_stop()


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
        num_params=sum(parameter.numel() for parameter in run.state.trained),
        latency_ms=run.latency_ms,
        notes=dict(run.notes),
        **said,
    )
