"""Crash points: what they are told, where they count, and that they are nothing while they are off."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
import timeit
from pathlib import Path

import pytest

from tests.helpers.drivers import ROOT, environment
from trainable.crashpoint import ACTIONS, POINTS, Plan, crash_point, parse


def run(code: str, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """A process that leads a group of its own, as a driver does."""
    code = f"from pathlib import Path\nfrom trainable.crashpoint import crash_point\n{code}"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**environment(), **extra},
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )


def test_what_they_are_told() -> None:
    assert parse("step:3:kill,tell:1:enospc") == (Plan("step", 3, "kill"), Plan("tell", 1, "enospc"))
    assert parse("") == ()


@pytest.mark.parametrize("text", ["step", "step:0:kill", "stop:1:kill", "step:1:explode", "step:x:kill", "step:1"])
def test_what_does_not_exist_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="point:count:action"):
        parse(text)


def test_off_they_cost_nothing() -> None:
    """Less than a microsecond, where a step takes a thousand."""
    assert min(timeit.repeat(lambda: crash_point("step", poison=()), number=10_000, repeat=5)) / 10_000 < 1e-6


def test_every_point_stands_in_the_code_once() -> None:
    found = [
        node.args[0].value
        for folder in ("trainable", "sweeps")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "crash_point"
    ]
    assert sorted(found) == sorted(POINTS)


def test_the_count_goes_on_in_the_next_process(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    code = "for _ in range(3): crash_point('step'); print('.', end='', flush=True)"
    told = {"STEADYSWEEP_CRASH": "step:2:kill,step:4:raise", "STEADYSWEEP_CRASH_STATE": state}
    first = run(code, tmp_path, **told)
    assert (first.returncode, first.stdout) == (-signal.SIGKILL, ".")
    second = run(code, tmp_path, **told)
    assert (second.returncode, second.stdout) == (1, ".")
    assert "RuntimeError: crash point step, passage 4" in second.stderr
    assert run(code, tmp_path, **told).stdout == "..."


def test_a_kill_takes_along_what_was_started(tmp_path: Path) -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '60']); crash_point('tell')"
    killed = run(code, tmp_path, STEADYSWEEP_CRASH="tell:1:kill")  # returns once nobody holds its output
    assert killed.returncode == -signal.SIGKILL


def test_actions(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100)
    assert run("crash_point('report', Path('file'))", tmp_path, STEADYSWEEP_CRASH="report:1:torn").returncode == -9
    assert (tmp_path / "file").stat().st_size == 50
    assert "No space left" in run("crash_point('ask')", tmp_path, STEADYSWEEP_CRASH="ask:1:enospc").stderr
    assert run("crash_point('ask')", tmp_path, STEADYSWEEP_CRASH="ask:1:term").returncode == -signal.SIGTERM
    code = (
        "import torch; x = torch.ones(2, requires_grad=True); crash_point('step', poison=[x]); print(x.isnan().all())"
    )
    assert "True" in run(code, tmp_path, STEADYSWEEP_CRASH="step:1:nan").stdout
    assert set(ACTIONS) == {"kill", "term", "raise", "enospc", "torn", "sleep", "nan"}
