"""B34: a trial without a GPU request sees none, one with a request its own, also on nodes that were started by others.

The GPUs are only promised to Ray (--num-gpus): what is looked at is what Ray and we tell the trial's process.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.drivers import run_command
from tests.helpers.nodes import TOKEN, head

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
