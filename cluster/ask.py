"""The process that `nodes.ask_nodes` starts: joins a cluster, asks each node by a task pinned to it, writes it down.

What a node runs is sent to it as it stands here, so a node without this project answers too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.capacity import num_cpus
from cluster.nodes import CONNECT_S, REFUSED, Node
from cluster.token import offered_token
from trainable.objects import Objects, is_address


def main(said: str) -> None:
    question = json.loads(said)
    logging.disable(logging.WARNING)
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    with offered_token() if question["token"] else contextlib.nullcontext():
        if question["address"].startswith("ray://"):
            _knock(question["address"])
        ray.init(address=question["address"], log_to_driver=False, logging_level=logging.ERROR)
    print("joined", flush=True)
    shared, mark = question["shared"], f".steadysweep-{uuid.uuid4().hex}"
    payload = os.urandom(max(64, question.get("megabytes", 0) * 2**20))
    place = None if shared is None else _place(shared)
    alive = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: str(node["NodeManagerAddress"]))
    if place is not None:
        place.write(mark, payload)
    try:
        remote = ray.remote(num_cpus=0, max_retries=1)(asked())
        pending = {}
        for node in alive:
            where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            sent = (shared, mark, _mark_of(mark, node), len(payload), question["task"])
            pending[node["NodeID"]] = remote.options(scheduling_strategy=where).remote(*sent)
        ready, _ = ray.wait(list(pending.values()), num_returns=len(pending), timeout=question["answer_s"])
        answers = []
        for node in alive:
            answer: dict[str, Any] = {"node_id": node["NodeID"], "address": node["NodeManagerAddress"]}
            answer["resources"] = {name: float(value) for name, value in node["Resources"].items()}
            reference = pending[node["NodeID"]]
            if reference not in ready:
                answer["problem"] = f"gave no answer within {question['answer_s']:g} s"
            else:
                try:
                    answer |= ray.get(reference)
                except ray.exceptions.RayError as error:
                    answer["problem"] = str(error).strip().splitlines()[-1][:300]
            if not answer.get("problem") and place is not None:
                _compare(answer, shared, place, _mark_of(mark, node), payload)
            answers.append(answer)
        _clocks(answers, ray, NodeAffinitySchedulingStrategy)
    finally:
        if place is not None:
            for left in (mark, *(_mark_of(mark, node) for node in alive)):
                with contextlib.suppress(OSError):
                    place.delete(left)
    found = Path(question["found"])
    beside = found.with_suffix(".part")
    beside.write_text(json.dumps(answers))
    os.replace(beside, found)


class _Folder:
    """A folder, read and written as an object store is."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        (self._path / name).write_bytes(data)

    def delete(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)


def _place(shared: str) -> Any:
    """What nodes are to share: the folder, or all below the address of an object store."""
    return Objects(shared, wait_s=0.0) if is_address(shared) else _Folder(shared)


def _mark_of(mark: str, node: dict[str, Any]) -> str:
    """What a node writes."""
    return f"{mark}-{node['NodeID'][:8]}"


def _knock(address: str) -> None:
    """Ends this process where the cluster behind ray:// wants another token: Ray's client would try for half a minute,
    and then not say why."""
    import grpc
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import ray_client_pb2, ray_client_pb2_grpc

    with init_grpc_channel(address.removeprefix("ray://")) as channel:
        request = ray_client_pb2.ClusterInfoRequest(type=ray_client_pb2.ClusterInfoType.PING)
        try:
            ray_client_pb2_grpc.RayletDriverStub(channel).ClusterInfo(request, timeout=CONNECT_S)
        except grpc.RpcError as error:  # any other is Ray's own to try again
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                sys.exit(f"{REFUSED[1]}: {error.details()}")


def _compare(answer: dict[str, Any], shared: str, place: Any, written: str, payload: bytes) -> None:
    """Whether what the node wrote is here, and what it read was ours."""
    read, error = answer.pop("read"), answer.pop("shared_error")
    same = read == hashlib.sha256(payload).hexdigest()
    answer["sees"] = {shared: "" if same else error or "what was written here reads otherwise there"}
    try:
        back = place.read(written) == payload
        answer["writes"] = {shared: "" if back else "what was written there reads otherwise here"}
    except OSError as missing:
        answer["writes"] = {shared: error or f"what was written there is not here ({missing.strerror or missing})"}


