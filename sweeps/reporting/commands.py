"""The commands that open a sweep elsewhere: MLflow's pages, Optuna's dashboard, its report anew, its resume.

As text: nothing is started, and what may not be installed says how to get it.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from sweeps.record.home import dashboard_address
from sweeps.record.store import Folder
from sweeps.reporting.facts import Facts
from sweeps.running.resume import resume_command

PAGES = "#/experiments?workflowType=machine_learning"  # MLflow's pages for training; they would open on those for chats


def mlflow_command(uri: str) -> str:
    """What opens MLflow's pages on these runs."""
    if uri.startswith("http"):
        return f"open {uri.rstrip('/')}/{PAGES}"
    return f'mlflow ui --backend-store-uri "{uri}"  # then open http://127.0.0.1:5000/{PAGES}'


def dashboard_command(folder: Folder) -> str:
    """What opens Optuna's dashboard on the ledger, which is a study of Optuna's like any other."""
    line = f"optuna-dashboard {shlex.quote(dashboard_address(folder.ledger))}"
    if shutil.which("optuna-dashboard") is None:
        line += "  # pip install optuna-dashboard"
    return line


def command_on(folder: Folder, command: str) -> str:
    """`python -m sweeps.COMMAND` on this sweep."""
    results = folder.path.parent
    where = "" if results == Path.cwd() / "results" else f" --results {shlex.quote(str(results))}"
    return f"python -m sweeps.{command} {folder.name}{where}"


def commands_of(facts: Facts) -> dict[str, str]:
    """What each is for -> its line."""
    return {
        "Every run with its parameters, metrics and files, in MLflow:": mlflow_command(facts.tracking_uri),
        "The same trials in Optuna's dashboard:": dashboard_command(facts.folder),
        "This page anew, also while the sweep runs:": command_on(facts.folder, "report"),
        "Go on with the sweep, or extend it:": resume_command(facts.folder, facts.sweep.question),
    }
