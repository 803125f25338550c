"""torchvision's classification models by name: with a head for so many classes, pretrained, and what of them is head.

Knows no task.
"""

from __future__ import annotations

import hashlib
import re
import urllib.error
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models

from trainable.config import unknown_name
from trainable.seeding import isolated

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, which the pretrained weights expect


def backbone(arch: str, num_classes: int, size: int, *, pretrained: bool) -> nn.Module:
    """A model of (B, 3, size, size) float to (B, num_classes), its weights new, or all but the head's pretrained.

    Raises ValueError for a name that torchvision does not have, a size that the model cannot take, and weights that
    are neither in torch's cache nor to be had.
    """
    known = models.list_models(module=models)
    if arch not in known:
        raise ValueError(unknown_name("task.arch", arch, known))
    settings: dict[str, Any] = {"num_classes": num_classes}
    if arch in ("googlenet", "inception_v3"):  # their second heads would make outputs of another kind in training
        settings |= {"aux_logits": False, "init_weights": True}
    elif arch.startswith("vit_"):
        settings["image_size"] = size
    elif arch.startswith("maxvit"):
        settings["input_size"] = (size, size)
    try:
        model: nn.Module = models.get_model(arch, **settings)
    except (ValueError, AssertionError, RuntimeError) as error:
        raise ValueError(f"task.arch={arch} cannot take images of task.size={size} pixels: {error}") from error
    if pretrained:
        _fill(model, arch, size)
    return model


def head_of(model: nn.Module) -> str:
    """The name of the layer that gives the classes: the last one that is linear or a convolution."""
    *_, last = (name for name, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d))
    return str(last)


def all_but_head(arch: str, num_classes: int, size: int) -> list[str]:
    """The names of the modules and parameters that are not the head, none inside another."""
    # Without weights, which take time; only RegNet looks at values while it is made.
    with isolated(), torch.device("cpu" if arch.startswith("regnet") else "meta"):
        model = backbone(arch, num_classes, size, pretrained=False)
    found: list[str] = []
    name, module = "", model
    for step in head_of(model).split("."):
        found += [f"{name}{parameter}" for parameter, _ in module.named_parameters(recurse=False)]
        found += [f"{name}{child}" for child, inner in module.named_children() if child != step and inner.state_dict()]
        name, module = f"{name}{step}.", module.get_submodule(step)
    return found


def _fill(model: nn.Module, arch: str, size: int) -> None:
    """Pretrained weights for all but the head."""
    head = head_of(model)
    own = model.state_dict()
    saved = {
        name: tensor
        for name, tensor in _pretrained(arch).items()
        if not name.startswith(f"{head}.") and not name.startswith(("aux1.", "aux2.", "AuxLogits."))
    }
    wrong = [name for name, tensor in saved.items() if name not in own or own[name].shape != tensor.shape]
    missing = [name for name in own if name not in saved and not name.startswith(f"{head}.")]
    if wrong or missing:
        raise ValueError(
            f"the pretrained weights of {arch} do not fit images of task.size={size} pixels "
            f"({', '.join((wrong + missing)[:3])}); try task.size=224"
        )
    model.load_state_dict({**own, **saved})


def _pretrained(arch: str) -> dict[str, Tensor]:
    """The best weights that torchvision has, from torch's cache or from their place; verified, tensors only."""
    url = models.get_model_weights(arch).DEFAULT.url
    path = Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2])
    advice = f"put {url} there as it is, or set task.pretrained=false"
    try:
        found = torch.hub.load_state_dict_from_url(
            url, map_location="cpu", progress=True, check_hash=True, weights_only=True
        )
    except (urllib.error.URLError, OSError) as error:
        raise ValueError(f"the pretrained weights of {arch} are not in {path}: {advice}; {error}") from error
    except Exception as error:  # whatever a damaged file makes of torch.load, or a download of its hash
        raise ValueError(f"the pretrained weights in {path} are damaged: remove them and {advice}; {error}") from error
    wanted = re.search(r"-([0-9a-f]{8,})\.", path.name)
    if wanted and not hashlib.sha256(path.read_bytes()).hexdigest().startswith(wanted[1]):
        raise ValueError(f"the pretrained weights in {path} are damaged: remove them and {advice}")
    return dict(found)
