"""The other workers of a trial that several train: Ray actors beside the trial's own, in the same placement group.

The trial's actor is the first worker and alone talks to Tune; what it does, the others do at the same time. Not Ray
Train, whose controller owns loop, checkpoints and restarts: here Tune stops and puts back a trial at any step.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import ray

if TYPE_CHECKING:
    from trainable.group import Workers

SILENT_S = 1800.0  # between two words of a worker, an epoch's evaluation among them
LOST_S = 15.0  # until Ray knows that a worker has died whose connection broke
LOST_CODE = 70
LOOK_EVERY_S = 0.5


class NoFollowers:
    """A trial that one worker trains."""

    def __init__(self) -> None:
        from trainable.group import Alone

        self.group: Workers = Alone()

    def begin(self, config: dict[str, Any], checkpoint: str | None) -> None:
        pass

    def advancing(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass


class Followers:
    """The other `size - 1` workers; each has `resources`, in Ray's names, as the first one has."""

    def __init__(self, size: int, resources: dict[str, float], gpu_share: float) -> None:
        from ray.util import get_current_placement_group, get_node_ip_address
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        kept = dict(resources)
        options = {"num_cpus": kept.pop("CPU", 0), "num_gpus": kept.pop("GPU", 0), "resources": kept}
        place = get_current_placement_group()
        actor = ray.remote(Follower)
        self._actors = [
            actor.options(
                **options,
                scheduling_strategy=PlacementGroupSchedulingStrategy(place, placement_group_bundle_index=rank),
            ).remote()
            for rank in range(1, size)
        ]
        self._pending: list[Any] = []
        with socket.socket() as free:
            free.bind(("", 0))
            meet = f"tcp://{get_node_ip_address()}:{free.getsockname()[1]}"
        joined = [actor.join.remote(meet, rank, size, gpu_share) for rank, actor in enumerate(self._actors, start=1)]
        with _leaving_with(joined):
            self.group: Workers = join(meet, 0, size)
        _all(joined)

    def begin(self, config: dict[str, Any], checkpoint: str | None) -> None:
        """Have all of them stand where the first worker stands. checkpoint: the name of the one that it goes on
        from."""
        _all([actor.begin.remote(config, checkpoint) for actor in self._actors])

    @contextlib.contextmanager
    def advancing(self) -> Iterator[None]:
        """What the first worker trains inside, the others train too. Where one of them is lost, this process ends: an
        attempt that is lost, as if it had died itself."""
        pending = [actor.advance.remote() for actor in self._actors]
        try:
            with _leaving_with(pending):
                yield
        except Exception as error:
            told = _leave_if_lost(pending, LOST_S)  # a connection breaks before Ray knows that the worker has died
            if told is not None and _is_broken(error):
                raise RuntimeError(f"a worker of this trial failed: {told}") from error
            raise
        _all(pending)

    def end(self) -> None:
        """Have them let go of their run; another may begin."""
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get([actor.end.remote() for actor in self._actors], timeout=LOST_S)

    def close(self) -> None:
        for actor in self._actors:
            ray.kill(actor)


class Follower:
    """One of the other workers. An actor: each call is one of the first worker's."""

    def __init__(self) -> None:
        self._run: Any = None
        self._output: Any = None
        self._kept: Any = None
        self._group: Workers | None = None
        self._rank = 0

    def join(self, meet: str, rank: int, size: int, gpu_share: float) -> None:
        if gpu_share == 0:  # as the first worker does; before torch looks
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self._rank = rank
        self._group = join(meet, rank, size)

    def begin(self, config: dict[str, Any], checkpoint: str | None) -> None:
        from trainable import loop, memory
        from trainable.config import TrainConfig
        from trainable.data import splits_once
        from trainable.kept import kept_of
        from trainable.output import Output
        from trainable.task import load_task

        self.end()
        self._kept = kept_of(config, self._rank)
        self._output = Output(self._kept.log, f"worker {self._rank} on {os.uname().nodename}, process {os.getpid()}")
        memory.cap(config["gpu_share"])
        train = TrainConfig.from_dict(config["train"])
        task = load_task(config["task"], config["task_settings"])
        self._run = loop.start(task, train, splits_once(task, train.data_seed), group=self._group)
        if checkpoint is not None:
            self._run.load(self._kept.read(checkpoint))

    def advance(self) -> None:
        from trainable import loop

        try:
            loop.advance(self._run, lambda: False)  # whether to stop is the first worker's to say
        except BaseException:
            import torch.distributed as distributed

            distributed.destroy_process_group()  # nobody shall wait for a word from here
            raise

    def end(self) -> None:
        if self._run is not None:
            self._run.close()
            self._output.close()
            self._kept.close()
            self._run = None


def join(meet: str, rank: int, size: int) -> Workers:
    """Be worker `rank` of `size`, which meet at the first one's address: gloo on CPUs, nccl on GPUs."""
    import torch
    import torch.distributed as distributed

    from trainable.group import Group

    on_gpu = torch.cuda.is_available()
    distributed.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=meet,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=SILENT_S),
    )
    return Group(distributed.new_group(backend="gloo") if on_gpu else None)


@contextlib.contextmanager
def _leaving_with(pending: list[Any]) -> Iterator[None]:
    """Inside, this process ends as soon as one of the workers that are called has died: it might wait for its word."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(LOOK_EVERY_S):
            _leave_if_lost(pending, 0)

    thread = threading.Thread(target=watch, name="followers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _all(pending: list[Any]) -> None:
    """Wait for all of them; raises what one of them raised."""
    _leave_if_lost(pending, None)
    ray.get(pending)


def _leave_if_lost(pending: list[Any], wait_s: float | None) -> str | None:
    """End this process where a worker has died; else what a worker that has ended raised, if one did."""
    told = None
    ready, _ = ray.wait(pending, num_returns=len(pending), timeout=wait_s)
    for reference in ready:
        try:
            ray.get(reference)
        except ray.exceptions.RayActorError as error:
            print(f"a worker of this trial was lost: {str(error).strip().splitlines()[0]}", file=sys.stderr, flush=True)
            os._exit(LOST_CODE)
        except ray.exceptions.RayError as error:
            told = told or str(error).strip().splitlines()[-1]
    return told


def _is_broken(error: Exception) -> bool:
    """Whether it says only that another worker no longer answers, and nothing of why."""
    text = str(error).lower()
    return "closed by peer" in text or "connection reset" in text or "gloo" in text or "nccl" in text
