"""The README tells the truth: its map names every file, and its commands are those that CI runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.helpers.drivers import ROOT, environment

README = (ROOT / "README.md").read_text()


def map_of_files() -> set[str]:
    """The files that the map names, as paths from the root."""
    block = README.partition("## Map")[2].partition("```text\n")[2].partition("```")[0]
    found: set[str] = set()
    top = folder = ""
    for line in block.splitlines():
        if re.match(r"\w+/", line):
            top = folder = line.split()[0]
            continue
        entry = re.match(r"  (\S+)", line)
        if entry and not line.startswith("   "):
            name = entry.group(1)
            folder = top + name if name.endswith("/") else top
            if name.endswith(".py"):
                found.add(top + name)
        if folder != top or line.startswith("   "):
            found.update(folder + name for name in re.findall(r"\b(\w+\.py)\b", line.partition(": ")[2] or line))
    return found


def test_the_map_names_every_file_and_no_other() -> None:
    there = {
        str(path.relative_to(ROOT))
        for folder in ("trainable", "sweeps", "cluster")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py"
    }
    assert map_of_files() == there


def test_every_file_that_is_named_exists() -> None:
    for name in re.findall(r"`((?:trainable|sweeps|cluster|tests|benchmarks)/[\w./]*)`", README):
        assert (ROOT / name).exists(), name


def test_ci_runs_the_test_command_of_the_readme() -> None:
    (command,) = re.findall(r"^python3 -m venv .*pytest$", README, re.MULTILINE)
    assert command in (ROOT / ".ci/run").read_text()


def test_every_dependency_is_pinned() -> None:
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    named = re.findall(r'^    "([\w.-]+)(?:\[\w+\])?>=', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert len(named) > 10
    assert {name.lower() for name in named} <= pinned


def test_the_example_task_trains(tmp_path: Path) -> None:
    """The task that the README shows is complete, and its sine is learned."""
    code = README.partition("```python\n")[2].partition("```")[0]
    assert len(code.splitlines()) <= 40
    (tmp_path / "my_task.py").write_text(code)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "trainable",
            "--task",
            "my_task.py:Sine",
            "--epochs",
            "20",
            "--set",
            "lr=1e-2",
            "--json",
        ],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(re.findall(r'"val_loss": ([\d.e-]+)', done.stdout)[-1]) < 0.05
