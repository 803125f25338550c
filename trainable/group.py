"""The workers that train one run together: who takes which part of a batch, and how parts become the whole again.

`Alone` is the group of one, which does nothing and costs nothing. Sums, not means: each part's loss is divided by the
weight of the whole step, so the sum of the parts' gradients is the full batch's. Knows no Ray.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from trainable import memory
from trainable.seeding import derive_seed, seed_everything

if TYPE_CHECKING:
    from trainable.task import Batch

_WELL, _OUT_OF_MEMORY, _FAILED = 0, 1, 2


class Workers(Protocol):
    """What the loop asks of a group."""

    rank: int
    size: int

    def part(self, batch: Batch) -> Batch:
        """This worker's share of a batch; empty where there are more workers than samples."""
        ...

    def largest_part(self, num_samples: int) -> int:
        """Of a batch of so many samples."""
        ...

    def together(self) -> AbstractContextManager[object]:
        """What each worker does inside, all do, or all fail: out of memory only where nothing worse happened."""
        ...

    def decide(self, wish: bool) -> bool:
        """The first worker's wish."""
        ...

    def seed(self, seed: int, step: int) -> None:
        """Give the other workers random numbers of their own for this step; the first goes on with the run's."""
        ...

    def sum_gradients(self, parameters: list[Tensor], loss: Tensor) -> Tensor:
        """Make each gradient the sum over all workers; the sum of their losses."""
        ...

    def summed(self, sums: Mapping[str, Any], weight: Any) -> tuple[dict[str, float], float]:
        """Sums over samples, and their weight, of all workers."""
        ...

    def check_equal(self, value: float) -> None:
        """Raises RuntimeError where workers that shall be alike are not."""
        ...


class Alone:
    """One worker, this process."""

    rank = 0
    size = 1
    _nothing: AbstractContextManager[object] = contextlib.nullcontext()

    def part(self, batch: Batch) -> Batch:
        return batch

    def largest_part(self, num_samples: int) -> int:
        return num_samples

    def together(self) -> AbstractContextManager[object]:
        return self._nothing

    def decide(self, wish: bool) -> bool:
        return wish

    def seed(self, seed: int, step: int) -> None:
        pass

    def sum_gradients(self, parameters: list[Tensor], loss: Tensor) -> Tensor:
        return loss

    def summed(self, sums: Mapping[str, Any], weight: Any) -> tuple[dict[str, float], float]:
        return {name: float(value) for name, value in sums.items()}, float(weight)

    def check_equal(self, value: float) -> None:
        pass


class Group:
    """This process among those of torch.distributed's default group, which has been made and ends with the process.

    words: a group over gloo for what the hosts tell each other; None: the default one is of that kind. So no step waits
    for a GPU for its sake.
    """

    def __init__(self, words: Any = None) -> None:
        import torch.distributed as distributed

        self._distributed = distributed
        self._words = words
        self.rank: int = distributed.get_rank()
        self.size: int = distributed.get_world_size()

    def part(self, batch: Batch) -> Batch:
        return tuple(torch.tensor_split(tensor, self.size)[self.rank] for tensor in batch)

    def largest_part(self, num_samples: int) -> int:
        return -(-num_samples // self.size)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            mine = _OUT_OF_MEMORY if memory.is_out_of_memory(error) else _FAILED
            worst, words = self._worst(mine, f"{type(error).__name__}: {error}")
            if worst > mine:
                raise RuntimeError(words) from error
            raise
        worst, words = self._worst(_WELL, "")
        if worst == _OUT_OF_MEMORY:
            raise torch.OutOfMemoryError(words)
        if worst == _FAILED:
            raise RuntimeError(words)

    def decide(self, wish: bool) -> bool:
        said = torch.tensor([wish], dtype=torch.uint8)
        self._distributed.broadcast(said, src=0, group=self._words)
        return bool(said.item())

    def seed(self, seed: int, step: int) -> None:
        if self.rank:
            seed_everything(derive_seed(seed, "worker", self.rank, step))

    @torch.no_grad()
    def sum_gradients(self, parameters: list[Tensor], loss: Tensor) -> Tensor:
        """One all-reduce for each kind of number; which gradients there are is told between the hosts. The device is
        not waited for."""
        there = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
        self._distributed.all_reduce(there, group=self._words)
        kinds: dict[torch.dtype, list[Tensor]] = {}
        try:
            for parameter, count in zip(parameters, there.tolist(), strict=True):
                if count:
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    elif parameter.grad.is_sparse:
                        parameter.grad = parameter.grad.to_dense()
                    kinds.setdefault(parameter.grad.dtype, []).append(parameter.grad)
            flats = [torch.cat([gradient.reshape(-1) for gradient in gradients]) for gradients in kinds.values()]
        except torch.OutOfMemoryError as error:  # the others are under way: no smaller piece helps
            raise memory.OutOfMemory(
                f"there is no memory left to sum the workers' gradients in ({error}); a smaller model, or one worker"
            ) from error
        total = loss.detach().double()  # one kind everywhere; an empty part has no loss to take its kind from
        self._distributed.all_reduce(total)
        for flat, gradients in zip(flats, kinds.values(), strict=True):
            self._distributed.all_reduce(flat)
            pieces = flat.split([gradient.numel() for gradient in gradients])
            torch._foreach_copy_(
                gradients, [piece.view_as(gradient) for piece, gradient in zip(pieces, gradients, strict=True)]
            )
        return total.to(loss.dtype)

    def summed(self, sums: Mapping[str, Any], weight: Any) -> tuple[dict[str, float], float]:
        mine = ({name: float(value) for name, value in sums.items()}, float(weight))
        total: dict[str, float] = {}
        weights = 0.0
        for found, weight_there in self._all(mine):
            weights += weight_there
            for name, value in found.items():
                total[name] = total.get(name, 0.0) + value
        return total, weights

    def check_equal(self, value: float) -> None:
        found = self._all(value)
        if any(other != found[0] and not (other != other and found[0] != found[0]) for other in found):
            raise RuntimeError(f"the workers of this trial no longer have the same weights: their norms are {found}")

    def _worst(self, mine: int, words: str) -> tuple[int, str]:
        """The worst that happened to any worker, and how those put it to whom it did."""
        worst = torch.tensor([mine], dtype=torch.int32)
        self._distributed.all_reduce(worst, op=self._distributed.ReduceOp.MAX, group=self._words)
        found = int(worst.item())
        if found == _WELL:
            return found, ""
        told = [text for state, text in self._all((mine, words)) if state == found]
        return found, f"another worker of this trial: {told[0]}"

    def _all(self, mine: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        self._distributed.all_gather_object(found, mine, group=self._words)
        return found
