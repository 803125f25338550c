"""What a checkpoint may hold: tensors and plain values, which load without running anybody's code.

numpy's scalars and paths turn up in metrics and settings and are made plain; what cannot be is refused by
name when it is saved, not when it is needed again. Knows nothing of files.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

import numpy
import torch
from torch import Tensor

SCALARS: tuple[type[Any], ...] = (bool, int, float, complex, str, bytes)


def plain(value: Any, tensor: Callable[[Tensor], Any] = lambda found: found, *, name: str = "state") -> Any:
    """`value` rebuilt of dicts, lists, tuples, numbers and strings; its tensors are what `tensor` makes of them.

    Raises TypeError that names the first thing of another kind, as in `state['best']['model']`.
    """
    if isinstance(value, Tensor):
        return tensor(value)
    if value is None or type(value) in SCALARS or isinstance(value, torch.dtype | torch.device):
        return value
    if isinstance(value, numpy.generic):  # before the scalars: numpy.float64 is a float, but not a plain one
        return plain(value.item(), tensor, name=name)
    if isinstance(value, PurePath):
        return str(value)
    for kind in SCALARS:
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        items = {
            plain(key, tensor, name=f"a key of {name}"): plain(entry, tensor, name=f"{name}[{key!r}]")
            for key, entry in value.items()
        }
        if not isinstance(value, OrderedDict):
            return items
        # A module's state dict carries the versions of its layers as an attribute; loading asks for them.
        ordered = OrderedDict(items)
        vars(ordered).update(vars(value))
        return ordered
    if isinstance(value, list | tuple):
        entries = [plain(entry, tensor, name=f"{name}[{index}]") for index, entry in enumerate(value)]
        return entries if isinstance(value, list) else tuple(entries)
    raise TypeError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds tensors and plain "
        "values only (numbers, strings, lists, dicts): save its state_dict(), or make it a tensor"
    )
