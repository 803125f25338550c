"""The README tells the truth: its map names every file, and its commands are those that CI runs."""

from __future__ import annotations

import dataclasses
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cluster import check
from sweeps import accept, lr_scan, search
from sweeps.searching.beginnings import proposed_ahead
from sweeps.sweep import Sweep
from tests.helpers.drivers import ROOT, environment, run_command
from trainable.config import TrainConfig
from trainable.task import known_tasks

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


def example(file: str) -> str:
    """The code that the README shows as `file`."""
    (code,) = re.findall(rf"```python\n(# {re.escape(file)}.*?)```", README, re.DOTALL)
    return str(code)


def test_the_example_task_trains(tmp_path: Path) -> None:
    """The task that the README shows is complete, and its sine is learned."""
    code = example("my_task.py")
    assert len(code.splitlines()) <= 40
    (tmp_path / "my_task.py").write_text(code)
    arguments = ["--task", "my_task.py:Sine", "--epochs", "20", "--set", "lr=1e-2", "--set", "task.width=32", "--json"]
    done = run_command(*arguments, cwd=tmp_path, module="trainable")
    assert done.returncode == 0, done.stderr
    assert float(re.findall(r'"val_loss": ([\d.e-]+)', done.stdout)[-1]) < 0.05


def test_the_example_space_can_be_searched() -> None:
    (code,) = re.findall(r"```yaml\n(# space.yaml.*?)```", README, re.DOTALL)
    sweep = Sweep(
        name="s",
        question="search",
        task="digits",
        train=TrainConfig(threads=1),
        space=YAML(typ="safe", pure=True).load(code),
        num_trials=40,
    )
    found = proposed_ahead(sweep, None, 10)
    assert {params["optimizer"] for params in found} == {"adamw", "sgd"}
    assert all(("nesterov" in params) is (params["optimizer"] == "sgd") for params in found)


@pytest.mark.parametrize(
    ("title", "commands"),
    [("Search", (search, lr_scan)), ("Accept", (accept,)), ("On a cluster", (lr_scan, check))],
)
def test_every_flag_that_is_named_exists(title: str, commands: tuple[Any, ...]) -> None:
    flags = {flag for command in commands for a in command.parser()._actions for flag in a.option_strings}
    section = README.partition(f"### {title}\n")[2].partition("\n### ")[0]
    assert section
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", section)) <= flags


@pytest.mark.slow
def test_the_example_of_python_runs(tmp_path: Path) -> None:
    (tmp_path / "my_sweep.py").write_text(example("my_sweep.py"))
    done = subprocess.run(
        [sys.executable, "my_sweep.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Best: trial ")
    assert "val_accuracy" in done.stdout


def test_the_example_keeps_the_contract(tmp_path: Path) -> None:
    """The test that the README shows finds the task, and every law holds."""
    for file in ("my_task.py", "test_my_task.py"):
        (tmp_path / file).write_text(example(file))
    assert len(example("test_my_task.py").splitlines()) <= 7
    done = run_command("-q", "-p", "no:cacheprovider", cwd=tmp_path, module="pytest")
    assert done.returncode == 0, done.stdout
    assert "12 passed" in done.stdout


def test_every_built_in_task_is_listed() -> None:
    rows = README.partition("## Tasks")[2].partition("```")[0]
    listed = {
        name for row in rows.splitlines() if row.startswith("| `") for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert listed == set(known_tasks())
    for row in rows.splitlines():
        if row.startswith("| `"):
            cells = row.split("|")
            for name in re.findall(r"`(\w+)`", cells[1]):
                fields = {item.name for item in dataclasses.fields(task_class(name))}
                assert set(re.findall(r"`(\w+)`", cells[3])) <= fields, name


def task_class(name: str) -> Any:
    module = importlib.import_module(f"trainable.tasks.{name}")
    return getattr(module, "".join(word.capitalize() for word in name.split("_")))
