"""The tutorial's seven questions (先看排查顺序), asked of one batch, cheapest and most common first.

The batch goes through the task's own functions; the step is the real loop's.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trainable import loop
from trainable.checks.findings import Fault, NotAsked, Question, raised
from trainable.checks.subject import Subject, advance_to, first_samples, forward
from trainable.checks.words import describe, named_tensors, shapes, tensors_in

EXPLODING_NORM = 1e4  # of the mean loss; the tutorial's lab, whose targets are 50 times too large, has 38.8
SUM_TOLERANCE = 1e-2  # relative; bf16 has 8 bits
WARM_STEPS = 20  # a fresh loss scale may skip this many
DEVICE_WORDS = ("same device", "expected device", "is on device", "is on cuda", "is on cpu")


def batch_loads(subject: Subject) -> str:
    subject.splits = subject.load() if subject.load else subject.task.splits(subject.config.data_seed)
    for name, examples in (("train", subject.splits.train), ("val", subject.splits.val)):
        sizes = [len(part) for part in examples] if isinstance(examples, tuple) else []
        if len(set(sizes)) > 1:
            raise Fault(
                f"the parts of {name} have {', '.join(map(str, sizes))} samples",
                "give every tensor of splits() the same first dimension: one entry a sample",
            )
    batch: Any = first_samples(subject.splits.train, subject.config.batch_size)
    try:
        subject.run = loop.start(subject.task, subject.config, subject.splits)
    except Exception as error:  # of model() or the settings: the next question's
        subject.start_error = error
    else:
        batch = next(iter(subject.run.train.epoch(0, 0)))
    if not isinstance(batch, tuple | list) or not all(isinstance(part, Tensor) for part in batch):
        raise Fault(
            f"a batch is {type(batch).__name__}", "make every sample a tuple of tensors, such as (image, label)"
        )
    stream = torch.Generator(device=batch[0].device).manual_seed(subject.config.seed)
    subject.batch = subject.task.augment(tuple(batch), stream)
    for position, part in enumerate(subject.batch):
        num_bad = int((~torch.isfinite(part)).sum()) if part.is_floating_point() else 0
        if num_bad:
            raise Fault(
                f"part {position} of the batch holds {num_bad} values that are NaN or infinite",
                "look for empty cells and divisions by zero in the data; drop or fill them in splits()",
            )
    return ", ".join(describe(part) for part in subject.batch)


def shapes_fit(subject: Subject) -> str:
    if subject.start_error is not None:
        raise subject.start_error
    run = subject.run
    run.state.train_mode()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            outputs, loss = forward(run, subject.batch)
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError) as error:
            if not any(words in str(error) for words in DEVICE_WORDS):
                raise Fault(raised(error), _shape_advice(error)) from error
            subject.device_error = error  # the next question's
            raise NotAsked("not decided: model and data are not on one device, see the next line") from error
    for warning in said:
        if "target size" in str(warning.message):
            raise Fault(
                f"outputs {shapes(outputs)} and targets {shapes(subject.batch[-1])} differ in shape and are broadcast",
                "make the shapes equal, e.g. outputs.squeeze(1): broadcast, every output meets every target",
            )
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise Fault(f"loss() returns {shapes(loss)}", "return one number: the sum of the losses, reduction='sum'")
    weight = float(run.task.weight(subject.batch))
    if not (weight > 0 and math.isfinite(weight)):
        raise Fault(f"weight() returns {weight}", "return what the loss is summed over: samples, or tokens that count")
    subject.loss = loss / weight
    _is_a_sum(run, subject.batch)
    return f"outputs {shapes(outputs)}, loss a scalar summed over {weight:g}"


def one_device(subject: Subject) -> str:
    if subject.start_error is not None:
        raise NotAsked("there is no model to look at")
    places: dict[str, list[str]] = {}
    for name, tensor in named_tensors(subject.run.state.model):
        places.setdefault(str(tensor.device), []).append(name)
    for position, part in enumerate(subject.batch):
        places.setdefault(str(part.device), []).append(f"part {position} of the batch")
    if len(places) > 1 or subject.device_error is not None:
        where = "; ".join(f"{device}: {', '.join(names[:3])}" for device, names in places.items())
        said = f"; {raised(subject.device_error)}" if subject.device_error is not None else ""
        raise Fault(
            where + said,
            "register tensors of the model with register_buffer, so that .to(device) moves them, and make new ones "
            "with device=batch[0].device",
        )
    return f"all on {next(iter(places))}"


def loss_is_finite(subject: Subject) -> str:
    value = float(subject.loss.detach())
    if not math.isfinite(value):
        raise Fault(
            f"the loss is {value}",
            "look for log(0), a division by zero or a square root of 0 in model and loss; normalise the inputs; "
            "with precision=fp16 try bf16",
        )
    return f"{value:.4g} per unit of weight"


def gradients_are_sound(subject: Subject) -> str:
    model = subject.run.state.model
    if not subject.loss.requires_grad:
        raise Fault(
            "the loss is cut off from the model: it has no gradient at all",
            "remove .detach(), .item(), .numpy() and no_grad() between the model and the loss; argmax has no gradient",
        )
    model.zero_grad(set_to_none=True)
    subject.loss.backward()
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    without = [name for name, parameter in trained.items() if parameter.grad is None]
    if without:
        raise Fault(
            f"{len(without)} of {len(trained)} parameters get no gradient: {', '.join(without[:5])}",
            "use them in forward(), leave them out of the model, or name them in freeze",
        )
    norm = float(
        nn.utils.get_total_norm([parameter.grad for parameter in trained.values() if parameter.grad is not None])
    )
    model.zero_grad(set_to_none=True)
    if not math.isfinite(norm):
        raise Fault(
            f"the gradient norm is {norm}, though the loss is finite",
            "look for a square root, a norm or a division at 0: its value is finite there, its slope is not",
        )
    if norm > EXPLODING_NORM:
        raise Fault(
            f"the gradient norm is {norm:.4g}: it explodes",
            "normalise inputs and targets, use normalisation layers or smaller weights; clip_norm only hides it",
        )
    if norm == 0:
        raise Fault("every gradient is 0", "look for dead units, a constant output or a loss that ignores the outputs")
    return f"all {len(trained)} parameters have one, norm {norm:.4g}"


def parameters_move(subject: Subject) -> str:
    state = subject.run.state
    before = {name: tensor.detach().clone() for name, tensor in named_tensors(state.model)}
    num_steps = WARM_STEPS if state.scaler.is_enabled() else 1
    num_steps = min(num_steps, subject.run.total_steps)
    advance_to(subject.run, num_steps)
    moved = {name for name, tensor in named_tensors(state.model) if not torch.equal(tensor, before[name])}
    parameters = dict(state.model.named_parameters())
    trained = [name for name, parameter in parameters.items() if parameter.requires_grad]
    still = [name for name in trained if name not in moved]
    # A zero moves under any update, so a few that moved prove nothing; one without slope has no reason to move.
    stuck = [name for name in still if (slope := parameters[name].grad) is not None and bool(slope.any())]
    astray = [name for name, parameter in parameters.items() if not parameter.requires_grad and name in moved]
    if astray:
        raise Fault(
            f"frozen parameters moved: {', '.join(astray[:5])}", "look for code in the model that writes to them"
        )
    taken = f"in {num_steps} step{'s' * (num_steps > 1)}"
    if 2 * len(stuck) > len(trained) or len(still) == len(trained):
        raise Fault(
            f"{len(still)} of {len(trained)} parameters do not move {taken} with lr={subject.config.lr:g}",
            "raise lr, or shorten warmup_steps: an update below the last bit of a weight changes nothing",
        )
    return f"{len(trained) - len(still)} of {len(trained)} moved {taken}"


def evaluation_is_still(subject: Subject) -> str:
    run = subject.run
    model = run.state.evaluated
    batch = next(iter(run.val.epoch(0, 0)))
    before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    model.eval()
    with _modes_in_forward(model) as training, torch.inference_mode():
        first, loss = forward(run, batch, model)
        second, _ = forward(run, batch, model)
    training |= {name for name, module in model.named_modules() if module.training}
    advice = "leave train() and eval() to the loop; write dropout as nn.Dropout, or pass training=self.training"
    if training:
        raise Fault(
            f"these stay in training mode under eval(): {', '.join(sorted(training)[:5]) or 'the model'}", advice
        )
    changed = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    if changed:
        raise Fault(f"evaluation changes the model: {', '.join(changed[:5])}", "write to buffers only if self.training")
    if any(tensor.requires_grad for tensor in [*tensors_in(first), loss]):
        raise Fault(
            "evaluation builds a graph", "remove enable_grad() and inference_mode(False) from the task and model"
        )
    pairs = zip(tensors_in(first), tensors_in(second), strict=True)
    if not all(torch.allclose(one, other, rtol=0, atol=0, equal_nan=True) for one, other in pairs):
        raise Fault("two evaluations of one batch differ, so something is still random", advice)
    return "two evaluations are equal, nothing moves, no graph, dropout off"


LOADS, FIT = "Does one batch load?", "Do shapes and dtypes fit model and loss?"
DEVICE, FINITE = "Are model and data on one device?", "Is the loss finite?"
GRADIENTS, MOVE, STILL = "Are the gradients sound?", "Do parameters move after a step?", "Do eval() and no_grad() work?"

QUICK: tuple[Question[Subject], ...] = (
    Question(LOADS, batch_loads, advice="mend splits() or the Dataset of the task"),
    Question(FIT, shapes_fit, (LOADS,), advice="mend model(), predict() or loss() of the task, or the setting named"),
    Question(DEVICE, one_device, (LOADS,)),
    Question(FINITE, loss_is_finite, (FIT, DEVICE)),
    Question(GRADIENTS, gradients_are_sound, (FINITE,)),
    Question(MOVE, parameters_move, (GRADIENTS,)),
    Question(STILL, evaluation_is_still, (FIT, DEVICE)),
)


def _is_a_sum(run: loop.Training, batch: tuple[Tensor, ...]) -> None:
    """A mean would make the step smaller by the batch size; a sum over a batch is the sum over its halves."""
    half = len(batch[0]) // 2
    if half == 0:
        return
    model = run.state.model
    model.eval()
    parts = (batch, tuple(part[:half] for part in batch), tuple(part[half:] for part in batch))
    with torch.no_grad():
        whole, first, second = (float(forward(run, part)[1]) for part in parts)
    run.state.train_mode()
    weights = [float(run.task.weight(part)) for part in parts[1:]]
    mean = (first * weights[0] + second * weights[1]) / max(sum(weights), 1e-30)
    is_sum = math.isclose(whole, first + second, rel_tol=SUM_TOLERANCE)
    if not is_sum and math.isclose(whole, mean, rel_tol=SUM_TOLERANCE):
        raise Fault(
            f"loss() returns a mean: {whole:.4g} for the batch, {first:.4g} and {second:.4g} for its halves",
            "return the sum (reduction='sum'); the loop divides by weight(), whatever the size of the batch",
        )


@contextmanager
def _modes_in_forward(model: nn.Module) -> Iterator[set[str]]:
    """The names of the modules that are in training mode while they compute."""
    training: set[str] = set()

    def note(name: str) -> Any:
        return lambda module, _: training.add(name or type(module).__name__) if module.training else None

    handles = [module.register_forward_pre_hook(note(name)) for name, module in model.named_modules()]
    try:
        yield training
    finally:
        for handle in handles:
            handle.remove()


def _shape_advice(error: Exception) -> str:
    text = str(error)
    if "out of bounds" in text or "out of range" in text:
        return "labels must be 0 up to the number of the model's outputs - 1: count the classes, and from 0"
    if "dtype" in text or "scalar type" in text:
        return "class labels must be int64 (.long()); inputs, and the targets of a regression, float32 (.float())"
    if any(word in text for word in ("shape", "size", "dim", "channels")):
        return "print the shapes in predict() and loss(), and make the model's first and last layer fit the data"
    return "mend model(), predict() or loss() of the task where the message points to"
