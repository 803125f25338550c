"""Trial: one trial as Ray Tune runs it: set up, step, save, load, be reused.

Everything it does is in loop.py and checkpoint.py; this is only Tune's shape of it. Knows no sweeps.
torch is imported inside the methods: the driver describes this class and must not pay for torch.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import tune
from ray.tune.result import DONE, SHOULD_CHECKPOINT

from trainable.config import TrainConfig
from trainable.crashpoint import crash_point
from trainable.followers import Followers, NoFollowers
from trainable.marks import marks_at
from trainable.objects import is_address
from trainable.output import Output
from trainable.task import load_task
from trainable.watchdog import FLOOR_S, Watchdog

if TYPE_CHECKING:
    from trainable.kept import Kept
    from trainable.loop import Training
    from trainable.system import System
    from trainable.task import Task


class NodeLeaves(RuntimeError):
    """No trial begins where the node has been given notice; another node takes it."""


class NodeUnfit(RuntimeError):
    """This node came after the sweep began, and a trial here would not be what it is elsewhere; another may take it."""


class Trial(tune.Trainable):  # type: ignore[misc]
    """A training run that Tune can stop, save, load and give another configuration.

    config: `number` (the trial's), `attempt` (which of it), `folder` (the sweep's: a path that all nodes see, or the
    address of an object store) and names in it: `log` (what it prints), `stacks` (where an attempt that hangs writes
    them down), `attempts` (the folders of its attempts so far: the newest good checkpoint in them is gone on from),
    `splits_file` (written once: which samples are for what); `marks` (where to look whether to stop, see marks.py),
    `torch` (the version that all trials use), `task` and `task_settings` (see `load_task`), `train` (a TrainConfig as a
    dict), `gpu_share` (the part of a GPU that it may fill: 1 for one or more, 0: it sees none), `workers` (how many
    train it together) and `resources` (of each, in Ray's names), `max_seconds` (of training, over all attempts, after
    which it stops for good; None: no limit), `ranked_by` (what decides which checkpoint is the best, see
    `saving.score_of`), `checks` (None, or a file, a TrainConfig as a dict and names of metrics: see
    `trainable.checks.before`).
    """

    _others: NoFollowers | Followers | None = None

    def setup(self, config: dict[str, Any]) -> None:
        if config["gpu_share"] == 0:  # whatever the node's Ray lets it see; before torch looks
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        from trainable import checkpoint, loop, memory
        from trainable.data import splits_once
        from trainable.kept import kept_of
        from trainable.system import System

        _check_node(config)
        self._number: int = config["number"]
        self._system: System | None = None
        self._kept: Kept = kept_of(config)
        self._output = Output(self._kept.log, _heading(config["attempt"]))
        self._marks, self._node_id = marks_at(config["marks"]), _node_id()
        self._max_seconds: float | None = config["max_seconds"]
        self._step_began, self._out_of_time = 0.0, False
        self._asked_at = 0.0
        self._watchdog: Watchdog | None = None
        self._score: float | None = None  # of the state as it is now: less is better
        self._ranked_by: tuple[str, str] | None = config["ranked_by"]
        train = TrainConfig.from_dict(config["train"])
        self._watchdog = Watchdog(self._kept.stacks, train.stall_s, self._kept.send_stacks)
        memory.cap(config["gpu_share"])
        task = load_task(config["task"], config["task_settings"])
        if config["checks"] is not None:
            with self._watchdog.watching(at_least_s=FLOOR_S):
                _ask_before(task, config["workers"], self._kept, **config["checks"])
        if self._others is None:
            workers = config["workers"]
            self._others = (
                NoFollowers() if workers == 1 else Followers(workers, config["resources"], config["gpu_share"])
            )
        self._run: Training = loop.start(task, train, splits_once(task, train.data_seed), group=self._others.group)
        self._system = System(self._run.numerics.device)
        self._run.notes["host"] = os.uname().nodename
        self._run.notes["data"] = _recorded(task, train.data_seed, self._kept, config["splits_file"])
        try:
            found = self._kept.read_newest()
        except checkpoint.CheckpointError as error:
            # Nothing good is left, so beginning again is all there is; the same seed gives the same trial.
            self._run.notes["restarted"] = str(error)
            found = None
        if found is not None:
            self._run.load(found[1])
        self._others.begin(config, None if found is None else found[0])
        crash_point("trial-start")

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        if self._marks.is_leaving(self._node_id):
            raise NodeLeaves("this node has been given notice; the trial begins on another")
        self._let_go()
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        from trainable import loop, saving

        self._kept.thin_out()  # Tune has put the last checkpoint in place by now
        finished = self._run.state.progress.finished
        assert self._watchdog is not None
        assert self._system is not None
        self._system.begin()
        self._step_began, self._out_of_time = time.monotonic(), False
        assert self._others is not None
        with self._watchdog.watching(), self._others.advancing():
            report = loop.advance(self._run, self._should_stop)
        self._output.check()
        self._score = None if report is None else saving.score_of(report.metrics, self._ranked_by)
        if report is None:
            said = {"number": self._number, "report": "null", "out_of_time": self._out_of_time}
            return {**said, DONE: False, SHOULD_CHECKPOINT: True}
        # The last report and its checkpoint come first; only the next step, which trains nothing, ends
        # the trial. So a trial that counts as complete has its last checkpoint in the storage.
        return {
            "number": self._number,
            # As text: Tune would take a dict apart.
            "report": json.dumps({**dataclasses.asdict(report), "system": self._system.said()}),
            DONE: finished or report.diverged is not None,
            SHOULD_CHECKPOINT: not finished and report.diverged is None,
        }

    def save(self, checkpoint_dir: str | None = None) -> Any:
        save = super().save
        return self._kept.saved(lambda: save(checkpoint_dir))

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        from trainable import checkpoint

        state = self._run.state
        checkpoint.write(
            Path(checkpoint_dir),
            state.save(),
            step=state.progress.step,
            config=self._run.config.to_dict(),
            score=self._score,
        )

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        from trainable import checkpoint

        self._run.load(checkpoint.read(Path(checkpoint_dir)))

    def _should_stop(self) -> bool:
        """Asked before every step, so the file is looked for only now and then."""
        now = time.monotonic()
        assert self._watchdog is not None
        self._watchdog.moved(self._run.state.progress.step, now)
        if now - self._asked_at < self._marks.every_s:
            return False
        self._asked_at = now
        self._output.check()
        if self._max_seconds is not None:
            self._out_of_time = self._run.state.progress.seconds + now - self._step_began >= self._max_seconds
        return self._out_of_time or self._marks.is_stopping() or self._marks.is_leaving(self._node_id)

    def cleanup(self) -> None:
        self._let_go()
        if self._others is not None:
            self._others.close()

    def _let_go(self) -> None:
        """Of the run, but not of the other workers: they may train the next one."""
        if self._others is not None:
            self._others.end()
        if self._watchdog is not None:
            self._watchdog.close()
        if self._system is not None:
            self._system.close()
        self._run.close()
        self._output.close()
        self._kept.close()


def _check_node(config: dict[str, Any]) -> None:
    """What all nodes were asked when the sweep began, of one that has come since. Raises NodeUnfit."""
    where, here = os.uname().nodename, metadata.version("torch")
    if here != config["torch"]:
        raise NodeUnfit(f"node {where} has torch {here}, and this sweep trains with {config['torch']}")
    if not is_address(config["folder"]) and not os.path.isdir(config["folder"]):
        raise NodeUnfit(f"node {where} does not see the sweep's folder {config['folder']}")


def _node_id() -> str:
    """Ray's name for where this is; none for a trial that is made without Ray."""
    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else "none"


