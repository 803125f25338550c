"""The optimizer and its parameter groups: decay, multipliers, freezing.

Knows nothing of the loop or of schedules; a group keeps its own factor on the learning rate.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainable.config import TrainConfig
from trainable.muon import MuonWithAdamW, make_muon

NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
)


def freeze(model: nn.Module, patterns: tuple[str, ...]) -> list[nn.Module]:
    """Stop training what the patterns name; the modules that are frozen whole are returned.

    A frozen module is also kept in eval(): its buffers (BatchNorm's running statistics) are not
    parameters, and would go on moving (tutorial, sixth anti-pattern).
    Raises ValueError for a pattern that names nothing.
    """
    names = [name for name, _ in model.named_parameters()] + [name for name, _ in model.named_modules() if name]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"freeze pattern {pattern!r} matches nothing; names: {', '.join(names[:20])}")
    for name, module in model.named_modules():
        if name and _matches(name, patterns):
            module.requires_grad_(False)
    for name, parameter in model.named_parameters():
        if _matches(name, patterns):
            parameter.requires_grad_(False)
    named = [module for name, module in model.named_modules() if name and _matches(name, patterns)]
    still = {id(inner) for module in named for inner in module.modules()}  # also those without parameters
    return [
        module
        for module in model.modules()
        if id(module) in still
        or (any(True for _ in module.parameters()) and not any(p.requires_grad for p in module.parameters()))
    ]


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def no_decay_names(model: nn.Module) -> set[str]:
    """Biases and the parameters of normalisation layers: decaying them only hurts."""
    names = {name for name, _ in model.named_parameters() if name.rpartition(".")[2] == "bias"}
    for prefix, module in model.named_modules():
        if isinstance(module, NORMS):
            names.update(f"{prefix}.{name}" if prefix else name for name, _ in module.named_parameters(recurse=False))
    return names


def parameter_groups(model: nn.Module, config: TrainConfig) -> list[dict[str, Any]]:
    """Groups for torch.optim: each has its `weight_decay`, its `lr_multiplier`, and whether it holds `matrix` weights.

    Raises ValueError for a multiplier's pattern that names no parameter, and when nothing is left to train.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trained:
        raise ValueError(
            f"nothing is left to train: freeze={list(config.freeze)} and what the task freezes cover every parameter"
        )
    for pattern in config.lr_multipliers:
        if not any(fnmatchcase(name, pattern) for name in trained):
            raise ValueError(
                f"lr_multipliers pattern {pattern!r} matches no trained parameter; "
                f"they are: {', '.join(list(trained)[:20])}"
            )
    spared = set() if config.decay_all else no_decay_names(model)
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for name, parameter in trained.items():
        factor = next((f for pattern, f in config.lr_multipliers.items() if fnmatchcase(name, pattern)), 1.0)
        decay = 0.0 if name in spared else config.weight_decay
        # Only Muon asks; for the others it must not split a group, which costs a kernel launch a step.
        matrix = config.optimizer == "muon" and parameter.ndim == 2 and id(parameter) not in embeddings
        groups.setdefault((factor, decay, matrix), []).append(parameter)
    return [
        {"params": parameters, "lr_multiplier": factor, "weight_decay": decay, "matrix": matrix}
        for (factor, decay, matrix), parameters in groups.items()
    ]


def make_optimizer(model: nn.Module, config: TrainConfig) -> Optimizer:
    """The optimizer over the model's trained parameters, which must be on their device already
    (tutorial, second anti-pattern: model to device, then optimizer).

    lr stays a plain number: the update is not compiled, and fused kernels take it as an argument, so a new
    value recompiles nothing. Raises ValueError where torch lacks the optimizer, or it cannot train this model.
    """
    groups = parameter_groups(model, config)
    for group in groups:
        group["lr"] = config.lr * group["lr_multiplier"]
    parameters = [parameter for group in groups for parameter in group["params"]]
    momentum: dict[str, Any] = {"momentum": config.momentum, "nesterov": config.nesterov}
    adam: dict[str, Any] = {"betas": (config.beta1, config.beta2), "eps": config.eps}
    if config.optimizer == "muon":
        if _can_fuse(torch.optim.AdamW, parameters, config.fused):
            adam["fused"] = True
        return make_muon(groups, config.lr, momentum, adam)
    makers: dict[str, tuple[Any, dict[str, Any]]] = {
        "adamw": (torch.optim.AdamW, adam),
        "adam": (torch.optim.Adam, adam),
        "sgd": (torch.optim.SGD, momentum),
        "rmsprop": (torch.optim.RMSprop, {"momentum": config.momentum, "eps": config.eps}),
    }
    maker, settings = makers[config.optimizer]
    if _can_fuse(maker, parameters, config.fused):
        settings = {**settings, "fused": True}
    return maker(groups, lr=config.lr, **settings)  # type: ignore[no-any-return]


def _can_fuse(maker: Any, parameters: list[nn.Parameter], wanted: bool | None) -> bool:
    """Fused kernels do the whole update in one launch; torch has them for some optimizers and devices."""
    if wanted is False:
        return False
    has_fused = "fused" in inspect.signature(maker).parameters
    possible = has_fused and all(
        parameter.is_floating_point() and parameter.device.type in ("cpu", "cuda", "mps") for parameter in parameters
    )
    if wanted and not possible:
        warnings.warn(f"fused=true, but {maker.__name__} has no fused kernels for this model", stacklevel=3)
    return possible


def named_state(optimizer: Optimizer, model: nn.Module) -> dict[str, dict[str, Any]]:
    """The optimizer's tensors by the name of their parameter.

    torch keeps them by position in the groups, and another weight decay, multiplier or freezing makes other groups:
    the tensors would go to other parameters.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {names[parameter]: dict(values) for parameter, values in optimizer.state.items()}


def load_named_state(optimizer: Optimizer, model: nn.Module, saved: dict[str, dict[str, Any]]) -> None:
    """Put back what `named_state` gave, as copies. The settings, lr first, stay as they are: the config's.

    A parameter without saved tensors starts without, as in a new run.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for inner in optimizer.both if isinstance(optimizer, MuonWithAdamW) else (optimizer,):
        packed = inner.state_dict()["param_groups"]
        state = {
            position: copy.deepcopy(saved[names[parameter]])
            for packed_group, group in zip(packed, inner.param_groups, strict=True)
            for position, parameter in zip(packed_group["params"], group["params"], strict=True)
            if names[parameter] in saved
        }
        # By torch's own door, which brings each tensor to the device and dtype that the kernels want.
        inner.load_state_dict({"state": state, "param_groups": packed})
