"""Nodes that leave: given notice, killed, both in one sweep. Several real raylets on this machine; the answer is the
unbroken one's, and who was given notice redoes no step and blames no trial."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from sweeps.running.failures import classify
from tests.faults.helper import (
    NUM_TRIALS,
    STEPS,
    STEPS_PER_EPOCH,
    Facts,
    arguments,
    assert_all_points_are_shown,
    assert_equal_to_unbroken,
    folder_in,
    ledger_of,
    log_of,
    started,
    steps_taken,
)
from tests.helpers.drivers import ROOT, TIMEOUT_S, environment, wait_until
from tests.helpers.nodes import RAY
from trainable.trial import NodeUnfit, Trial

NOTICE = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot", "--deadline-remaining-seconds", "120")
SAID = "a node is to leave: its trials save at their current step and go on elsewhere"


def test_a_trial_that_finds_its_node_leaving_is_blamed_for_nothing() -> None:
    said = "ray::Trial.reset()\nTraceback ...\ntrainable.trial.NodeLeaves: this node has been given notice"
    assert classify(f"ray.exceptions.RayTaskError(NodeLeaves): {said}").kind == "moved"
    assert classify("ray.exceptions.RayTaskError: the node died").kind == "exception"


@contextlib.contextmanager
def nodes(count: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[object]]]:
    """A cluster of so many nodes with a CPU each: its address, and the nodes beside the head."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the workers' environment is their node's
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        yield cluster.address, [cluster.add_node(num_cpus=1) for _ in range(count - 1)]
    finally:
        cluster.shutdown()


def drain(address: str, node_id: str) -> None:
    command = [*RAY, "drain-node", "--address", address, "--node-id", node_id]
    subprocess.run([*command, *NOTICE], env=environment(), check=True)


@pytest.mark.slow
def test_one_of_three_is_killed_and_one_drained(
    tmp_path: Path, unbroken: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        nodes(3, monkeypatch) as (address, (leaving, dying)),
        started(tmp_path, *arguments(tmp_path, 3, sleep_s=0.02), "--address", address) as process,
    ):
        wait_until(lambda: steps_taken(tmp_path) > 4 * STEPS_PER_EPOCH, "all nodes train", process)
        drain(address, leaving.node_id)
        dying.kill_all_processes(check_alive=False, allow_graceful=False)
        assert process.wait(timeout=TIMEOUT_S) == 0, log_of(tmp_path)
    said = (tmp_path / "driver.log").read_text()
    assert said.count(SAID) == 1
    assert "[state-dump]" not in said  # Ray's pages on a node that is gone
    blamed = [failure["kind"] for record in ledger_of(folder_in(tmp_path)) for failure in record.failures]
    assert set(blamed) <= {"infrastructure"}
    assert len(blamed) <= 2  # a node that is dead takes a moment to be known as such
    assert not list(folder_in(tmp_path).glob("stop*"))
    assert_equal_to_unbroken(tmp_path, unbroken, redone=2 * STEPS_PER_EPOCH)
    assert_all_points_are_shown(tmp_path)


@pytest.mark.soak
def test_a_drained_node_costs_no_step(tmp_path: Path, unbroken: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        nodes(2, monkeypatch) as (address, (leaving,)),
        started(tmp_path, *arguments(tmp_path, 2, sleep_s=0.02), "--address", address) as process,
    ):
        wait_until(lambda: steps_taken(tmp_path) > 3 * STEPS_PER_EPOCH, "both nodes train", process)
        drain(address, leaving.node_id)
        assert process.wait(timeout=TIMEOUT_S) == 0, log_of(tmp_path)
    records = ledger_of(folder_in(tmp_path))
    assert [record.failures for record in records] == [()] * NUM_TRIALS
    assert sum(record.attempts for record in records) > NUM_TRIALS
    assert steps_taken(tmp_path) == STEPS
    assert_equal_to_unbroken(tmp_path, unbroken, redone=0)
    assert_all_points_are_shown(tmp_path)


@pytest.mark.soak
def test_sigterm_of_ray_start_is_such_a_notice(
    tmp_path: Path, unbroken: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Kubernetes, Docker and Slurm send to a node's own command."""
    with nodes(1, monkeypatch) as (address, _), contextlib.ExitStack() as stack:
        command = [*RAY, "start", "--address", address, "--num-cpus", "1"]
        with (tmp_path / "node.log").open("w") as log:
            node = subprocess.Popen(
                [*command, "--block"], env=environment(), stdout=log, stderr=log, start_new_session=True
            )
        stack.callback(_end, node)
        with started(tmp_path, *arguments(tmp_path, 2, sleep_s=0.05), "--address", address) as process:
            wait_until(lambda: steps_taken(tmp_path) > 3 * STEPS_PER_EPOCH, "both nodes train", process)
            node.send_signal(signal.SIGTERM)
            assert process.wait(timeout=TIMEOUT_S) == 0, log_of(tmp_path)
    assert (tmp_path / "driver.log").read_text().count(SAID) == 1
    assert [record.failures for record in ledger_of(folder_in(tmp_path))] == [()] * NUM_TRIALS
    assert_equal_to_unbroken(tmp_path, unbroken, redone=0)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"torch": "1.0"}, "this sweep trains with 1.0"),
        ({"folder": "/nowhere/at/all"}, "does not see the sweep's folder /nowhere/at/all"),
    ],
)
def test_a_node_that_came_later_and_is_not_as_the_others(changed: dict[str, str], words: str, tmp_path: Path) -> None:
    """Nothing is written there, and the trial may be tried elsewhere."""
    config = {"torch": metadata.version("torch"), "folder": str(tmp_path), "gpu_share": 1.0, **changed}
    with pytest.raises(NodeUnfit, match=words) as refused:
        Trial(config)
    assert list(tmp_path.iterdir()) == []
    assert not Path("/nowhere").exists()
    told = f"an error raised in its creation task ...\n{NodeUnfit.__module__}.NodeUnfit: {refused.value}"
    failure = classify(f"The actor died because of {told}")
    assert (failure.kind, failure.reason) == ("infrastructure", str(refused.value))
