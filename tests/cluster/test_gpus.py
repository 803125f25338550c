"""B34: a trial without a GPU request sees none, one with a request its own, also on nodes that were started by others;
one that waits for a node with a GPU says so.

The GPUs are only promised to Ray (--num-gpus): what is looked at is what Ray and we tell the trial's process.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.drivers import driver, result_of, run_command, wait_until
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
