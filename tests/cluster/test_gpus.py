"""B34: a trial without a GPU request sees none, one with a request its own, also on nodes that were started by others;
one that waits for a node with a GPU says so; what one takes of it is asked there.

The GPUs are only promised to Ray (--num-gpus): what is looked at is what Ray and we tell the trial's process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.drivers import driver, environment, result_of, run_command, wait_until
from tests.helpers.nodes import TOKEN, head, joined

TRIALS = ("--lrs", "1e-3", "3e-3", "--progress", "plain")
TASK = """
import os
from dataclasses import dataclass
from pathlib import Path
from trainable.tasks.digits import Digits

@dataclass(frozen=True)
class Seen(Digits):
    def model(self):
        said = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        Path(__file__).with_name(f"trial-{os.getpid()}").write_text(said)
        return super().model()
"""


@pytest.mark.slow
def test_b34_a_trial_sees_the_gpus_it_asked_for(tmp_path: Path) -> None:
    (tmp_path / "seen.py").write_text(TASK)
    scan = ("--task", "seen.py:Seen", "--cpus-per-trial", "0.5", "--progress", "none")
    secrets = {"RAY_AUTH_TOKEN": TOKEN, "HOME": str(tmp_path)}
    with head(tmp_path, TOKEN, "--num-gpus", "2") as address:
        for gpus, allowed in (("0", {""}), ("1", {"0", "1"})):
            asked = ("--address", address, "--gpus-per-trial", gpus, "--lrs", "1e-3")
            done = run_command(*scan, *asked, "--name", f"with-{gpus}", cwd=tmp_path, **secrets)
            assert done.returncode == 0, done.stderr
            seen = {path: path.read_text() for path in tmp_path.glob("trial-*")}
            assert seen
            assert set(seen.values()) <= allowed, (gpus, seen)
            for path in seen:
                path.unlink()


@pytest.mark.soak
def test_trials_wait_for_a_node_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    with head(tmp_path, TOKEN) as address:
        place = ("--address", address, "--gpus-per-trial", "0.5", "--cpus-per-trial", "0.5", "--name", "waits")
        told = run_command(*TRIALS, *place, cwd=tmp_path, RAY_AUTH_TOKEN=TOKEN)
        assert told.returncode == 2
        assert "the most is 0 on 1 Ray node(s); where an autoscaler brings such nodes, add --wait" in told.stderr
        with driver(*TRIALS, *place, "--wait", cwd=tmp_path) as process:
            log = tmp_path / "driver.log"
            wait_until(lambda: "waiting for" in log.read_text(), "it says that it waits", process)
            assert "each with 0.5 CPU(s) and 0.5 GPU(s); there are 1 Ray node(s) with 1 CPU(s) and 0" in log.read_text()
            with joined(tmp_path, address, TOKEN, "sh", "-c", 'exec "$@" --num-gpus 1', "sh"):
                assert process.wait(timeout=240) == 0, log.read_text()
    assert [trial["state"] for trial in result_of(tmp_path / "results/waits")["trials"]] == ["complete"] * 2


# A node that promises a GPU has none: what it would say of one stands in its place.
MEASURED = """
import sys
from sweeps import lr_scan
from sweeps.running import measuring

def told(function, asked, resources, *, within_s):
    assert resources == {"CPU": 0.5, "GPU": 1.0}, resources
    return {"taken": 5 * 2**30, "total": 16 * 2**30}

measuring.on_a_node = told
lr_scan.leave(lr_scan.main(sys.argv[1:]))
"""


@pytest.mark.soak
def test_trials_are_packed_by_what_one_takes(tmp_path: Path) -> None:
    """Asked on a node that only promises a GPU, torch sees none there, and each trial has one; by a peak of 5 of 16
    GiB two share it."""
    secrets = {"RAY_AUTH_TOKEN": TOKEN, "HOME": str(tmp_path)}
    with head(tmp_path, TOKEN, "--num-gpus", "1") as address:
        asked = (*TRIALS, "--address", address, "--cpus-per-trial", "0.5", "--gpus-per-trial", "auto")
        alone = run_command(*asked, "--name", "alone", cwd=tmp_path, **secrets)
        assert alone.returncode == 0, alone.stderr
        assert "auto: measuring how much memory of a GPU one trial takes" in alone.stderr
        why = "1 GPU(s) each: the memory of one could not be measured, torch sees no GPU there"
        assert f"at most 1 trial(s) at once, each with 0.5 CPU(s) and 1 GPU(s); {why}" in alone.stdout
        packed = subprocess.run(
            [sys.executable, "-c", MEASURED, *asked, "--name", "packed"],
            cwd=tmp_path,
            env={**environment(), **secrets},
            capture_output=True,
            text=True,
            check=False,
        )
        assert packed.returncode == 0, packed.stderr
        assert "at most 2 trial(s) at once" in packed.stdout
        assert "0.5 GPU(s) each: one peaks at 5.0 GiB of 16.0 GiB" in packed.stdout
    for name in ("alone", "packed"):
        assert [trial["state"] for trial in result_of(tmp_path / "results" / name)["trials"]] == ["complete"] * 2
