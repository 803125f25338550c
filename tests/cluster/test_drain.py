"""A node that is given notice: its trials save at their current step and go on elsewhere; no attempt is blamed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.running.failures import classify
from tests.helpers.drivers import ROOT, driver, environment, result_of, run_command, wait_until

SWEEP = (
    "--name",
    "s",
    "--task",
    f"{ROOT / 'tests/helpers/held.py'}:Held",
    "--lrs",
    "3e-3",
    "1e-3",
    "--set",
    "threads=1",
)
PLACE = ("--trials-at-once", "2", "--cpus-per-trial", "1", "--progress", "plain")
STEPS = 40


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two nodes with a CPU each: raylets of their own on this machine."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        made.add_node(num_cpus=1)
        yield made
    finally:
        made.shutdown()


def test_a_trial_that_finds_its_node_leaving_is_blamed_for_nothing() -> None:
    said = "ray::Trial.reset()\nTraceback ...\ntrainable.trial.NodeLeaves: this node has been given notice"
    assert classify(f"ray.exceptions.RayTaskError(NodeLeaves): {said}").kind == "moved"
    assert classify("ray.exceptions.RayTaskError: the node died").kind == "exception"


@pytest.mark.slow
def test_a_drained_node_costs_no_step_and_no_attempt(tmp_path: Path, cluster: Cluster) -> None:
    drained, unbroken = tmp_path / "drained", tmp_path / "unbroken"
    drained.mkdir()
    unbroken.mkdir()
    steps = drained / "steps.log"
    slow = ("--set", "task.sleep_s=0.1", "--set", f"task.step_log={steps}")
    with driver(*SWEEP, *PLACE, *slow, "--address", cluster.address, cwd=drained) as process:
        wait_until(lambda: steps.exists() and len(steps.read_text().split()) > 10, "trials train", process)
        (worker,) = cluster.worker_nodes
        notice = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot")
        where = ("--address", cluster.address, "--node-id", worker.node_id, "--deadline-remaining-seconds", "60")
        drain = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", *where, *notice]
        subprocess.run(drain, env=environment(), check=True)
        assert process.wait(timeout=100) == 0, (drained / "driver.log").read_text()
    said = (drained / "driver.log").read_text()
    assert said.count("a node is to leave") == 1
    assert len(steps.read_text().split()) == 2 * STEPS  # none was made twice, none left out
    ledger = Ledger(Folder(drained / "results/s").ledger)
    assert [record.failures for record in ledger.trials()] == [(), ()]
    ledger.close()
    assert not list((drained / "results/s").glob("stop*"))

    done = run_command(*SWEEP, *PLACE, cwd=unbroken)
    assert done.returncode == 0, done.stderr
    moved, straight = result_of(drained / "results/s")["trials"], result_of(unbroken / "results/s")["trials"]
    assert sorted(trial["attempts"] for trial in moved)[-1] >= 2
    for key in ("metrics", "weights_sha256", "state"):
        assert [trial[key] for trial in moved] == [trial[key] for trial in straight]
