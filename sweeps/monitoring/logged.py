"""A look at fresh data as a run in MLflow, under that of the model's acceptance. Knows nothing of how it was judged."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeps.tracking.client import client_of, experiment_id_of
from sweeps.tracking.spelling import number_of, spelled, value_text

MOST_COLUMNS = 500  # whose drift is logged as a metric each; MLflow takes 1000 metrics in one call


def log(uri: str, plain: Mapping[str, Any], files: Sequence[Path]) -> str:
    """The id of the run. Raises whatever MLflow raises."""
    client = client_of(uri, uuid.uuid4().hex)
    experiment_id = experiment_id_of(client, uri)
    version = plain["registered"]
    tags = {
        "steadysweep.role": "monitoring",
        "steadysweep.acceptance": plain["acceptance"],
        "steadysweep.sweep": plain["sweep"],
        "steadysweep.model": plain["model"],
        "steadysweep.alarm": str(plain["alarm"]).lower(),
        "steadysweep.verdict": value_text(plain["verdict"], "result.json"),
        "steadysweep.data": plain["data"],
    }
    if version is not None:
        tags["steadysweep.model_version"] = f"models:/{version['name']}/{version['version']}"
    parents = client.search_runs([experiment_id], f"tags.`steadysweep.acceptance` = '{plain['acceptance']}'")
    for parent in parents:
        if parent.data.tags.get("steadysweep.role") == "acceptance":
            tags["mlflow.parentRunId"] = parent.info.run_id
    run = client.create_run(experiment_id, run_name=f"monitor {Path(plain['data']).name}", tags=tags)
    client.log_batch(run.info.run_id, metrics=_points(plain), params=_params(plain))
    for file in files:
        client.log_artifact(run.info.run_id, str(file))
    client.set_terminated(run.info.run_id, "FINISHED")
    if version is not None:
        said = f"{'ALARM' if plain['alarm'] else 'no alarm'} {plain['time']}, run {run.info.run_id}"
        client.set_model_version_tag(version["name"], version["version"], "steadysweep.monitored", said)
    return str(run.info.run_id)


def _points(plain: Mapping[str, Any]) -> list[Any]:
    from mlflow.entities import Metric

    columns = plain["columns"]
    values: dict[str, Any] = {"num_samples": plain["num_samples"], "alarms": len(plain["alarms"])}
    if columns:
        values["drift_columns"] = sum(column["level"] == "alarm" for column in columns.values())
        values["drift_largest"] = max(column["psi"] for column in columns.values())
    for name, metric in plain["metrics"].items():
        values |= {f"fresh_{name}": metric["now"]["mean"], f"worse_{name}": metric["worse"]}
    for size, found in plain["speed"]["now"]["latency_ms"].items():
        values |= {f"latency_ms_{quantile}_{size}": value for quantile, value in found.items()}
    # The most drifted come first; result.json has all of them.
    values |= {f"drift.{name}": column["psi"] for name, column in list(columns.items())[:MOST_COLUMNS]}
    names, time_ms = spelled(values), int(plain["time_ms"])
    numbers = {name: number_of(value) for name, value in values.items()}
    return [Metric(names[name], number, time_ms, 0) for name, number in numbers.items() if number is not None]


def _params(plain: Mapping[str, Any]) -> list[Any]:
    from mlflow.entities import Param

    values = {"model": plain["model"], "data": plain["data"], **plain["thresholds"]}
    return [Param(name, value_text(value, "result.json")) for name, value in values.items()]
