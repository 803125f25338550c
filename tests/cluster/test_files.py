"""The files that people start from keep their schemas, hold no secrets, and name only flags that exist."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray.autoscaler
import yaml
from ray.scripts.scripts import cli

from tests.helpers.drivers import ROOT

CLUSTER = ROOT / "cluster"
README = (CLUSTER / "README.md").read_text()
KUBERAY = sorted((CLUSTER / "kuberay").glob("*.yaml"))
# Fields of KubeRay's RayClusterSpec, HeadGroupSpec, WorkerGroupSpec, AutoscalerOptions, AuthOptions, RayJobSpec (v1).
CLUSTER_FIELDS = {
    "rayVersion",
    "authOptions",
    "enableInTreeAutoscaling",
    "autoscalerOptions",
    "headGroupSpec",
    "workerGroupSpecs",
}
HEAD_FIELDS = {"rayStartParams", "template"}
WORKER_FIELDS = {*HEAD_FIELDS, "groupName", "replicas", "minReplicas", "maxReplicas"}
AUTOSCALER_FIELDS = {"version", "upscalingMode", "idleTimeoutSeconds"}
JOB_FIELDS = {
    "entrypoint",
    "submissionMode",
    "shutdownAfterJobFinishes",
    "ttlSecondsAfterFinished",
    "backoffLimit",
    "rayClusterSpec",
}


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def ray_clusters() -> list[dict[str, Any]]:
    """The specs of both: the one that stays, and the job's."""
    (stays,), (job,) = documents(CLUSTER / "kuberay/raycluster.yaml"), documents(CLUSTER / "kuberay/rayjob.yaml")
    return [stays["spec"], job["spec"]["rayClusterSpec"]]


def secret_references(value: Any) -> set[tuple[str, str]]:
    """(secret, key) wherever a `secretKeyRef` stands in a document."""
    if isinstance(value, list):
        return {found for item in value for found in secret_references(item)}
    if not isinstance(value, dict):
        return set()
    found = {item for inner in value.values() for item in secret_references(inner)}
    if "secretKeyRef" in value:
        found.add((value["secretKeyRef"]["name"], value["secretKeyRef"]["key"]))
    return found


@pytest.mark.parametrize("path", KUBERAY, ids=lambda path: path.name)
def test_kubernetes_accepts_every_object(path: Path) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for document in documents(path):
        if document["apiVersion"] != "ray.io/v1":
            kubernetes_validate.validate(document, "1.32.0", strict=True)
    for spec in ray_clusters():
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "node"}, **group["template"]}
            kubernetes_validate.validate(pod, "1.32.0", strict=True)


