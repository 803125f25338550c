"""Whether a cluster's nodes are fit for a sweep from here: what is wrong with which, in words. Asks nobody."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence

from cluster.nodes import Node
from trainable.objects import is_address

SHIP = "ship it with `ray job submit --working-dir . -- python -m sweeps.lr_scan ...`"
MUST_MATCH = ("ray", "python", "torch", "steadysweep")


def our_versions() -> dict[str, str | None]:
    """The versions in this process, torch's without importing it."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("ray", "torch", "steadysweep"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def problems(nodes: Sequence[Node], ours: dict[str, str | None]) -> list[str]:
    """What keeps trials from running on these nodes as they would here, each in a sentence with what to do."""
    found = []
    for node in nodes:
        where = f"node {node.address} ({node.host})"
        if node.problem:
            found.append(f"{where} did not answer: {node.problem}; look at it with `ray status`")
            continue
        for name in MUST_MATCH:
            there, here = node.versions.get(name), ours.get(name)
            if name == "steadysweep":
                if there is None:
                    found.append(
                        f"{where} has no steadysweep: install it there, or ship it with "
                        "`ray job submit --working-dir . -- python -m sweeps...`"
                    )
            elif there is None:
                found.append(f"{where} has no {name}; install {name}=={here} there")
            elif _differs(name, there, here):
                found.append(f"{where} has {name} {there}, this machine has {here}: use the same on all")
        if node.task:
            found.append(
                f"{where} cannot load the task: {node.task}; put it where every node finds it under the same name (a "
                f"shared folder, an installed package), or {SHIP}"
            )
        for shared, wrong in (*node.sees.items(), *node.writes.items()):
            if wrong:
                found.append(f"{where} {_not_shared(shared, wrong)}")
                break
    return found


def _not_shared(shared: str, wrong: str) -> str:
    if is_address(shared):
        return (
            f"cannot use the object store {shared}: {wrong}; give every node the keys that this machine has, in the "
            "environment that Ray is started in, or a role"
        )
    return (
        f"does not share the results folder {shared}: {wrong}; use --results with a folder that all nodes see under "
        "the same path, or --storage with an object store"
    )


def _differs(name: str, there: str, here: str | None) -> bool:
    if here is None:
        return False
    if name == "python":  # what is pickled by one 3.11 is read by another
        return there.split(".")[:2] != here.split(".")[:2]
    return there != here
