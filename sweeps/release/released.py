"""An accepted model, loaded by its name in MLflow's registry, by a run or from a folder, with what was said of it.

No pickle is read on the way. Knows nothing of how models are accepted.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeps.release.acceptance import OUTCOMES, TOLD, Accepted, load_outcomes
from sweeps.release.packaging import load_folder
from sweeps.tracking.client import SQLITE, import_client, is_gone
from trainable.task import Task, load_task

if TYPE_CHECKING:
    from torch import nn

    from trainable.release.outcomes import Outcomes

REGISTERED = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>\d+|latest))?")
HOW = "give models:/NAME@champion, models:/NAME/VERSION, runs:/RUN_ID/model or a folder (results/SWEEP/accepted)"


@dataclass(frozen=True)
class Released:
    """`told` is acceptance.json; `outcomes` are those on the test samples. `model` is on the CPU, ready to be called.
    registered: the model version's name, version and run, where it has one."""

    uri: str
    told: Mapping[str, Any]
    task: Task
    model: nn.Module
    outcomes: Outcomes
    registered: Mapping[str, str] | None

    @property
    def words(self) -> str:
        """What it is called in sentences."""
        if self.registered is None:
            return f"the model of {self.told['sweep']}, trial {self.told['trial']}"
        return f"{self.registered['name']} version {self.registered['version']}"


def load(uri: str, tracking_uri: str) -> Released:
    """Raises ValueError in words: no such model, a store that does not answer, a model that was not accepted by this
    project, a task that is not here."""
    if "://" not in uri and not uri.startswith(("models:/", "runs:/")):
        return _from_folder(uri, _folder(Path(uri).expanduser()), None)
    registered = None
    if tracking_uri.startswith(SQLITE) and not Path(tracking_uri.removeprefix(SQLITE)).is_file():
        raise ValueError(f"{uri}: there is no store {tracking_uri}; say where it is with --tracking-uri")
    try:
        client = import_client()(tracking_uri=tracking_uri)
        source = uri
        if uri.startswith("models:/"):
            version = _version(client, uri)
            source, registered = (
                version.source,
                {
                    "name": str(version.name),
                    "version": str(version.version),
                    "run_id": str(version.run_id or ""),
                },
            )
        with tempfile.TemporaryDirectory() as here:
            return _from_folder(uri, _downloaded(source, tracking_uri, Path(here)), registered)
    except ValueError:
        raise
    except Exception as error:  # the edge to a foreign service
        if is_gone(error):
            raise ValueError(f"there is no {uri} at {tracking_uri}; {HOW}, or another --tracking-uri") from error
        words = " ".join(str(error).split())[:300]
        raise ValueError(f"{uri} cannot be had from {tracking_uri} ({type(error).__name__}: {words})") from error


def _version(client: Any, uri: str) -> Any:
    asked = REGISTERED.fullmatch(uri)
    if asked is None:
        raise ValueError(f"{uri!r} is no model; {HOW}")
    if asked["alias"]:
        aliases = client.get_registered_model(asked["name"]).aliases
        if asked["alias"] not in aliases:
            known = ", ".join(f"{alias} (version {number})" for alias, number in sorted(aliases.items()))
            raise ValueError(f"{asked['name']} has no alias {asked['alias']}; it has {known or 'none'}")
        return client.get_model_version(asked["name"], str(aliases[asked["alias"]]))
    if asked["version"] and asked["version"] != "latest":
        return client.get_model_version(asked["name"], asked["version"])
    client.get_registered_model(asked["name"])  # for one that is not there: says so
    found = client.search_model_versions(f"name = '{asked['name']}'")
    if not found:
        raise ValueError(f"{uri}: the registered model has no versions; accept a sweep first")
    return max(found, key=lambda version: int(version.version))


def _downloaded(source: str, tracking_uri: str, here: Path) -> Path:
    from mlflow.artifacts import download_artifacts

    return Path(download_artifacts(artifact_uri=source, dst_path=str(here), tracking_uri=tracking_uri))


def _folder(path: Path) -> Path:
    """The model folder, in one of a sweep or of an acceptance."""
    if not path.is_dir():
        raise ValueError(f"there is no model {str(path)!r}; {HOW}")
    for folder in (path, path / "model", path / "accepted" / "model"):
        if (folder / "MLmodel").is_file():
            return folder
    raise ValueError(f"{path} holds no accepted model; accept one with python -m sweeps.accept, or {HOW}")


def _from_folder(uri: str, folder: Path, registered: Mapping[str, str] | None) -> Released:
    if not (folder / TOLD).is_file():
        raise ValueError(f"{uri} was not accepted by python -m sweeps.accept: it has no {TOLD} to be compared with")
    told = Accepted(folder).told
    if not told.get("baseline"):
        raise ValueError(
            f"{uri} was accepted without a baseline, so there is nothing to compare with: "
            f"{'; '.join(told.get('remarks') or ['accept it again'])}"
        )
    task = load_task(told["task"], told["task_settings"])
    return Released(uri, told, task, load_folder(folder), load_outcomes(folder / OUTCOMES), registered)
