"""`from sweeps import search` gives a module whose call is the function in api.py: a command and its function are one
name, whichever was imported first.

Knows no command.
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """A module `sweeps.<name>`; calling it calls `sweeps.api.<name>`, which is only imported then."""

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return self._function()(*arguments, **settings)

    def _function(self) -> Any:
        return getattr(import_module("sweeps.api"), self.__name__.rpartition(".")[2])


def make_callable(name: str) -> None:
    """Of the module with this name, as it is imported."""
    sys.modules[name].__class__ = CallableModule
