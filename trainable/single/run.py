"""One trial in this process, from its folder: train, report, checkpoint, stop when asked, go on.

No Ray: breakpoint() works in a task. The flags and messages are in __main__.py.
"""

from __future__ import annotations

import dataclasses
import platform
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from trainable import checkpoint, loop
from trainable.config import TrainConfig
from trainable.saving import Saver
from trainable.single.console import Console
from trainable.single.folder import RunFolder
from trainable.task import load_task


@dataclass
class StopRequest:
    """Whether somebody asked the run to stop, and by which signal."""

    signal_number: int | None = None


@dataclass
class Prepared:
    """A run that has everything it needs and has written nothing yet."""

    folder: RunFolder
    spec: str
    settings: dict[str, Any]
    run: loop.Training
    fingerprint: str
    lines: list[str]
    resumed: bool = False

    def describe(self) -> dict[str, Any]:
        """What `resume` needs to make the same run again, and what else may explain a result."""
        return {
            "task": self.spec,
            "settings": self.settings,
            "config": self.run.config.to_dict(),
            "samples_sha256": self.fingerprint,
            "notes": self.run.notes,
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
        }


def prepare(folder: RunFolder, spec: str, settings: dict[str, Any], config: TrainConfig) -> Prepared:
    """A new run at its step 0. Raises ValueError for what task or device cannot honour."""
    task = load_task(spec, settings)
    splits = task.splits(config.data_seed)
    run = loop.start(task, config, splits)
    return Prepared(folder, spec, settings, run, splits.fingerprint(), [])


def prepare_resume(folder: RunFolder, description: dict[str, Any], config: TrainConfig) -> Prepared:
    """The run of `folder` at its newest good checkpoint, or at step 0 where it was stopped before the first.

    Raises ValueError where the samples are other ones, CheckpointError where every checkpoint is bad,
    StateMismatch where the model is another one.
    """
    ready = prepare(folder, description["task"], description["settings"], config)
    ready.resumed = True
    if ready.fingerprint != description["samples_sha256"]:
        raise ValueError(
            f"the task's samples are not those that {folder.path} was trained on; "
            "bring the old ones back, or begin a new run"
        )
    before, now = description["notes"].get("threads"), str(torch.get_num_threads())
    if before != now:
        ready.lines.append(
            f"warning: the run began with {before} CPU threads and goes on with {now}: its last bits may differ from "
            f"an unbroken run's; OMP_NUM_THREADS={before} in the environment brings the old number back"
        )
    found = checkpoint.read_newest(Saver(folder.checkpoints).folders())
    if found is None:
        ready.lines.append("there is no checkpoint yet: beginning at step 0")
        return ready
    ready.run.load(found[1])
    progress = ready.run.state.progress
    steps_per_epoch = len(ready.run.train.sizes)
    if progress.step > ready.run.total_steps:
        raise ValueError(
            f"--epochs {config.epochs} is less than the {progress.step / steps_per_epoch:.4g} that are done; "
            f"ask for {-(-progress.step // steps_per_epoch)} or more"
        )
    ready.lines.append(f"going on from step {progress.step} of {ready.run.total_steps} ({found[0]})")
    return ready


def begin(ready: Prepared) -> None:
    """Make the folder ready: the first thing that is written. Raises OSError where it cannot be."""
    ready.folder.begin(ready.describe())
    if ready.resumed:
        ready.folder.rewind(ready.run.state.progress.step)


def train(ready: Prepared, console: Console, stop: StopRequest) -> dict[str, Any]:
    """Once begun: train until it is done, diverged or asked to stop; the result, which is also in the folder."""
    run, folder = ready.run, ready.folder
    saver = Saver(folder.checkpoints)
    saved_step = run.state.progress.step if ready.resumed else None
    report: loop.Report | None = None

    def should_stop() -> bool:
        console.at(run.state.progress.step)
        return stop.signal_number is not None

    try:
        while True:
            found = loop.advance(run, should_stop)
            if found is not None and found.step > found.first_step:  # not so when there was nothing left to train
                report = found
                _keep_report(folder, report, console)
                if report.diverged is not None:  # its weights must not replace good ones
                    break
            if saved_step != run.state.progress.step:
                saved_step = run.state.progress.step
                score = report.metrics.get("val_loss") if found is not None and report is not None else None
                saver.save(run.state.save(), step=saved_step, config=run.config.to_dict(), score=score)
            if found is None or found.done or should_stop():
                break
    finally:
        failed_writes = saver.close()
    return folder.end(_result(ready, report, stop, failed_writes))


@contextmanager
def stopping_on_signals(console: Console, stop: StopRequest) -> Iterator[None]:
    """Inside, the first Ctrl-C or SIGTERM asks the run to stop; a second one ends the process at once."""
    watched = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in watched}

    def ask(number: int, _: Any) -> None:
        stop.signal_number = number
        for each in watched:
            signal.signal(each, before[each])
        console.line("stopping at this step, with a checkpoint; once more to stop at once")

    for number in watched:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number in watched:
            signal.signal(number, before[number])


def _keep_report(folder: RunFolder, report: loop.Report, console: Console) -> None:
    console.report(report, round(report.total_steps * report.epoch / max(report.step, 1)))
    try:
        folder.add_report(dataclasses.asdict(report))
    except OSError as error:  # a full disk must not end a training that could still be finished
        console.line(f"warning: a report could not be written ({error})")


def _result(ready: Prepared, report: loop.Report | None, stop: StopRequest, failed_writes: list[str]) -> dict[str, Any]:
    run = ready.run
    done = run.state.progress.finished or run.state.progress.step >= run.total_steps
    diverged = report.diverged if report is not None else None
    if diverged is not None:
        status = "diverged"
    elif done or stop.signal_number is None:
        status = "finished"
    else:
        status = "interrupted"
    metrics = report.metrics if report is not None else {}
    if not metrics:  # a run that was finished before has nothing new to say
        metrics = next((said["metrics"] for said in reversed(ready.folder.reports()) if said["metrics"]), {})
    return {
        **_position(ready, status),
        "metrics": metrics,
        "diverged": diverged,
        "weights_sha256": run.state.weights_sha256(),
        "notes": run.notes,
        "failed_checkpoints": failed_writes,
    }


def failed(ready: Prepared, error: BaseException) -> dict[str, Any]:
    """The result of a run whose task raised; it is also in the folder."""
    said = f"{type(error).__name__}: {error}"
    return ready.folder.end({**_position(ready, "failed"), "error": said, "notes": ready.run.notes})


def _position(ready: Prepared, status: str) -> dict[str, Any]:
    run = ready.run
    progress, best = run.state.progress, run.state.best
    return {
        "status": status,
        "task": ready.spec,
        "settings": ready.settings,
        "folder": str(ready.folder.path),
        "epoch": progress.step / len(run.train.sizes),
        "step": progress.step,
        "total_steps": run.total_steps,
        "seconds": progress.seconds,
        "best": {"val_loss": best.value, "step": best.step} if best.value is not None else None,
    }
