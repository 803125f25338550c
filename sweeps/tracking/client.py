"""MLflow's client, told how to behave, and a database that appears only when it is whole.

Knows nothing of sweeps.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

SQLITE = "sqlite:///"
EXPERIMENT = "steadysweep"
CREDENTIALS = (
    "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to those that it knows, or MLFLOW_TRACKING_TOKEN"
)
_UNAUTHORISED = re.compile(r"\b40[13]\b.*(Client Error|error code)|not authenticated|Permission denied")


def import_client() -> Any:
    """MLflow's client class, told how to behave: it reads these settings when it is imported."""
    # It would otherwise retry for minutes inside one call; the retrying is done here.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # stdout belongs to the answer
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    from mlflow.tracking import MlflowClient

    return MlflowClient


def client_of(uri: str, maker: str) -> Any:
    """A client of the store at `uri`, which is made where there is none. maker: a name that nobody else has."""
    make_database(uri, f"{maker}.part")
    return import_client()(tracking_uri=uri)


def experiment_id_of(client: Any, uri: str) -> str:
    """The experiment that all runs are in, made where there is none: MLFLOW_EXPERIMENT_NAME, else steadysweep."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    return str(client.create_experiment(name, artifact_location=artifacts_beside(uri)))


def why_not_reachable(uri: str) -> str:
    """ "" where a store of MLflow's answers and lets us read, else what is wrong, in a sentence. Makes nothing: a
    database that is not there yet will be made by the first sweep."""
    if uri.startswith(SQLITE) and not Path(uri.removeprefix(SQLITE)).exists():
        return ""
    error = _error_of(uri)
    if error is None:
        return ""
    words = " ".join(str(error).split())[:300] or type(error).__name__
    return refusal(uri, error) or f"{uri} does not answer ({words})"


def why_refused(uri: str) -> str:
    """The same, but "" also where nobody answers: a sweep waits for that, and for no password."""
    error = _error_of(uri) if uri.startswith("http") else None
    return "" if error is None else refusal(uri, error)


def _error_of(uri: str) -> Exception | None:
    """What a store raises that is asked for its experiments; None where it answers."""
    try:
        import_client()(tracking_uri=uri).search_experiments(max_results=1)
    except Exception as error:  # requests', SQLAlchemy's and MLflow's own
        return error
    return None


def refusal(uri: str, error: Exception) -> str:
    """What to do where a server of MLflow's does not let us in; "" for any other error."""
    text = " ".join(str(error).split())
    if "Invalid Host header" in text:
        return f"MLflow's server does not answer to the name in {uri}: start it with --allowed-hosts that has it"
    if _UNAUTHORISED.search(text):
        return f"MLflow's server at {uri} refuses us: {CREDENTIALS}"
    return ""


def is_gone(error: Exception) -> bool:
    """Whether MLflow says that there is no such thing."""
    return getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST"


def artifacts_beside(uri: str) -> str | None:
    """Where the artifacts of a database go: beside it, or where the first sweep was started, if it is on a server of
    its own. MLflow's own default is the folder of the moment; a server of MLflow's knows a place itself (None)."""
    if uri.startswith("postgresql"):
        return (Path.cwd() / "mlartifacts").as_uri()
    if not uri.startswith(SQLITE):
        return None
    return (Path(uri.removeprefix(SQLITE)).parent / "mlartifacts").as_uri()


def make_database(uri: str, suffix: str) -> None:
    """Make an SQLite store that is not there yet, beside, and put it in place when it is whole.

    MLflow makes its tables one by one: a database in which it was killed meanwhile stays unusable for ever.
    """
    path = Path(uri.removeprefix(SQLITE))
    if not uri.startswith(SQLITE) or path.exists():
        return
    beside = path.with_name(f"{path.name}.{suffix}")  # this sweep's own, and a sweep has one driver
    for leftover in (beside, beside.with_name(f"{beside.name}-journal")):
        leftover.unlink(missing_ok=True)
    import_client()(tracking_uri=f"{SQLITE}{beside}").search_experiments(max_results=1)
    try:
        os.link(beside, path)
    except FileExistsError:  # another sweep was faster
        pass
    except OSError:  # no hard links here
        os.replace(beside, path)
    beside.unlink(missing_ok=True)
