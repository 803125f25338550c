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
    folder, mark = question["folder"], f".steadysweep-{uuid.uuid4().hex}"
    payload = os.urandom(max(64, question.get("megabytes", 0) * 2**20))
    here = Path(folder, mark) if folder else None
    if here is not None:
        here.write_bytes(payload)
    try:
        alive = sorted(
            (node for node in ray.nodes() if node["Alive"]), key=lambda node: str(node["NodeManagerAddress"])
        )
        remote = ray.remote(num_cpus=0, max_retries=1)(asked())
        pending = {}
        for node in alive:
            where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            place = f"{here}-{node['NodeID'][:8]}" if here is not None else None
            sent = (str(here) if here else None, place, len(payload), question["task"])
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
            if not answer.get("problem") and here is not None:
                _compare(answer, folder, Path(f"{here}-{node['NodeID'][:8]}"), payload)
            answers.append(answer)
        _clocks(answers, ray, NodeAffinitySchedulingStrategy)
    finally:
        if here is not None:
            for left in here.parent.glob(f"{mark}*"):
                with contextlib.suppress(OSError):
                    left.unlink()
    found = Path(question["found"])
    beside = found.with_suffix(".part")
    beside.write_text(json.dumps(answers))
    os.replace(beside, found)


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


def _compare(answer: dict[str, Any], folder: str, written: Path, payload: bytes) -> None:
    """Whether what the node wrote is here, and what it read was ours."""
    read, error = answer.pop("read"), answer.pop("folder_error")
    same = read == hashlib.sha256(payload).hexdigest()
    answer["sees"] = {folder: "" if same else error or "a file that was written here reads otherwise there"}
    try:
        back = written.read_bytes() == payload
        answer["writes"] = {folder: "" if back else "a file that was written there reads otherwise here"}
    except OSError as missing:
        answer["writes"] = {folder: error or f"a file that was written there is not here ({missing.strerror})"}


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
    said = asked()(None, None, 0, None)
    said["resources"] = {"CPU": float(num_cpus()), "GPU": float(len(said["gpus"]))}
    return Node("here", "here", **said)


def asked() -> Callable[..., dict[str, Any]]:
    """What a node runs. A function inside one: Ray sends it by value, and it needs nothing but Python there."""

    def ask(ours: str | None, mine: str | None, size: int, task: str | None) -> dict[str, Any]:
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
        if ours is not None and mine is not None:
            said["read"], said["folder_error"] = None, ""
            began = time.monotonic()
            try:
                with open(ours, "rb") as source:
                    content = source.read()
                said["read"] = hashlib.sha256(content).hexdigest()
                with open(mine, "wb") as target:
                    target.write(content)
                    os.fsync(target.fileno())
                said["folder_mb_per_s"] = 2 * size / 1e6 / max(time.monotonic() - began, 1e-6)
            except OSError as error:
                said["folder_error"] = f"{error.strerror}: {error.filename}"
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
