"""What a report advises: for each answer that leaves something open, one command, which its own command accepts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sweeps import accept, report
from sweeps.command import asked_of
from sweeps.questions import QUESTIONS
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.reporting.command_line import space_flag
from sweeps.reporting.facts import Facts
from sweeps.reporting.next_step import NextStep, next_step
from sweeps.running.resume import resumed
from sweeps.spaces.grammar import parse_space
from sweeps.spaces.text import parse_space_text
from tests.helpers.drivers import run_command
from tests.helpers.told import Said, scan, search

FITS = Said(train=(0.5, 0.3, 0.25, 0.24, 0.238, 0.237), val=(0.6, 0.4, 0.35, 0.34, 0.338, 0.337))
OVERFITS = Said(train=(1.0, 0.5, 0.3, 0.2, 0.1, 0.05), val=(0.9, 0.3, 0.35, 0.4, 0.45, 0.5))
FALLS = Said(train=(2.0, 1.7, 1.4, 1.1, 0.8, 0.5), val=(2.0, 1.6, 1.3, 1.0, 0.7, 0.3))
UNDERFITS = Said(train=(2.1, 2.0, 1.99, 1.99, 1.99, 1.99), val=(2.1, 2.0, 1.99, 1.99, 1.99, 1.99))
RISES = Said(train=(1.0, 0.5, 0.4, 0.9, 1.3, 1.3), val=(1.0, 0.6, 0.5, 0.9, 1.4, 1.4))
LOST = Said("diverged", (float("inf"),), (), "the loss became inf")
SPACE = {"lr": {"log": [1e-4, 1e-1]}, "batch_size": {"choice": [16, 32]}}


def scanned(lrs: Sequence[float], said: Sequence[Said], **settings: Any) -> Callable[[Path], Folder]:
    return lambda folder: scan(folder, lrs, said, **settings)


def searched(said: Mapping[float, Said], space: Mapping[str, Any] = SPACE, **settings: Any) -> Callable[[Path], Folder]:
    points = [({"lr": lr, "batch_size": 16}, one) for lr, one in said.items()]
    return lambda folder: search(folder, space, points, epochs=6, **settings)


def points_over(lrs: Sequence[float], seeds: int) -> tuple[dict[str, Any], ...]:
    return tuple({"lr": lr, "seed": seed} for seed in range(seeds) for lr in lrs)


def speeds(*ends: float) -> list[Said]:
    """Of scans: the lower a loss ends, the faster it fell."""
    return [Said(train=(end,), val=(end,)) for end in ends]


THREE = [1e-3, 1e-2, 1e-1]
CASES: dict[str, tuple[Callable[[Path], Folder], list[str]]] = {
    "the largest of a scan": (scanned([1e-3, 1e-2], speeds(2.0, 1.0)), ["--resume x --extend-edges", "largest"]),
    "the only one": (scanned([1e-3], speeds(1.0)), ["--resume x --lrs 0.001 0.003", "only value"]),
    "none falls": (scanned([1e-3, 1e-2], [LOST, LOST]), ["--lrs 0.001 0.01 0.0001", "smaller"]),
    "one seed": (scanned([1e-3, 1e-2, 1e-1], speeds(2.0, 1.0, 2.0)), ["--resume x --seeds 3", "One seed"]),
    "a tie": (
        scanned(THREE, speeds(2.0, 1.0, 1.1, 2.1, 1.3, 1.3, 2.0, 1.2, 1.25), points=points_over(THREE, 3)),
        ["--resume x --seeds ", "within the noise"],
    ),
    "settled": (
        scanned(THREE, speeds(2.0, 1.0, 2.0) * 3, points=points_over(THREE, 3)),
        ["python -m sweeps.search --task digits --set epochs=5 --set lr=0.01 --trials 20", "settled"],
    ),
    "interrupted": (scanned([1e-3, 1e-2], [*speeds(1.0), Said("running", (), ())]), ["--resume x", "not done"]),
    "all failed": (
        scanned([1e-3, 1e-2], [Said("failed", (), (), "boom")] * 2),
        ["--resume x --retry-failed", "failed"],
    ),
    "at the end of a range": (
        searched({1e-3: UNDERFITS, 9.9e-2: FITS}),
        ["--resume x --space lr=log:0.0001..1 --space batch_size=choice:16,32 --trials 4", "lr=0.099"],
    ),
    "at the end of a branch": (
        lambda folder: search(
            folder,
            {"optimizer": {"choice": {"sgd": {"momentum": {"float": [0.0, 0.5]}}, "adamw": {}}}},
            [({"optimizer": "sgd", "momentum": 0.5}, FITS), ({"optimizer": "adamw"}, UNDERFITS)],
            epochs=6,
        ),
        ["--resume x --space results/x/next_space.json --trials 4", "momentum=0.5"],
    ),
    "too short": (searched({1e-3: FALLS, 2e-3: FITS}), ["--resume x --epochs 12", "still fall"]),
    "overfits": (
        searched({1e-3: OVERFITS, 2e-3: UNDERFITS}),
        ["python -m sweeps.search --task digits", "weight_decay=log:", "--set lr=0.001", "overfits"],
    ),
    "underfits": (
        searched({1e-3: UNDERFITS, 2e-3: LOST}),
        ["sweeps.lr_scan --task digits --set batch_size=16", "--lrs 1e-06..0.01:5"],
    ),
    "rose again": (searched({1e-2: RISES, 2e-3: LOST}), ["sweeps.lr_scan", "rose again"]),
    "all diverged": (searched({1e-2: LOST, 2e-2: LOST}), ["sweeps.lr_scan --task digits", "--lrs 1e-05..0.001:4"]),
    "the best came first": (
        searched({1e-3: FITS, 2e-3: UNDERFITS, 3e-3: UNDERFITS, 4e-3: UNDERFITS}),
        ["--points results/x/next_points.json --trials 3 --seeds 3", "over seeds"],
    ),
    "over seeds": (
        lambda folder: search(
            folder,
            {"lr": {"log": [1e-4, 1e-1]}},
            [({"lr": lr}, one) for lr, said in ((1e-3, FITS), (1e-2, UNDERFITS)) for one in [said] * 3],
            epochs=6, num_seeds=3, num_trials=2, each=3,
        ),
        ["python -m sweeps.accept x", "open the test samples"],
    ),
    "all that there is": (
        lambda folder: search(
            folder,
            {"batch_size": {"choice": [16, 32]}},
            [({"batch_size": 16}, UNDERFITS), ({"batch_size": 32}, FITS)],
            epochs=6, num_trials=9,
        ),
        ["--points results/x/next_points.json --trials 2 --seeds 3", "Every configuration"],
    ),
    "the best came last": (
        searched({1e-3: UNDERFITS, 2e-3: UNDERFITS, 3e-3: FITS}),
        ["--resume x --trials 6", "came late"],
    ),
}  # fmt: skip


def advised(folder: Folder) -> tuple[Facts, NextStep]:
    facts = report.facts_of(folder, folder.path)
    step = next_step(facts)
    assert step is not None
    return facts, step


@pytest.mark.parametrize("name", CASES)
def test_what_is_advised_is_accepted(name: str, launch_folder: Path) -> None:
    """The words, and the command read by its own parser: a new sweep can be planned, an old one resumed."""
    make, words = CASES[name]
    folder = make(launch_folder / "results/x")
    _, step = advised(folder)
    for text in words:
        assert text in f"{step.command} {step.why}", step
    if step.files:
        assert report.main(["x"]) == 0  # writes what the command reads
    program, *arguments = shlex.split(step.command.removeprefix("python -m "))
    if program == "sweeps.accept":
        accept.parser().parse_args(arguments)
        return
    question = QUESTIONS[program.removeprefix("sweeps.")]
    asked = asked_of(question.flags(), arguments)
    if "resume" not in asked:
        plan = plan_without_probe(question, asked)
        assert plan > 0
        return
    found = resumed(
        launch_folder / "results", asked, question.name, lambda sweep, noted: question.grown(sweep, noted, asked)
    )
    assert found.drift == []
    assert found.sweep.num_planned >= found.sweep.num_trials if found.sweep.num_trials else True


def plan_without_probe(question: Any, asked: Mapping[str, Any]) -> int:
    """How many trials the new sweep would have. That --plan, which trains a few steps too, says so is a slow test."""
    from rich.console import Console

    from sweeps.command import wish_of

    sweep, _, _ = question.new("y", asked, wish_of(asked), Console(quiet=True))
    return int(sweep.num_planned)


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("settled", "underfits")),
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("overfits", "the best came first")),
    ],
)
def test_what_is_advised_can_be_planned(name: str, launch_folder: Path) -> None:
    make, _ = CASES[name]
    _, step = advised(make(launch_folder / "results/x"))
    report.main(["x"])
    module, *arguments = shlex.split(step.command.removeprefix("python -m "))
    done = run_command(*arguments, "--plan", "--json", cwd=launch_folder, module=module)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["refused"] is None


@pytest.mark.slow
def test_what_is_advised_runs(launch_folder: Path) -> None:
    """A real scan, the advice it ends with, and the advice after that."""
    done = run_command("--name", "x", "--lrs", "1e-3", "3e-3", cwd=launch_folder)
    assert done.returncode == 0, done.stderr
    module, *arguments = shlex.split(line_of(done.stdout, "next").removeprefix("python -m "))
    assert arguments == ["--resume", "x", "--extend-edges"]
    done = run_command(*arguments, cwd=launch_folder, module=module)
    assert done.returncode == 0, done.stderr
    assert line_of(done.stdout, "next") == "python -m sweeps.lr_scan --resume x --seeds 3"


def line_of(said: str, name: str) -> str:
    (line,) = [line for line in said.splitlines() if line.startswith(f"{name} ")]
    return line.removeprefix(name).strip()


@pytest.mark.parametrize(
    ("ended_by", "words"),
    [("target", "sweeps.accept x"), ("max_time", "--trials 6 --max-time none"), (None, "--trials 6")],
)
def test_a_budget_that_ended_it_does_not_end_it_again(ended_by: str | None, words: str, launch_folder: Path) -> None:
    folder = CASES["the best came last"][0](launch_folder / "results/x")
    ledger = Ledger(folder.ledger)
    ledger.note("ended_by", ended_by)
    ledger.close()
    assert advised(folder)[1].command.endswith(words)


def test_another_place_and_store_come_along(launch_folder: Path) -> None:
    """From another folder the command still finds the sweep, and a new one is where the old one is."""
    settled = CASES["settled"][0]
    folder = settled(launch_folder / "a place/results/x")
    ledger = Ledger(folder.ledger)
    ledger.note("tracking_uri", "http://tracker:5000")
    ledger.close()
    words = shlex.split(advised(folder)[1].command)
    assert words[words.index("--results") + 1] == str(launch_folder / "a place/results")
    assert words[words.index("--tracking-uri") + 1] == "http://tracker:5000"


def test_what_the_command_reads_is_beside_the_report(launch_folder: Path) -> None:
    """Nothing is written into the sweep's folder where another place was asked for."""
    folder = CASES["at the end of a branch"][0](launch_folder / "results/x")
    before = {path.name for path in folder.path.iterdir()}
    assert report.main(["x", "--to", "there"]) == 0
    assert {path.name for path in folder.path.iterdir()} == before
    assert (launch_folder / "there/next_space.json").is_file()
    assert "--space there/next_space.json" in (launch_folder / "there/report.html").read_text()


@pytest.mark.parametrize(
    "spec",
    [
        {"log": [1e-5, 0.1]}, {"float": [0.0, 0.5], "step": 0.1}, {"int": [1, 4]}, {"int": [1, 100], "log": True},
        {"int": [2, 8], "step": 2}, {"choice": [16, 32]}, {"choice": ["adamw", "sgd"]}, {"choice": [True, False]},
        {"choice": [None, 1.0]}, {"choice": ["a b", "c,d", "1"]}, {"choice": [["head.*"], []]}, 3, "cosine", "1", "no",
    ],
)  # fmt: skip
def test_a_space_as_flags_reads_as_itself(spec: Any) -> None:
    entries = parse_space({"x": spec})
    flag = space_flag("x", entries["x"])
    assert flag is not None
    (_, text) = shlex.split(flag)
    assert parse_space({"x": parse_space_text(text)[1]}) == entries


def test_nothing_is_advised_for_a_space_that_flags_cannot_say() -> None:
    entries = parse_space({"optimizer": {"choice": {"sgd": {"momentum": {"float": [0.0, 0.9]}}, "adamw": {}}}})
    assert space_flag("optimizer", entries["optimizer"]) is None
