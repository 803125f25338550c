"""Workers that are lost with their node, or taken by the memory monitor: no trial is blamed, none is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.helper import (
    NUM_TRIALS,
    STEPS_PER_EPOCH,
    Facts,
    arguments,
    assert_all_points_are_shown,
    assert_equal_to_unbroken,
    folder_in,
    ledger_of,
    log_of,
    resumed,
    run,
    started,
    steps_taken,
)
from tests.helpers.drivers import ROOT, TIMEOUT_S, kill, wait_until


@pytest.mark.soak  # tests/faults/test_nodes.py has three nodes, one of which dies
def test_node(tmp_path: Path, unbroken: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two nodes dies under its trial; the other finishes everything."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the workers' environment is their node's
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        second = cluster.add_node(num_cpus=1)
        with started(tmp_path, *arguments(tmp_path, 2, sleep_s=0.02), "--address", cluster.address) as process:
            wait_until(lambda: steps_taken(tmp_path) > 3 * STEPS_PER_EPOCH, "both nodes train", process)
            cluster.remove_node(second, allow_graceful=False)
            assert process.wait(timeout=TIMEOUT_S) == 0, log_of(tmp_path)
    finally:
        cluster.shutdown()
    attempts = [record.attempts for record in ledger_of(folder_in(tmp_path))]
    assert NUM_TRIALS < sum(attempts) <= NUM_TRIALS + 2
    assert_equal_to_unbroken(tmp_path, unbroken, redone=2 * STEPS_PER_EPOCH)
    assert_all_points_are_shown(tmp_path)


@pytest.mark.slow
def test_memory_monitor(tmp_path: Path, unbroken: Facts) -> None:
    """A threshold that is always passed: the monitor takes every worker. Without it, the sweep is the same."""
    threshold = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "1000"}
    folder = folder_in(tmp_path)
    with started(tmp_path, *arguments(tmp_path, 1), **threshold) as process:
        wait_until(
            lambda: (folder / "ledger.db").exists() and ledger_of(folder)[0].attempts > 1,
            "the monitor has taken the first worker",
            process,
        )
        kill(process)
    assert ledger_of(folder)[0].state == "running"
    assert run(tmp_path, *resumed(1)) == 0, log_of(tmp_path)
    assert_equal_to_unbroken(tmp_path, unbroken)
    assert_all_points_are_shown(tmp_path)