def _clocks(answers: list[dict[str, Any]], ray: Any, affinity: Any) -> None:
    """How far each clock is ahead: the node's time lies between our two readings, and the tightest of three counts."""

    def now() -> float:
        import time

        return time.time()

    remote = ray.remote(num_cpus=0)(now)
    for answer in answers:
        if answer.get("problem"):
            continue
        best: tuple[float, float] | None = None
        for _ in range(3):
            before = time.time()
            try:
                there = ray.get(
                    remote.options(scheduling_strategy=affinity(answer["node_id"], soft=False)).remote(), timeout=10
                )
            except ray.exceptions.RayError:
                break
            after = time.time()
            within = (after - before) / 2
            if best is None or within < best[1]:
                best = (there - (before + after) / 2, within)
        if best is not None:
            answer["clock_s"], answer["clock_within_s"] = best


def this_node() -> Node:
    """What this machine would answer as a node, without any Ray."""
    said = asked()(None, "", "", 0, None)
    said["resources"] = {"CPU": float(num_cpus()), "GPU": float(len(said["gpus"]))}
    return Node("here", "here", **said)


def asked() -> Callable[..., dict[str, Any]]:
    """What a node runs. A function inside one: Ray sends it by value, and it needs nothing but Python there."""

    def ask(shared: str | None, ours: str, mine: str, size: int, task: str | None) -> dict[str, Any]:
        import contextlib
        import hashlib
        import importlib.metadata
        import importlib.util
        import os
        import platform
        import resource
        import shutil
        import socket
        import tempfile
        import time

        def version(name: str) -> str | None:
            try:
                return importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                return None

        def number(path: str) -> int | None:
            try:
                with open(path) as file:
                    return int(file.read())
            except (OSError, ValueError):  # no such limit: "max"
                return None

        said: dict[str, Any] = {"host": socket.gethostname()}
        said["versions"] = {"python": platform.python_version()}
        said["versions"] |= {name: version(name) for name in ("ray", "torch", "steadysweep")}
        if importlib.util.find_spec("trainable") is None:
            said["versions"]["steadysweep"] = None
        with contextlib.suppress(OSError, ValueError):
            page = os.sysconf("SC_PAGE_SIZE")
            said["memory"] = page * os.sysconf("SC_PHYS_PAGES")
            said["memory_available"] = page * os.sysconf("SC_AVPHYS_PAGES")
        limit = number("/sys/fs/cgroup/memory.max") or number("/sys/fs/cgroup/memory/memory.limit_in_bytes")
        if limit is not None and limit < said.get("memory", limit):
            said["memory"] = limit
            said["memory_available"] = min(said.get("memory_available", limit), limit)
        with contextlib.suppress(OSError, LookupError, ValueError), open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
            said["memory_available"] = min(said["memory"], int(lines["MemAvailable"].split()[0]) * 1024)
        with contextlib.suppress(OSError):
            said["shared_memory"] = shutil.disk_usage("/dev/shm").total
        said["free_disk"] = shutil.disk_usage(tempfile.gettempdir()).free
        said["open_files"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        said["gpus"] = []
        try:
            import pynvml

            pynvml.nvmlInit()
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                name = pynvml.nvmlDeviceGetName(handle)
                total = pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30
                said["gpus"].append(f"{name} {total:.0f} GiB")
        except Exception:  # no driver, no package: each version of it raises its own
            pass
        if shared is not None:
            said["read"], said["shared_error"] = None, ""
            began = time.monotonic()
            try:
                if "://" in shared:
                    from trainable.objects import Objects

                    objects = Objects(shared, wait_s=0.0)
                    content = objects.read(ours)
                    said["read"] = hashlib.sha256(content).hexdigest()
                    objects.write(mine, content)
                else:
                    with open(os.path.join(shared, ours), "rb") as source:
                        content = source.read()
                    said["read"] = hashlib.sha256(content).hexdigest()
                    with open(os.path.join(shared, mine), "wb") as target:
                        target.write(content)
                        os.fsync(target.fileno())
                said["shared_mb_per_s"] = 2 * size / 1e6 / max(time.monotonic() - began, 1e-6)
            except OSError as error:
                said["shared_error"] = f"{error.strerror}: {error.filename}" if error.filename else str(error)
            except ImportError as error:  # said besides: this node has no steadysweep, or another one
                said["shared_error"] = str(error)
        if task is not None:
            location, _, _ = task.rpartition(":")
            if location.endswith(".py"):
                said["task"] = "" if os.path.isfile(location) else f"there is no file {location}"
            elif location:
                top = location.partition(".")[0]
                said["task"] = "" if importlib.util.find_spec(top) else f"there is no module {top}"
        return said

    return ask


if __name__ == "__main__":
    main(sys.argv[1])
