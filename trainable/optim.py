"""The optimizer and its parameter groups: decay, multipliers, freezing.

Knows nothing of the loop or of schedules; a group keeps its own factor on the learning rate.
"""

from __future__ import annotations

import inspect
import warnings
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trainable.config import TrainConfig

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
        if name and any(fnmatchcase(name, pattern) for pattern in patterns):
            module.requires_grad_(False)
    for name, parameter in model.named_parameters():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
    return [
        module
        for module in model.modules()
        if any(True for _ in module.parameters()) and not any(p.requires_grad for p in module.parameters())
    ]


def no_decay_names(model: nn.Module) -> set[str]:
    """Biases and the parameters of normalisation layers: decaying them only hurts."""
    names = {name for name, _ in model.named_parameters() if name.rpartition(".")[2] == "bias"}
    for prefix, module in model.named_modules():
        if isinstance(module, NORMS):
            names.update(f"{prefix}.{name}" if prefix else name for name, _ in module.named_parameters(recurse=False))
    return names


def parameter_groups(model: nn.Module, config: TrainConfig) -> list[dict[str, Any]]:
    """Groups for torch.optim: each has its `weight_decay` and its `lr_multiplier`.

    Raises ValueError for a multiplier's pattern that names no parameter, and when nothing is left to train.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trained:
        raise ValueError(f"nothing is left to train: freeze={list(config.freeze)} covers every parameter")
    for pattern in config.lr_multipliers:
        if not any(fnmatchcase(name, pattern) for name in trained):
            raise ValueError(
                f"lr_multipliers pattern {pattern!r} matches no trained parameter; "
                f"they are: {', '.join(list(trained)[:20])}"
            )
    spared = set() if config.decay_all else no_decay_names(model)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in trained.items():
        factor = next((f for pattern, f in config.lr_multipliers.items() if fnmatchcase(name, pattern)), 1.0)
        decay = 0.0 if name in spared else config.weight_decay
        groups.setdefault((factor, decay), []).append(parameter)
    return [
        {"params": parameters, "lr_multiplier": factor, "weight_decay": decay}
        for (factor, decay), parameters in groups.items()
    ]


def make_optimizer(model: nn.Module, config: TrainConfig) -> Optimizer:
    """The optimizer over the model's trained parameters, which must be on their device already
    (tutorial, second anti-pattern: model to device, then optimizer).

    Raises ValueError where torch lacks the optimizer, or where it cannot train this model.
    """
    groups = parameter_groups(model, config)
    momentum: dict[str, Any] = {"momentum": config.momentum, "nesterov": config.nesterov}
    adam: dict[str, Any] = {"betas": (config.beta1, config.beta2), "eps": config.eps}
    makers: dict[str, tuple[Any, dict[str, Any]]] = {
        "adamw": (torch.optim.AdamW, adam),
        "adam": (torch.optim.Adam, adam),
        "sgd": (torch.optim.SGD, momentum),
        "rmsprop": (torch.optim.RMSprop, {"momentum": config.momentum, "eps": config.eps}),
        "muon": (getattr(torch.optim, "Muon", None), momentum),
    }
    maker, settings = makers[config.optimizer]
    if maker is None:
        raise ValueError(f"optimizer={config.optimizer} is not in torch {torch.__version__}; use adamw")
    parameters = [parameter for group in groups for parameter in group["params"]]
    if config.optimizer == "muon" and any(parameter.ndim != 2 for parameter in parameters):
        raise ValueError(
            "optimizer=muon trains matrices only, and this model has other parameters (biases, convolutions); "
            "freeze those or use adamw"
        )
    if _can_fuse(maker, parameters, config.fused):
        settings = {**settings, "fused": True}
    for group in groups:
        group["lr"] = config.lr * group["lr_multiplier"]
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
