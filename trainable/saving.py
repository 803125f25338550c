"""The checkpoints of one run: copied at once, written beside the loop, the newest two and the best kept.

What is kept is read from the manifests in the folder, so an interruption forgets nothing.
Knows nothing of what the state holds.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainable import checkpoint
from trainable.plain import plain

NUM_NEWEST = 2  # checkpoints of a sweep's trial that are kept beside the best
NAME = re.compile(r"step-\d{8,}(\.\d+)?")


def score_of(metrics: Mapping[str, float], ranked_by: tuple[str, str] | None) -> float | None:
    """How good a run is by the metrics of a report, less is better; None where it was not evaluated.

    ranked_by: (metric, "min" or "max") of whoever compares runs. What is no val metric says nothing of one state among
    others (seconds, sizes): then, as for None, it is val_loss.
    """
    name, mode = ranked_by if ranked_by is not None and ranked_by[0].startswith("val_") else ("val_loss", "min")
    value = metrics.get(name)
    return value if value is None or mode == "min" else -value


class HostCopy:
    """Private copies of a state in host memory, each made into the memory of the one before.

    Fresh memory costs several times the copying itself (a page fault for every 4 KiB); that is paid once.
    """

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []

    def take(self, state: Any) -> Any:
        """A copy of `state` that no later step changes. It is good until the next call."""
        used: list[Tensor] = []
        copies: dict[Any, Tensor] = {}  # tied weights are one tensor under two names, and stay one

        def copy(tensor: Tensor) -> Tensor:
            tensor = tensor.detach()
            key = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            if key not in copies or tensor.numel() == 0:
                position = len(used)
                old = self._buffers[position] if position < len(self._buffers) else None
                if old is None or (old.shape, old.dtype, old.stride()) != (
                    tensor.shape,
                    tensor.dtype,
                    tensor.stride(),
                ):
                    old = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
                old.copy_(tensor, non_blocking=tensor.is_cuda)
                used.append(old)
                copies[key] = old
            return copies[key]

        copied = plain(state, copy)
        if any(key[0].type == "cuda" for key in copies):
            torch.cuda.synchronize()  # the copies are under way; the next step would overwrite their source
        self._buffers = used
        return copied


class Saver:
    """Writes the checkpoints of one run into folders of `root`; at most one write is under way.

    It deletes only folders that it names itself, and none before `num_newest` newer ones were read back and found
    undamaged. A checkpoint anywhere else, such as one that a run began from, is never touched.
    """

    def __init__(self, root: Path, *, num_newest: int = 2) -> None:
        if num_newest < 1:
            raise ValueError(f"num_newest={num_newest} must be at least 1")
        self.root = root
        self._num_newest = num_newest
        self._copy = HostCopy()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._under_way: Future[str | None] | None = None
        self._failures: list[str] = []
        self._verified: set[Path] = set()

    def folders(self) -> list[Path]:
        """Every checkpoint folder of the run, finished or not."""
        if not self.root.is_dir():
            return []
        return sorted(path for path in self.root.iterdir() if NAME.fullmatch(path.name) and not path.is_symlink())

    def save(self, state: dict[str, Any], *, step: int, config: dict[str, Any], score: float | None = None) -> None:
        """Copy `state` and go on; the copy is written meanwhile. An unfinished write is waited for first.

        score: less is better; the checkpoint with the least is kept. A write that failed earlier warns now.
        """
        self.wait()
        copied = self._copy.take(state)
        self._under_way = self._thread.submit(self._write, copied, step, plain(config, name="config"), score)

    def wait(self) -> str | None:
        """Wait for the write that is under way; the reason, also given as a warning, if it failed."""
        if self._under_way is None:
            return None
        failure, self._under_way = self._under_way.result(), None
        if failure is not None:
            self._failures.append(failure)
            warnings.warn(failure, stacklevel=3)
        return failure

    def close(self) -> list[str]:
        """Wait, and let the thread go; every write that failed, in words."""
        self.wait()
        self._thread.shutdown()
        return list(self._failures)

    def _write(self, state: dict[str, Any], step: int, config: dict[str, Any], score: float | None) -> str | None:
        folder = self._free_folder(step)
        try:
            checkpoint.write(folder, state, step=step, config=config, score=score)
            checkpoint.verify(folder)
        except (OSError, checkpoint.CheckpointError) as error:
            checkpoint.delete(folder)
            return (
                f"the checkpoint of step {step} could not be written to {self.root} ({error}); "
                "the older ones are kept, and the next one will be tried"
            )
        self._verified.add(folder)
        thin_out(self.folders(), self._num_newest, self._verified)
        return None

    def _free_folder(self, step: int) -> Path:
        """A folder that does not exist: a checkpoint of the same step stays as it is until its successor is good."""
        name = f"step-{step:08d}"
        taken = {path.name for path in self.folders()}
        free = next(number for number in range(len(taken) + 1) if (f"{name}.{number}" if number else name) not in taken)
        return self.root / (f"{name}.{free}" if free else name)


def thin_out(
    folders: list[Path],
    num_newest: int,
    verified: set[Path],
    *,
    is_good: Callable[[Path], bool] | None = None,
    delete: Callable[[Path], None] = checkpoint.delete,
) -> None:
    """Delete what is neither among the `num_newest` newest good checkpoints nor the best good one.

    Nothing goes before so many newer ones were read back and found undamaged; `verified` remembers which
    were, so that each is read for that once in the life of a process. is_good: what is done instead of reading back.
    """
    looks = is_good or _is_undamaged

    def good(folder: Path) -> bool:
        if folder not in verified and looks(folder):
            verified.add(folder)
        return folder in verified

    manifests = {}
    for folder in folders:
        try:
            manifests[folder] = checkpoint.read_manifest(folder)
        except checkpoint.CheckpointError:
            continue
    if len(manifests) < num_newest:
        return
    by_age = sorted(manifests, key=lambda folder: _age(folder, manifests[folder]), reverse=True)
    kept = list(itertools.islice((folder for folder in by_age if good(folder)), num_newest))
    if len(kept) < num_newest:
        return
    scored = [folder for folder, manifest in manifests.items() if manifest.get("score") is not None]
    by_score = sorted(scored, key=lambda folder: (manifests[folder]["score"], _age(folder, manifests[folder])))
    kept += itertools.islice((folder for folder in by_score if good(folder)), 1)
    for folder in folders:
        if folder not in kept:
            delete(folder)
            verified.discard(folder)


def _is_undamaged(folder: Path) -> bool:
    try:
        checkpoint.verify(folder)
    except checkpoint.CheckpointError:
        return False
    return True


def _age(folder: Path, manifest: dict[str, Any]) -> tuple[int, str]:
    return int(manifest["step"]), folder.name