def _heading(attempt: int) -> str:
    """What stands above an attempt's own words in the trial's log."""
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return f"attempt {attempt} on {os.uname().nodename}, process {os.getpid()}, {began}"


def _ask_before(task: Task, workers: int, kept: Kept, file: str, train: dict[str, Any], metrics: list[str]) -> None:
    """Ask what a sweep asks before its first trial, and write the answers down. Raises Refused."""
    from trainable.checks.before import Refused, ask_before
    from trainable.data import splits_once
    from trainable.training import check_for_workers

    config = TrainConfig.from_dict(train)
    findings = ask_before(task, config, lambda: splits_once(task, config.data_seed), metrics)
    try:
        check_for_workers(task.model(), workers)
    except ValueError as error:
        raise Refused(str(error)) from error
    kept.write(file, json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))


def _recorded(task: Task, seed: int, kept: Kept, splits_file: str) -> str:
    """The fingerprint of the data; which samples are for what is written down by the first trial of a sweep."""
    from trainable.data import splits_once

    fingerprint = _fingerprint(task, seed)
    if not kept.has(splits_file):
        indices = splits_once(task, seed).indices
        parts = {name: [int(index) for index in found] for name, found in indices.items()}
        kept.write(splits_file, json.dumps({"seed": seed, "fingerprint": fingerprint, **parts}))
    return fingerprint


@functools.lru_cache(maxsize=1)
def _fingerprint(task: Task, seed: int) -> str:
    from trainable.data import splits_once

    return splits_once(task, seed).fingerprint()
