"""Many trials: a question, a space, an answer. `from sweeps import lr_scan, search`: nothing is imported before."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeps.answers.result import SweepResult as SweepResult
    from sweeps.api import lr_scan as lr_scan
    from sweeps.api import plan_lr_scan as plan_lr_scan
    from sweeps.api import plan_search as plan_search
    from sweeps.api import report as report
    from sweeps.api import search as search

__all__ = ["SweepResult", "lr_scan", "plan_lr_scan", "plan_search", "report", "search"]


def __getattr__(name: str) -> Any:
    if name in ("lr_scan", "report", "search"):  # the module of the command, which can be called
        return import_module(f"sweeps.{name}")
    if name in __all__:
        return getattr(import_module("sweeps.answers.result" if name == "SweepResult" else "sweeps.api"), name)
    raise AttributeError(f"module 'sweeps' has no attribute {name!r}")
