"""python -m cluster.check: whether every node, the results folder, MLflow and the ledger's database are fit for sweeps.

An entry like those of sweeps, and so the one file here that may use them. Trains nothing and leaves nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from cluster.ask import this_node
from cluster.fit import our_versions, problems
from cluster.nodes import Node, ask_nodes
from sweeps.cli import Parser
from sweeps.command import errors_in_words, leave
from sweeps.record.elsewhere import checked_storage
from sweeps.record.home import checked_database
from sweeps.record.store import checked_results, nearest_existing
from sweeps.tracking.client import why_not_reachable
from sweeps.tracking.tracker import resolve_uri
from trainable.objects import checked_address

MEGABYTES = 16  # written and read back between every node and here
GIB = 2**30
LEAST_FILES = 4096  # Ray's own processes and connections; loader workers pass tensors by descriptors
LEAST_SHARED = GIB // 2  # batches of loader workers; containers have 64 MiB unless told otherwise
LEAST_DISK = 5 * GIB
LEAST_MEMORY = 2 * GIB
MOST_CLOCK_S = 1.0


def parser() -> Parser:
    flags = Parser(prog="python -m cluster.check", description=__doc__.partition("\n")[0])
    add = flags.add_argument
    add("--address", metavar="HOST:PORT", help="a running Ray cluster (default: this machine alone)")
    add("--results", metavar="DIR", default="results", help="where sweeps are kept (default: results)")
    add("--storage", metavar="URI", help="object store for what trials leave: s3://bucket/folder, gs://bucket/folder")
    add("--tracking-uri", metavar="URI", help="MLflow's store (default: MLFLOW_TRACKING_URI, else sqlite:///mlflow.db)")
    add("--ledger", metavar="URL", help="PostgreSQL for the record of sweeps")
    add("--task", help="a task that every node shall find: package.module:Class or path/file.py:Class")
    add("--json", action="store_true", help="print all of it as JSON on stdout, and nothing else there")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 0 all is well, 1 something is not, 2 it could not be asked."""
    with errors_in_words():
        asked = vars(parser().parse_args(arguments))
        results = checked_results(Path(asked["results"]))
        storage = None if asked["storage"] is None else checked_address(asked["storage"])
        uri = resolve_uri(asked["tracking_uri"], Path.cwd())
        if asked["address"] is None:
            nodes: Sequence[Node] = [this_node()]
        else:
            shared = storage or str(nearest_existing(results))
            nodes = ask_nodes(asked["address"], shared=shared, task=_absolute(asked["task"]), megabytes=MEGABYTES).nodes
    found = [*problems(nodes, our_versions()), *(words for node in nodes for words in doubts(node))]
    services = {"MLflow": (uri, why_not_reachable(uri))}
    if storage is not None:
        services["storage"] = (storage, _wrong(checked_storage, storage))
    if asked["ledger"] is not None:
        services["ledger"] = (asked["ledger"], _wrong(checked_database, asked["ledger"]))
    found += [f"{name}: {wrong}" for name, (_, wrong) in services.items() if wrong]
    if asked["json"]:
        said = {name: {"where": where, "problem": wrong} for name, (where, wrong) in services.items()}
        print(json.dumps({"nodes": [asdict(node) for node in nodes], "services": said, "found": found}, indent=1))
    else:
        _print(nodes, services, found)
    return 1 if found else 0


def doubts(node: Node) -> list[str]:
    """What will trouble trials on this node sooner or later, each in a sentence with what to do.

    A size of 0 is one that its system does not tell.
    """
    if node.problem:
        return []
    where = f"node {node.address} ({node.host})"
    found = []
    if node.open_files < LEAST_FILES:
        found.append(
            f"{where} allows {node.open_files} open files a process: many loader workers run out of them; "
            "start Ray after `ulimit -n 65536`"
        )
    if 0 < node.shared_memory < LEAST_SHARED:
        found.append(
            f"{where} has {node.shared_memory / 2**20:.0f} MiB of shared memory: loader workers hand over batches "
            "there, and Ray its objects; start its container with --shm-size=8g"
        )
    if node.free_disk < LEAST_DISK:
        found.append(
            f"{where} has {node.free_disk / GIB:.1f} GiB left for temporary files: Ray stops when a disk is full"
        )
    if 0 < node.memory_available < LEAST_MEMORY:
        found.append(
            f"{where} has {node.memory_available / GIB:.1f} GiB of memory left: a process that trains needs one"
        )
    if abs(node.clock_s) - node.clock_within_s > MOST_CLOCK_S:
        direction = "ahead of" if node.clock_s > 0 else "behind"
        found.append(
            f"{where} has a clock {abs(node.clock_s):.1f} s {direction} this machine's: times will not fit together; "
            "synchronise it (NTP)"
        )
    promised = int(node.resources.get("GPU", 0))
    if promised != len(node.gpus):
        found.append(
            f"{where} told Ray of {promised} GPU(s) and its driver shows {len(node.gpus)}: start Ray there with "
            f"--num-gpus {len(node.gpus)}, or look at its driver"
        )
    return found


def _absolute(task: str | None) -> str | None:
    location, colon, name = (task or "").rpartition(":")
    return f"{Path(location).resolve()}{colon}{name}" if location.endswith(".py") else task


def _wrong(check: Callable[[str], str], address: str) -> str:
    try:
        check(address)
    except ValueError as error:
        return str(error)
    return ""


def _print(nodes: Sequence[Node], services: dict[str, tuple[str, str]], found: Sequence[str]) -> None:
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 1000)
    table = Table(title=f"{len(nodes)} node(s)", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in (
        "node",
        "host",
        "CPUs",
        "GPUs",
        "memory GiB",
        "shm GiB",
        "disk GiB",
        "files",
        "clock s",
        "shared MB/s",
    ):
        table.add_column(name, justify="left" if name in ("node", "host", "GPUs") else "right")
    for name in our_versions():
        table.add_column(name)
    for node in nodes:
        table.add_row(*_cells(node))
    console.print(table)
    for name, (where, wrong) in services.items():
        console.print(f"{name:8} {where}: {'see below' if wrong else 'well'}", markup=False)
    for words in found:
        console.print(f"- {words}", markup=False)
    console.print("nothing is wrong" if not found else f"{len(found)} to look at", markup=False)


def _cells(node: Node) -> list[str]:
    if node.problem:
        return [node.address, node.host, *["?"] * 8, *["?"] * len(our_versions())]
    return [
        node.address,
        node.host,
        f"{node.resources.get('CPU', 0):g}",
        ", ".join(node.gpus) or "none",
        f"{node.memory_available / GIB:.1f} of {node.memory / GIB:.1f}",
        f"{node.shared_memory / GIB:.1f}",
        f"{node.free_disk / GIB:.0f}",
        str(node.open_files),
        f"{node.clock_s:+.2f} within {node.clock_within_s:.2f}" if node.clock_within_s else "",
        "" if node.shared_mb_per_s is None else f"{node.shared_mb_per_s:.0f}",
        *(str(node.versions.get(name)) for name in our_versions()),
    ]


if __name__ == "__main__":
    leave(main())
