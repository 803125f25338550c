"""An acceptance in MLflow: a run of its own under the sweep's, a version in the registry, an alias.

Each step looks first for what an earlier, interrupted call has done, so that doing all of it again doubles nothing.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeps.release.acceptance import OUTCOMES, TOLD, Accepted, load_outcomes
from sweeps.release.champion import CHALLENGER, CHAMPION, Side, Standing, standing
from sweeps.sweep import describe
from sweeps.tracking.client import client_of, experiment_id_of, is_gone
from sweeps.tracking.spelling import spelled, value_text
from trainable.crashpoint import crash_point

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,99}")
WHOLE = "steadysweep.whole"


class NotReachable(Exception):
    """MLflow, or its registry, did not do what it was asked: why, in words."""


@dataclass(frozen=True)
class Registered:
    """A version in the registry. uri: what loads it."""

    tracking_uri: str
    run_id: str
    name: str
    version: str
    alias: str
    why: str

    @property
    def uri(self) -> str:
        return f"models:/{self.name}/{self.version}"


def checked_model_name(name: str) -> str:
    if not MODEL_NAME.fullmatch(name):
        raise ValueError(
            f"--model {name!r} may only have letters, digits, spaces, '.', '_' and '-', begin with a letter or digit, "
            "and be at most 100 characters long"
        )
    return name


def default_model_name(task: str, settings: Mapping[str, Any]) -> str:
    """The task's short name, with that of its file where it has one: models of other data are no rivals."""
    short, path = task.rpartition(":")[2].lower(), settings.get("path")
    words = [short, *([Path(str(path)).stem] if path else [])]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(words)).strip("-._")[:100] or "model"


def register(accepted: Accepted, uri: str, model_name: str, parent_run_id: str | None) -> Registered:
    """Send an acceptance to MLflow at `uri` and register its model. Raises NotReachable; then nothing has an alias that
    it should not have, and doing it again goes on."""
    told = accepted.told
    try:
        client = client_of(uri, told["id"])
        run = _logged_run(client, uri, accepted, told, parent_run_id)
        version = _version(client, run, model_name, told)
        crash_point("version-created")
        found = _settle_alias(client, uri, model_name, version, Side(told, load_outcomes(accepted.model / OUTCOMES)))
    except ValueError:
        raise
    except Exception as error:  # the edge to a foreign service: whatever it raises, the model stays in its folder
        words = " ".join(str(error).split())[:300]
        raise NotReachable(f"MLflow at {uri} did not take it ({type(error).__name__}: {words})") from error
    return Registered(uri, str(run.info.run_id), model_name, version, found.alias, found.why)


def _logged_run(client: Any, uri: str, accepted: Accepted, told: Mapping[str, Any], parent: str | None) -> Any:
    experiment_id = experiment_id_of(client, uri)
    found = client.search_runs([experiment_id], f"tags.`steadysweep.acceptance` = '{told['id']}'", max_results=1)
    tags = {
        "steadysweep.role": "acceptance",
        "steadysweep.acceptance": told["id"],
        "steadysweep.sweep": told["sweep"],
        "steadysweep.sweep_id": told["sweep_id"],
        "steadysweep.trial": str(told["trial"]),
        "steadysweep.openings": str(len(told["openings"])),
        "steadysweep.export": told["export"]["kind"],
        "steadysweep.test_fingerprint": told["test"]["fingerprint"],
        **({"mlflow.parentRunId": parent} if parent else {}),
    }
    run = found[0] if found else client.create_run(experiment_id, run_name=f"accept {told['sweep']}", tags=tags)
    crash_point("acceptance-run")
    if run.data.tags.get(WHOLE) != "true":
        run_id = run.info.run_id
        client.log_batch(run_id, metrics=_points(told), params=_params(told))
        for path in [accepted.path / TOLD, *accepted.pictures()]:
            client.log_artifact(run_id, str(path))
        client.log_artifacts(run_id, str(accepted.model), "model")
        client.set_tag(run_id, WHOLE, "true")
        client.set_terminated(run_id, "FINISHED")
    return run


