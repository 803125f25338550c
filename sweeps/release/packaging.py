"""A model as an MLflow model folder without pickle: a graph that torch.export made (pt2), or, where it makes none, the
weights and the task's name. Loading it back.

Knows no sweeps and no servers.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeps.tracking.client import import_client
from trainable.files import sync_folder
from trainable.task import load_task

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainable.release.export import Call

MODEL = "model"
FLAVOR = "steadysweep"  # in the file MLmodel of a folder that holds weights alone
WEIGHTS = "weights.pt"
RELATIVE_TOLERANCE = 1e-4  # of the largest output, or of 1
NO_PICKLE = {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
LEAST_ROOM = 2**16  # bytes; what is left of a disk on which something did not fit
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Packed:
    """A model folder. kind: "pt2" or "weights"; reason: of several words, why it is not pt2.

    max_difference: the largest of any output between the model and what was loaded back in a process of its own, by
    batches of several sizes; tolerance: what it may be at most.
    """

    kind: str
    reason: str | None
    max_difference: float
    tolerance: float
    batch_sizes: tuple[int, ...]


def pack(
    folder: Path,
    model: nn.Module,
    call: Call | str,
    task: str,
    settings: Mapping[str, Any],
    batches: Sequence[tuple[Tensor, ...]],
) -> Packed:
    """Make `folder` with `model`, which is on the CPU and in eval(), and load it back in a process of its own.

    call: how it is called, or why that cannot be told; batches: what it is called with, of several sizes.
    Raises ValueError where not even the weights give the same outputs again.
    """
    reason = call if isinstance(call, str) else None
    sizes = tuple(len(batch[0]) for batch in batches)
    if not isinstance(call, str):
        reason = _save_graph(folder, model, call)
        if reason is None:
            apart, tolerance, problem = _compare(folder, model, batches)
            if problem is None and apart <= tolerance:
                return Packed("pt2", None, apart, tolerance, sizes)
            reason = problem or (
                f"the graph's outputs differ from the model's by {apart:.3g}, more than {tolerance:.3g}, by batches "
                f"of {', '.join(map(str, sizes))}"
            )
        _clear(folder)
    _save_weights(folder, model, task, settings)
    apart, tolerance, problem = _compare(folder, model, batches)
    if problem is not None or apart > tolerance:
        raise ValueError(
            f"the model does not give the same outputs from its weights ({problem or f'they differ by {apart:.3g}'}); "
            "look for state that is neither a parameter nor a buffer of the model"
        )
    return Packed("weights", reason, apart, tolerance, sizes)


def load_folder(folder: Path) -> nn.Module:
    """The model of such a folder, ready to be called, on the CPU and in eval(). A graph refuses eval() and train(): it
    has one mode. Raises ValueError for a folder of another kind, or whose task is not here."""
    import torch

    from trainable.inference import model_with

    flavors = _flavors(folder)
    if "pytorch" in flavors:
        mlflow = _mlflow()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of versions, and of what torch calls old in its own files
            loaded: nn.Module = mlflow.pytorch.load_model(folder.resolve().as_uri())
        return loaded
    if FLAVOR not in flavors:
        raise ValueError(f"{folder} holds {', '.join(flavors) or 'no'} flavor; give a model that was accepted")
    told = flavors[FLAVOR]
    task = load_task(told["task"], json.loads(told["task_settings"]))
    return model_with(task, torch.load(folder / "data" / WEIGHTS, map_location="cpu", weights_only=True))


def size_bytes(folder: Path) -> int:
    """Of the model alone, without what is written beside it."""
    return sum(path.stat().st_size for path in (folder / "data").rglob("*") if path.is_file())


def _mlflow() -> Any:
    """MLflow with its models, told first how to behave."""
    import_client()
    import mlflow.models
    import mlflow.pytorch

    return mlflow


def _flavors(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = _mlflow().models.Model.load(str(folder)).flavors
    except Exception as error:  # a file that is missing, or of anything
        raise ValueError(f"{folder} is no model folder ({type(error).__name__}: {error})") from error
    return found


def _save_graph(folder: Path, model: nn.Module, call: Call) -> str | None:
    """Why it could not be made, None if it is there."""
    import torch

    mlflow = _mlflow()
    try:
        example: Any = call.inputs[0].numpy() if len(call.inputs) == 1 else call.inputs
    except TypeError:  # numpy has no such numbers
        example = call.inputs
    try:
        with _quiet():
            mlflow.pytorch.save_model(
                model,
                str(folder),
                signature=_signature(call),
                input_example=example,
                serialization_format="pt2",
                # Said here, and not found out: that would load the model in yet another process.
                pip_requirements=[f"mlflow=={mlflow.__version__}", f"torch=={torch.__version__.partition('+')[0]}"],
            )
    except OSError:
        raise
    except Exception as error:  # whatever torch.export meets in somebody's model
        check_room(folder, LEAST_ROOM)  # torch tells of a full disk as of positions in its archive
        _clear(folder)
        words = " ".join(str(error).split()).partition(" For more information")[0]
        return f"torch.export refuses it: {type(error).__name__}: {words[:_LONGEST_REASON]}"
    return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What cannot be exported is said by us, in words: torch would print the graph and its own doubts."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _signature(call: Call) -> Any:
    import numpy

    _mlflow()
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    def spec(dtype: Any, shape: tuple[int, ...], name: str | None) -> Any:
        kind = str(dtype).removeprefix("torch.")
        known = numpy.dtype("float32" if kind == "bfloat16" else kind)  # numpy has no bfloat16
        return TensorSpec(known, shape, name)

    def schema(dtypes: Sequence[Any], shapes: Sequence[tuple[int, ...]], word: str) -> Any:
        several = len(shapes) > 1
        return Schema(
            [
                spec(dtype, shape, f"{word}_{number}" if several else None)
                for number, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=True))
            ]
        )

    return ModelSignature(
        inputs=schema([part.dtype for part in call.inputs], call.input_shapes, "input"),
        outputs=schema(call.output_dtypes, call.output_shapes, "output"),
    )


def _save_weights(folder: Path, model: nn.Module, task: str, settings: Mapping[str, Any]) -> None:
    import torch

    (folder / "data").mkdir(parents=True)
    try:
        torch.save(model.state_dict(), folder / "data" / WEIGHTS)
    except RuntimeError:
        check_room(folder, LEAST_ROOM)  # torch tells of a full disk as of positions in its archive
        raise
    told = _mlflow().models.Model()
    told.add_flavor(FLAVOR, weights=f"data/{WEIGHTS}", task=task, task_settings=json.dumps(dict(settings)))
    told.save(str(folder / "MLmodel"))


def _compare(folder: Path, model: nn.Module, batches: Sequence[tuple[Tensor, ...]]) -> tuple[float, float, str | None]:
    """By how much the outputs of what a process of its own loads differ, what they may, and why there are none."""
    import torch

    from trainable.release.export import difference, flat

    sync_folder(folder)
    with tempfile.TemporaryDirectory() as between:
        given, came = Path(between, "given.pt"), Path(between, "came.pt")
        torch.save([list(batch) for batch in batches], given)
        done = subprocess.run(
            [sys.executable, "-m", "sweeps.release.reload", str(folder.resolve()), str(given), str(came)],
            env={**os.environ, **NO_PICKLE},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            sizes = ", ".join(str(len(batch[0])) for batch in batches)
            asked = f"loaded back and called with {sizes} samples at a time" if batches else "loaded back"
            return float("inf"), 0.0, f"{asked}, it fails: {last[:_LONGEST_REASON]}"
        theirs = torch.load(came, weights_only=True)
    apart, largest = 0.0, 1.0
    with torch.inference_mode():
        for batch, outputs in zip(batches, theirs, strict=True):
            ours = flat(model(*batch)) or ()
            apart = max(apart, difference(list(ours), outputs))
            largest = max(
                [largest, *(float(part.abs().max()) for part in ours if part.numel() and part.isfinite().all())]
            )
    return apart, RELATIVE_TOLERANCE * largest, None


def check_room(folder: Path, num_bytes: int) -> None:
    """Raises the OSError of a full disk where less room than that is left beside `folder`."""
    if shutil.disk_usage(folder.parent).free < num_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def _clear(folder: Path) -> None:
    """Take a folder of ours away; under another name first, so that a crash leaves no half of it under this one."""
    if folder.exists():
        doomed = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.part")
        folder.rename(doomed)
        shutil.rmtree(doomed)