def test_kubernetes_would_not_accept_a_misspelt_field() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    template = ray_clusters()[0]["headGroupSpec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "node"}, "spec": {**template["spec"], "restart": ""}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, "1.32.0", strict=True)


def test_both_ray_clusters_are_the_same_and_have_only_fields_of_kuberay() -> None:
    stays, of_the_job = ray_clusters()
    assert stays == of_the_job
    assert set(stays) <= CLUSTER_FIELDS
    assert set(stays["headGroupSpec"]) <= HEAD_FIELDS
    assert set(stays["autoscalerOptions"]) <= AUTOSCALER_FIELDS
    assert all(set(group) <= WORKER_FIELDS for group in stays["workerGroupSpecs"])
    (job,) = documents(CLUSTER / "kuberay/rayjob.yaml")
    assert set(job["spec"]) <= JOB_FIELDS


def test_ray_on_kubernetes_asks_for_the_token_and_for_gpus() -> None:
    for spec in ray_clusters():
        assert spec["authOptions"] == {"mode": "token", "secretName": "steadysweep-ray"}
        (workers,) = spec["workerGroupSpecs"]
        (container,) = workers["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert spec["rayVersion"] == ray.__version__


def test_every_secret_that_is_referred_to_is_made_in_the_readme() -> None:
    made = {("steadysweep-ray", "auth_token")}
    for name, rest in re.findall(r"kubectl create secret generic (\S+) (.*)", README):
        made |= {(name, key) for key in re.findall(r"--from-literal=([\w-]+)=", rest)}
    asked = {found for path in KUBERAY for document in documents(path) for found in secret_references(document)}
    assert asked
    assert asked | {("steadysweep-ray", "auth_token")} == made


def test_compose_is_a_compose_file() -> None:
    compose_spec = pytest.importorskip("compose_spec")
    found = compose_spec.PyOptions(apply_merge=True).from_yaml((CLUSTER / "compose.yaml").read_text())
    found.validate()
    assert set(found.service_names()) == {"head", "worker", "mlflow", "postgres", "s3", "bucket"}


def test_compose_asks_for_every_secret_and_has_none_of_its_own() -> None:
    text = (CLUSTER / "compose.yaml").read_text()
    services = yaml.safe_load(text)["services"]
    secret = re.compile(r"PASSWORD|SECRET|TOKEN|ACCESS_KEY|_USER(NAME)?$")
    values = {
        (name, key): value
        for name, service in services.items()
        for key, value in service.get("environment", {}).items()
        if secret.search(key) and (name, key) != ("postgres", "POSTGRES_USER")
    }
    assert len(values) >= 12
    assert all(re.fullmatch(r"\$\{\w+:\?[^}]+\}", value) for value in values.values()), values
    assert set(re.findall(r"\$\{(\w+):\?", text)) <= set(re.findall(r"\b[A-Z0-9]+(?:_[A-Z0-9]+)+\b", README))


@pytest.mark.parametrize("name", ["head", "worker", "mlflow", "postgres", "s3"])
def test_every_service_of_compose_is_looked_after(name: str) -> None:
    service = yaml.safe_load((CLUSTER / "compose.yaml").read_text())["services"][name]
    assert service["healthcheck"]["test"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_ray_up_accepts_its_file() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    (config,) = documents(CLUSTER / "ray_cluster.yaml")
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(config, schema)
    prepared = prepare_config(config)
    validate_config(prepared)
    worker = prepared["available_node_types"]["worker"]
    assert worker["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}


def test_images_are_pinned() -> None:
    texts = [path.read_text() for path in (*KUBERAY, CLUSTER / "compose.yaml", CLUSTER / "ray_cluster.yaml")]
    images = re.findall(r"^\s*(?:- )?image: (\S+)", "\n".join(texts), re.MULTILINE)
    images += re.findall(r"^FROM (\S+)", (CLUSTER / "Dockerfile").read_text(), re.MULTILINE)
    assert len(images) > 8
    assert all(re.search(r":[\w.-]*\d[\w.-]*$", image) and not image.endswith("latest") for image in images), images


def test_the_image_is_not_roots_and_says_whether_it_is_well() -> None:
    text = (CLUSTER / "Dockerfile").read_text()
    assert re.search(r"^USER 1000$", text, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK", text, re.MULTILINE)
    for source in re.findall(r"^COPY (?:--\S+ )*(.+) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in source.split()), source
    pins = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    cuda = re.search(r"^FROM nvidia/cuda:(\d+\.\d+)", text, re.MULTILINE)
    assert cuda
    assert pins["cuda-toolkit"].startswith(cuda.group(1))  # what torch's wheel is built for


def texts_with_commands() -> list[str]:
    paths = [CLUSTER / "README.md", CLUSTER / "slurm.sbatch", CLUSTER / "ray_cluster.yaml", *KUBERAY]
    return [re.sub(r"\\\n\s*", "", path.read_text()) for path in paths]


def test_every_flag_of_ours_that_is_named_exists() -> None:
    seen = 0
    for text in texts_with_commands():
        joined = re.sub(r"\n    (?=--)", " ", text)  # a folded entrypoint
        for name, rest in re.findall(r"python -m (sweeps(?:\.\w+)?)((?: [^\n`\";|]+)?)", joined):
            module = importlib.import_module("sweeps.__main__" if name == "sweeps" else name)
            asked = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", rest))
            if name in ("sweeps.lr_scan", "sweeps.search"):
                flags = {flag for action in module.parser()._actions for flag in action.option_strings}
            else:
                flags = {"--results"} & set(re.findall(r'"(--[a-z-]+)"', Path(str(module.__file__)).read_text()))
            assert asked <= flags, (name, rest)
            seen += 1
    assert seen > 6


def test_every_flag_of_ray_that_is_named_exists() -> None:
    commands = [
        (shlex.split(line)[1], re.findall(r"(?<![\w-])--[a-z][a-z-]+", line))
        for text in texts_with_commands()
        for line in re.findall(
            r"(?<![\w/.-])ray (?:start|up|down|exec|attach|monitor|dashboard|status|stop)\b[^\n`\"]*", text
        )
    ]
    commands += [
        (service["command"][1], [word.partition("=")[0] for word in service["command"][2:] if word.startswith("--")])
        for name, service in yaml.safe_load((CLUSTER / "compose.yaml").read_text())["services"].items()
        if name in ("head", "worker")
    ]
    commands.append(("start", re.findall(r"--[a-z][a-z-]+(?==\"?\$)", (CLUSTER / "slurm.sbatch").read_text())))
    assert len(commands) > 8
    of_srun = {"--nodelist", "--num-gpus", "--num-cpus"}
    for name, flags in commands:
        known = {
            flag for parameter in cli.commands[name].params for flag in (*parameter.opts, *parameter.secondary_opts)
        }
        assert {flag for flag in flags if flag not in of_srun} <= known, (name, flags)


def test_every_flag_of_mlflows_server_that_is_named_exists() -> None:
    from mlflow.cli import server

    known = {flag for parameter in server.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    compose = yaml.safe_load((CLUSTER / "compose.yaml").read_text())["services"]["mlflow"]["command"]
    (deployment,) = (d for d in documents(CLUSTER / "kuberay/services.yaml") if d["kind"] == "Deployment")
    for command in (compose, deployment["spec"]["template"]["spec"]["containers"][0]["args"]):
        flags = [word.partition("=") for word in command if word.startswith("--")]
        assert {flag for flag, _, _ in flags} <= known
        assert ("--app-name", "=", "basic-auth") in flags
        assert any(flag == "--allowed-hosts" for flag, _, _ in flags)


def test_every_file_has_its_page() -> None:
    for path in CLUSTER.rglob("*"):
        if path.is_file() and path.suffix not in (".py", ".pyc", ".env") and path.name not in ("README.md", ".env"):
            assert f"({path.relative_to(CLUSTER)})" in README, path
    for title in re.findall(r"^## (.+: .+)$", README, re.MULTILINE):
        section = README.partition(f"## {title}\n")[2].partition("\n## ")[0]
        for part in ("What", "How", "Watching", "Resuming", "Tearing down"):
            assert f"**{part}**" in section, (title, part)


def test_slurms_variables_are_those_of_the_readme() -> None:
    asked = set(re.findall(r"STEADYSWEEP_[A-Z_]+", (CLUSTER / "slurm.sbatch").read_text()))
    assert asked == set(re.findall(r"STEADYSWEEP_[A-Z_]+", README.partition("## Slurm")[2].partition("\n## ")[0]))