def _points(told: Mapping[str, Any]) -> list[Any]:
    """The test metrics with their ends, and the validation's."""
    from mlflow.entities import Metric

    values: dict[str, float | None] = {}
    for name, found in told["test"]["metrics"].items():
        values |= {f"test_{name}": found["mean"], f"test_{name}_low": found["low"], f"test_{name}_high": found["high"]}
    values |= {f"val_{name}": found["mean"] for name, found in told["val"]["metrics"].items()}
    values["export_max_difference"] = told["export"]["max_difference"]
    names, time_ms = spelled(values), int(told["time_ms"])
    return [Metric(names[name], value, time_ms, 0) for name, value in values.items() if value is not None]


def _params(told: Mapping[str, Any]) -> list[Any]:
    from mlflow.entities import Param

    values = {"task": told["task"], "metric": told["metric"]["name"], **told["params"]}
    names = spelled(values)
    return [Param(names[name], value_text(value, TOLD)) for name, value in values.items()][:100]


def _version(client: Any, run: Any, name: str, told: Mapping[str, Any]) -> str:
    """The version of this acceptance, or one of the same weights tested on the same samples."""
    try:
        client.get_registered_model(name)
    except Exception as error:
        if not is_gone(error):
            raise
        client.create_registered_model(name, description=f"accepted by steadysweep: {told['task']}")
        crash_point("model-created")
    same = {
        "steadysweep.weights_sha256": told["export"]["weights_sha256"],
        "steadysweep.test_fingerprint": told["test"]["fingerprint"],
        "steadysweep.export": told["export"]["kind"],
    }
    for version in client.search_model_versions(f"name = '{name}'"):
        if all(version.tags.get(key) == value for key, value in same.items()) and version.status == "READY":
            return str(version.version)
    tags = {
        **same,
        "steadysweep.acceptance": told["id"],
        "steadysweep.sweep": told["sweep"],
        "steadysweep.trial": str(told["trial"]),
    }
    made = client.create_model_version(
        name,
        source=f"{run.info.artifact_uri}/model",
        run_id=run.info.run_id,
        tags=tags,
        description=f"trial {told['trial']} of {told['sweep']}: {describe(told['params'])}",
        await_creation_for=60,
    )
    return str(made.version)


def _settle_alias(client: Any, uri: str, name: str, version: str, ours: Side) -> Standing:
    aliases = {alias: str(number) for alias, number in client.get_registered_model(name).aliases.items()}
    champion = aliases.get(CHAMPION)
    if champion == version:
        found = Standing(CHAMPION, "it is the champion already")
    elif champion is None:
        found = Standing(CHAMPION, "there was none")
    else:
        theirs = _side(uri, client.get_model_version(name, champion))
        found = standing(ours, theirs, f"the champion (version {champion})")
    if aliases.get(found.alias) != version:
        client.set_registered_model_alias(name, found.alias, version)
    crash_point("alias-set")
    if found.alias == CHAMPION and aliases.get(CHALLENGER) == version:
        client.delete_registered_model_alias(name, CHALLENGER)
    return found


def _side(uri: str, version: Any) -> Side | None:
    """What a registered version says of its test; None for one that was not accepted by this project."""
    from mlflow.artifacts import download_artifacts

    if "steadysweep.acceptance" not in version.tags:
        return None
    with tempfile.TemporaryDirectory() as here:
        try:
            told = Path(download_artifacts(artifact_uri=f"{version.source}/{TOLD}", dst_path=here, tracking_uri=uri))
        except Exception as error:
            # MLflow says so for a file that somebody deleted; a store that does not answer is another matter.
            if type(error) is OSError or is_gone(error):
                return None
            raise
        accepted = Accepted(told.parent).told
        try:
            found = download_artifacts(artifact_uri=f"{version.source}/{OUTCOMES}", dst_path=here, tracking_uri=uri)
            return Side(accepted, load_outcomes(Path(found)))
        except Exception:  # somebody may have tidied up what is large; the means are still there
            return Side(accepted, None)
