"""Samples that came after release, read from a file of arrays: checked against the parts of a batch of training.

Errors name what is other than in training. Knows no tasks: those with files of another kind read them themselves.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

if TYPE_CHECKING:
    from trainable.task import Examples

HOW = "numpy.savez(path, inputs, labels) writes one"


@dataclass(frozen=True)
class Fresh:
    """`examples` as a split has them. Where they are not `labelled`, what stands for the labels means nothing.
    `remarks`: what a reader should know of how they were read."""

    examples: Examples
    labelled: bool
    remarks: tuple[str, ...] = ()


def parts_of(examples: Examples) -> list[dict[str, Any]]:
    """Type and shape of each part of a sample, as plain values."""
    sample = tuple(part[0] for part in examples) if isinstance(examples, tuple) else examples[0]
    parts = [torch.as_tensor(part) for part in sample]
    return [{"dtype": str(part.dtype).removeprefix("torch."), "shape": list(part.shape)} for part in parts]


def read_arrays(path: Path, parts: Sequence[Mapping[str, Any]], num_classes: int | None = None) -> Fresh:
    """An .npz file with an array for each part of a batch, in their order, or one with the inputs alone.

    num_classes: of the last part, where that is a class. Raises ValueError in words for a file that cannot be read,
    for other types and shapes, values that are not finite, no samples, and unknown labels.
    """
    arrays = _arrays(path)
    if len(arrays) not in (1, len(parts)):
        raise ValueError(
            f"{path} holds {len(arrays)} arrays ({', '.join(arrays)}); give {len(parts)}, one for each part of a batch "
            "in that order, or one with the inputs alone"
        )
    found = [_part(path, name, array, part) for (name, array), part in zip(arrays.items(), parts, strict=False)]
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(f"the arrays in {path} differ in the number of samples: {said}; give each sample all parts")
    num = len(found[0])
    if num == 0:
        raise ValueError(f"{path} holds no samples; give at least one")
    labelled = len(found) == len(parts)
    if labelled and num_classes is not None:
        unknown = sorted({int(label) for label in found[-1].unique()} - set(range(num_classes)))
        if unknown:
            said = ", ".join(map(str, unknown[:5]))
            raise ValueError(
                f"{list(arrays)[-1]} in {path} has labels that training did not: {said}; known are 0 to "
                f"{num_classes - 1}"
            )
    for part in parts[len(found) :]:
        found.append(torch.zeros((num, *part["shape"]), dtype=getattr(torch, part["dtype"])))
    return Fresh(tuple(found), labelled)


def _arrays(path: Path) -> dict[str, numpy.ndarray[Any, Any]]:
    if not path.is_file():
        what = "a folder" if path.is_dir() else "not there"
        raise ValueError(f"{path} is {what}; this task's fresh samples are an .npz file ({HOW})")
    try:
        with numpy.load(path, allow_pickle=False) as file:
            if not isinstance(file, numpy.lib.npyio.NpzFile):
                raise ValueError("it is a single array")
            return {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if "allow_pickle" in reason:
            reason = "it is none, or holds Python objects, which are not loaded"
        raise ValueError(f"{path} is no .npz file of arrays ({reason}); {HOW}") from error


def _part(path: Path, name: str, array: numpy.ndarray[Any, Any], part: Mapping[str, Any]) -> Tensor:
    """The array as training has this part, if nothing is lost by it."""
    # numpy has no bfloat16
    wanted, shape = numpy.dtype({"bfloat16": "float32"}.get(part["dtype"], part["dtype"])), tuple(part["shape"])
    if array.ndim == 0 or array.shape[1:] != shape:
        raise ValueError(
            f"{name} in {path} has the shape {_shape(array.shape)}; in training it was {_shape(('N', *shape))}"
        )
    if array.dtype.kind not in "iufb" or (array.dtype.kind == "f" and wanted.kind != "f"):
        raise ValueError(f"{name} in {path} is of type {array.dtype}; in training it was {wanted}")
    if array.dtype.kind == "f" and not numpy.isfinite(array).all():
        bad = int((~numpy.isfinite(array)).sum())
        raise ValueError(f"{name} in {path} has {bad:,} values that are missing or infinite; mend or leave them out")
    if wanted.kind in "iu" and array.size:
        limits = numpy.iinfo(wanted)
        if array.min() < limits.min or array.max() > limits.max:
            raise ValueError(
                f"{name} in {path} has values from {array.min()} to {array.max()}; in training it was {wanted}, which "
                f"ends at {limits.min} and {limits.max}"
            )
    return torch.from_numpy(numpy.ascontiguousarray(array.astype(wanted))).to(getattr(torch, part["dtype"]))


def _shape(sizes: Sequence[Any]) -> str:
    return "(" + ", ".join(map(str, sizes)) + ("," if len(sizes) == 1 else "") + ")"
