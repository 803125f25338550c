"""A space that is a Python function of an Optuna trial: finding it by name, and what its code was.

`module:function` or `path/file.py:function`; it returns the parameters, or asks the trial for them and returns None.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from optuna.trial import BaseTrial

from sweeps.spaces.grammar import text_of
from trainable.task import absolute_spec

KEYS = {"function", "sha256"}


@dataclass(frozen=True)
class FunctionSpace:
    """The function, and the sha256 of the file it is in: trials of different code are no answer to one question."""

    spec: str
    call: Callable[[BaseTrial], Any]
    sha256: str

    def draw(self, trial: BaseTrial) -> dict[str, Any]:
        """The parameters of a trial. Raises ValueError for what no trial can be given."""
        try:
            found = self.call(trial)
        except Exception as error:  # the user's function may raise anything
            raise ValueError(f"the space {self.spec} raised {type(error).__name__}: {error}") from error
        params = dict(trial.params) if found is None else found
        if not isinstance(params, Mapping) or not all(isinstance(name, str) for name in params):
            raise ValueError(f"the space {self.spec} returned {params!r}; it must return a dict of parameters, or None")
        try:
            text_of(params)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the space {self.spec} returned {params!r}, which JSON cannot hold: {error}") from None
        return dict(params)

    def describe(self) -> dict[str, Any]:
        return {"function": self.spec, "sha256": self.sha256}


def is_function(plain: Mapping[str, Any]) -> bool:
    return "function" in plain and set(plain) <= KEYS


def find_function(plain: Mapping[str, Any], *, checked: bool = True) -> FunctionSpace:
    """The space that `{"function": NAME}` means. checked: its code must be what `sha256`, if given, says.

    Raises ValueError in words: file or function missing, import fails, code changed.
    """
    spec = absolute_spec(str(plain["function"]))
    location, colon, name = spec.rpartition(":")
    if not colon:
        raise ValueError(f"space function {spec!r} must be package.module:function or path/file.py:function")
    module = _module(location, spec)
    call = getattr(module, name, None)
    if not callable(call):
        names = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise ValueError(
            f"space function {spec!r}: no function {name!r} there; there are: {', '.join(names) or 'none'}"
        )
    digest = hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest()
    if checked and plain.get("sha256", digest) != digest:
        raise ValueError(
            f"space function {spec!r}: its code is not what it was when the sweep began "
            f"({plain['sha256'][:8]} -> {digest[:8]}); restore it, or start a new sweep"
        )
    return FunctionSpace(spec, call, digest)


def _module(location: str, spec: str) -> ModuleType:
    try:
        if not location.endswith(".py"):
            return importlib.import_module(location)
        path = Path(location)
        if not path.is_file():
            raise ValueError(f"space function {spec!r}: there is no file {path}")
        name = f"{path.stem}_{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"  # changed code is another module
        if name not in sys.modules:
            found = importlib.util.spec_from_file_location(name, path)
            assert found is not None
            assert found.loader is not None
            module = importlib.util.module_from_spec(found)
            found.loader.exec_module(module)
            sys.modules[name] = module
        return sys.modules[name]
    except ValueError:
        raise
    except Exception as error:  # the user's file may raise anything while it is imported
        raise ValueError(f"space function {spec!r}: importing it failed: {type(error).__name__}: {error}") from error
