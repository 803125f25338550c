"""`python -m sweeps.report`: what the page says and how it is written, of sweeps whose answer is known beforehand."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import math
import os
import re
import shutil
import socket
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy
import pytest

from sweeps import report
from sweeps.questions import judge_of
from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.reporting.importance import importances
from sweeps.reporting.make import try_report
from tests.helpers.drivers import run_command
from tests.helpers.told import Said, scan, search

SPACE = {"lr": {"log": [1e-4, 1e-1]}, "optimizer": {"choice": ["adamw", "sgd"]}}
EVIL = """</script><script>document.title="owned"</script>'"><img src=x onerror=alert(1)>&amp;{{7*7}}$x$"""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page(HTMLParser):
    """What a browser makes of a page, as far as a parser can tell."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: dict[str, str] = {}
        self._in: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._in.append(dict(attrs).get("id") or tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._in.pop()

    def handle_data(self, data: str) -> None:
        if self._in:
            self.scripts[self._in[-1]] = self.scripts.get(self._in[-1], "") + data
        else:
            self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.tags if found == tag]

    @property
    def figures(self) -> dict[str, Any]:
        return dict(json.loads(self.scripts["figures"]))


@pytest.fixture
def searched(launch_folder: Path) -> Folder:
    """The best overfits; one diverged, two failed alike, one was pruned."""
    overfit = Said(train=(1.0, 0.5, 0.3, 0.2, 0.1, 0.05), val=(0.9, 0.4, 0.45, 0.5, 0.55, 0.6))
    return search(
        launch_folder / "results/found",
        SPACE,
        [
            ({"lr": 1e-3, "optimizer": "adamw"}, Said(val=(1.5, 1.2, 1.1))),
            ({"lr": 2e-3, "optimizer": "adamw"}, overfit),
            (
                {"lr": 9e-2, "optimizer": "sgd"},
                Said("diverged", (1.5, math.nan), (1.4,), "the loss became nan at step 17"),
            ),
            ({"lr": 3e-4, "optimizer": "sgd"}, Said("failed", (), (), "boom at 0x11")),
            ({"lr": 4e-4, "optimizer": "sgd"}, Said("failed", (), (), "boom at 0x22")),
            ({"lr": 5e-4, "optimizer": "sgd"}, Said("pruned", (2.2,), (2.2,), "pruned after epoch 1")),
            ({"lr": 5e-3, "optimizer": "sgd"}, Said(val=(1.4, 1.3, 1.25))),
            ({"lr": 6e-3, "optimizer": "sgd"}, Said(val=(1.4, 1.3, 1.28))),
        ],
        epochs=6,
    )


def everything(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_what_it_says(searched: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(searched.path)
    assert report.main(["found"]) == 0
    said = capsys.readouterr().out
    for words in (
        "found (finished)", "Best: trial 1 with val_loss 0.6",
        "trial 1, overfits: val_loss rose from 0.4 at epoch 2", "more dropout",
        "next     python -m sweeps.search --task digits", "weight_decay=log:", "task.dropout=float:",
        f"report   {searched.path}/report.html",
    ):  # fmt: skip
        assert words in said, said
    after = everything(searched.path)
    assert {path: found for path, found in after.items() if path in before} == before  # the ledger and all else
    new = {path.name for path in after if path not in before}
    assert new == {"report.html", "loss_curves.png", "parameters.png", "importances.png", "parallel.png", "history.png",
                   "timeline.png"}  # fmt: skip
    for path in searched.path.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG"), path
    page = Page(searched.path / "report.html")
    for words in ("Best: trial 1", "boom at 0x11", "pruned after epoch 1", "the loss became nan",
                  "fANOVA", "Do not rely on it", "optuna-dashboard", "mlflow ui", "--resume found"):  # fmt: skip
        assert words in page.text, words
    assert "boom at 0x22" not in page.text  # alike, and counted with the first


def test_the_page_stands_alone(searched: Folder) -> None:
    """Nothing is fetched, and what draws is whole."""
    report.main(["found"])
    path = searched.path / "report.html"
    page = Page(path)
    assert path.stat().st_size < 3_000_000
    assert not [a for _, attributes in page.tags for a in ("src", "srcset", "action", "poster") if a in attributes]
    assert {attributes["href"] for _, attributes in page.tags if "href" in attributes} <= {"#main", "data:,"}
    (policy,) = [a["content"] for a in page.named("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    library = gzip.decompress(base64.b64decode(page.scripts["library"]))
    assert b"Plotly" in library
    assert len(library) > 1_000_000
    assert set(page.figures) == {"loss_curves", "parameters", "importances", "parallel", "history", "timeline"}


def test_it_can_be_read_without_seeing_it(searched: Folder) -> None:
    report.main(["found"])
    page = Page(searched.path / "report.html")
    assert page.named("html")[0]["lang"] == "en"
    assert len(page.named("h1")) == 1
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert len(page.named("table")) == len(page.named("caption")) > 0
    assert all(attributes.get("scope") == "col" for attributes in page.named("th"))
    drawn = [attributes for attributes in page.named("div") if attributes.get("role") == "img"]
    assert len(drawn) == len(page.figures)
    assert all(attributes["aria-label"] for attributes in drawn)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    plots = {name for name in ids if str(name).startswith("plot-")}
    assert plots == {f"plot-{name}-{index}" for name, panels in page.figures.items() for index in range(len(panels))}
    labels = [attributes["aria-labelledby"] for _, attributes in page.tags if "aria-labelledby" in attributes]
    assert set(labels) <= set(ids)


def test_what_a_user_wrote_is_text(launch_folder: Path) -> None:
    """Values, reasons and settings with markup, quotes and formulas: they stand there as they are written."""
    folder = search(
        launch_folder / "results/evil",
        {"lr": {"log": [1e-4, 1e-1]}, "freeze": {"choice": [[EVIL], ["b"]]}},
        [
            ({"lr": 1e-3, "freeze": [EVIL]}, Said()),
            ({"lr": 2e-3, "freeze": ["b"]}, Said("failed", (1.0,), (1.0,), f"reason {EVIL}")),
            ({"lr": 3e-3, "freeze": [EVIL]}, Said(val=(1.0, 0.9, 0.85))),
        ],
    )
    assert report.main(["evil"]) == 0
    page = Page(folder.path / "report.html")
    assert len(page.named("script")) == 3
    assert page.named("img") == []
    assert f"reason {EVIL}" in page.text
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    texts = json.dumps(page.figures)
    assert "&lt;img" in texts  # plotly reads tags in its texts
    assert "<img" not in texts


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no browser")
def test_a_browser_draws_it_without_an_error(searched: Folder, launch_folder: Path) -> None:
    report.main(["found"])
    found = browse(searched.path / "report.html", launch_folder)
    assert 'data-drawn="yes"' in found.stdout
    assert found.stdout.count('class="main-svg"') >= 6
    assert "CONSOLE" not in found.stderr, found.stderr


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no browser")
def test_a_browser_runs_nothing_that_a_user_wrote(launch_folder: Path) -> None:
    folder = search(
        launch_folder / "results/evil",
        {"lr": {"log": [1e-4, 1e-1]}, "freeze": {"choice": [[EVIL], ["b"]]}},
        [({"lr": 1e-3, "freeze": [EVIL]}, Said()), ({"lr": 2e-3, "freeze": ["b"]}, Said())],
    )
    report.main(["evil"])
    found = browse(folder.path / "report.html", launch_folder)
    assert 'data-drawn="yes"' in found.stdout
    assert "<title>evil</title>" in found.stdout
    assert "onerror=" not in re.sub(r"&lt;img src=x onerror=", "", found.stdout.partition("<script")[0])
    assert "CONSOLE" not in found.stderr, found.stderr


def browse(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The page after its script has run, with what the console said."""
    return subprocess.run(
        [
            str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'browser'}",
            "--virtual-time-budget=8000", "--enable-logging=stderr", "--v=0", "--dump-dom", page.as_uri(),
        ],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_before_anything_is_known(launch_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No trial has begun, one has not reported, all diverged: still a page that says so."""
    scan(launch_folder / "results/new", [1e-3, 1e-2], [])
    scan(launch_folder / "results/begun", [1e-3, 1e-2], [Said("running", (), ())])
    scan(launch_folder / "results/lost", [1e-3, 1e-2], [Said("diverged", (math.inf,), (), "loss inf")] * 2)
    scan(launch_folder / "results/one", [1e-3], [Said()])
    for name, words in (
        ("new", "No trial has reported yet"),
        ("begun", "Interrupted: 0 of 2 trials are done; there is no answer yet."),
        ("lost", "No learning rate has an answer"),
        ("one", "it is the only value tried"),
    ):
        assert report.main([name]) == 0, name
        page = Page(launch_folder / "results" / name / "report.html")
        assert words in page.text, page.text
        assert "What to try next" in page.text
    assert "--lrs 0.001 0.01 0.0001" in capsys.readouterr().out  # of those that diverged


def test_a_sweep_that_runs(searched: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so, advises nothing yet, and leaves the driver alone."""
    owner = searched.path / "owner.json"
    owner.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
    before = everything(searched.path)
    assert report.main(["found"]) == 0
    said = capsys.readouterr().out
    assert "found (running)" in said
    assert "Running: 8 of 8 trials are done. So far: Best: trial 1" in said
    assert "\nnext " not in said
    assert {path: found for path, found in everything(searched.path).items() if path in before} == before


def test_over_seeds(launch_folder: Path) -> None:
    points = tuple({"lr": lr, "seed": seed} for seed in (0, 1, 2) for lr in (1e-3, 1e-2))
    scan(launch_folder / "results/seeds", [1e-3, 1e-2], [Said()] * 6, points=points)
    report.main(["seeds"])
    page = Page(launch_folder / "results/seeds/report.html")
    assert "2 configurations over seeds" in page.text
    assert "3 of 3" in page.text
    assert "tie" in page.text  # they said the same


def test_several_objectives(launch_folder: Path) -> None:
    """Of three trials two are beaten by none; the figure and the words agree with that."""
    values = [(0.5, 0.9), (0.4, 0.7), (0.6, 0.6)]
    search(
        launch_folder / "results/pareto",
        {"lr": {"log": [1e-4, 1e-1]}},
        [
            ({"lr": 10 ** -(i + 1.5)}, Said(val=(a,), train=(1.0,), more={"val_accuracy": b}))
            for i, (a, b) in enumerate(values)
        ],
        metrics=(("val_loss", "min"), ("val_accuracy", "max")),
        epochs=1,
    )
    report.main(["pareto"])
    page = Page(launch_folder / "results/pareto/report.html")
    assert "3 trials by val_loss and val_accuracy; 2 of them are beaten by no other." in [
        attributes.get("aria-label") for attributes in page.named("div")
    ]
    (panel,) = page.figures["pareto"]
    (front,) = [trace for trace in panel["data"] if trace["name"] == "beaten by none"]
    assert sorted(zip(front["x"], front["y"], strict=True)) == [(0.4, 0.7), (0.5, 0.9)]


def test_the_timeline_is_who_worked_when(launch_folder: Path) -> None:
    """Two at a time, the third after the first; a pause of a minute makes two stretches of one trial."""
    three = [Said(start_s=0.0), Said(start_s=1.0, breaks={1: 60.0}), Said(start_s=3.5)]
    scan(launch_folder / "results/times", [1e-3, 1e-2, 1e-1], three)
    report.main(["times"])
    (panel,) = Page(launch_folder / "results/times/report.html").figures["timeline"]
    (trace,) = panel["data"]
    rows = sorted((base, base + x, y) for base, x, y in zip(trace["base"], trace["x"], trace["y"], strict=True))
    assert rows == [
        (pytest.approx(begin), pytest.approx(end), row)
        for begin, end, row in [(0.0, 3.0, 0), (1.0, 2.0, 1), (3.5, 6.5, 0), (62.0, 64.0, 0)]
    ]


@pytest.mark.slow
def test_hundreds_of_trials_stay_small(folder: Path) -> None:
    long = Said(train=[2.3 - 0.3 * i for i in range(6)], val=[2.3 - 0.2 * i for i in range(6)])
    lrs = [round(10 ** (-4 + 3 * i / 299), 8) for i in range(300)]
    scan(folder / "results/many", lrs, [long] * 300, epochs=6)
    assert report.main(["many", "--results", str(folder / "results")]) == 0
    path = folder / "results/many/report.html"
    assert path.stat().st_size < 4_000_000
    page = Page(path)
    assert "The 8 best are coloured" in page.text
    assert "the first 200 of them" in page.text
    points = sum(len(trace["x"]) for trace in page.figures["loss_curves"][0]["data"] if "markers" not in trace["mode"])
    assert points <= 300 * 66  # of 60 steps each: 20,000 in all


def test_importance_finds_what_decides() -> None:
    """The value is 100 times as much by one parameter as by the other; a third does nothing."""
    numbers = numpy.random.default_rng(0)
    points = [
        {
            "lr": float(10 ** numbers.uniform(-4, -1)),
            "optimizer": str(numbers.choice(["a", "b"])),
            "idle": float(numbers.uniform()),
        }
        for _ in range(200)
    ]
    values = [10 * abs(math.log10(point["lr"]) + 2) + (0.1 if point["optimizer"] == "a" else 0.0) for point in points]
    found = importances(points, values, ["lr", "optimizer", "idle"])
    assert next(iter(found)) == "lr"
    assert found["lr"] > 0.95
    assert sum(found.values()) == pytest.approx(1.0)
    assert importances(points, [1.0] * 200, ["lr", "idle"]) == {}


def test_several_are_compared(launch_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = launch_folder / "results"
    points = tuple({"lr": 1e-3, "seed": seed} for seed in (0, 1, 2))
    scan(
        results / "a", [1e-3], [Said(val=(value,), train=(1.0,)) for value in (1.0, 1.1, 1.2)], points=points, epochs=1
    )
    search(results / "b", {"lr": {"log": [1e-4, 1e-1]}}, [({"lr": 1e-2}, Said())], task_settings={"width": 32})
    assert report.main(["a", "b"]) == 0
    said = capsys.readouterr().out
    # Mean 1.1, standard error 0.0577, Student's t of 2 degrees of freedom 4.303: 1.1 +- 0.2484.
    assert "1.1 (0.8516 to 1.348 over 3 seeds)" in said
    assert "0.8 (one seed)" in said
    assert "They rank by different metrics (a: descent_speed; b: val_loss)" in said
    assert "the settings of the task differ" in said
    assert "a: 1 epoch; b: 3 epochs" in said
    assert (results / "comparison.png").read_bytes().startswith(b"\x89PNG")
    page = Page(results / "comparison.html")
    assert "0.8516" in page.text
    assert list(page.figures) == ["comparison"]


def test_other_data_are_named(launch_folder: Path) -> None:
    for name, data in (("a", "1" * 64), ("b", "2" * 64)):
        folder = scan(launch_folder / "results" / name, [1e-3], [Said()])
        ledger = Ledger(folder.ledger)
        ledger.note("data", {"key": data})
        ledger.close()
    report.main(["a", "b"])
    assert (
        "different data, or on another split of them: a: 11111111; b: 22222222"
        in Page(launch_folder / "results/comparison.html").text
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none"], "no such sweep"),
        (["../x"], "may only have letters"),
        (["a", "none"], "no such sweep"),
        (["a", "--to", "results/a/ledger.db/x"], "cannot be made"),
    ],
)
def test_bad_input(arguments: list[str], words: str, launch_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scan(launch_folder / "results/a", [1e-3], [Said()])
    before = everything(launch_folder)
    with pytest.raises(SystemExit) as left:
        report.main(arguments)
    assert left.value.code == 2
    assert words in capsys.readouterr().err
    assert everything(launch_folder) == before


def test_as_a_command_to_another_place(launch_folder: Path) -> None:
    folder = scan(launch_folder / "results/a", [1e-3, 1e-2], [Said(), Said(val=(1.0, 0.9, 0.7))])
    before = everything(folder.path)
    done = run_command("a", "--to", "elsewhere", cwd=launch_folder, module="sweeps.report")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert (launch_folder / "elsewhere/report.html").is_file()
    assert everything(folder.path) == before


def test_a_report_that_fails_is_a_remark(searched: Folder) -> None:
    """At the end of a sweep: the answer is on the disk, and no picture is worth it."""
    (searched.path / "report.html").mkdir()
    ledger = Ledger(searched.ledger)
    history = History(searched.history)
    judgement = judge_of(ledger)(ledger.trials(), history)
    made, remark = try_report(searched, ledger, history, judgement, "finished", "as it is")
    ledger.close()
    assert made is None
    assert remark is not None
    assert "IsADirectoryError" in remark
    assert "python -m sweeps.report found" in remark


def test_from_python(searched: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """The module is the function too, and says nothing on stdout."""
    assert report("found", to=searched.path.parent / "there") == searched.path.parent / "there/report.html"
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match="no such sweep"):
        report(["found", "none"])


def test_figures_that_are_gone(launch_folder: Path) -> None:
    """What an earlier report drew, and there is nothing of now, does not stay as if it were of today."""
    folder = scan(launch_folder / "results/a", [1e-3, 1e-2], [Said(), Said()])
    (folder.path / "importances.png").write_bytes(b"old")
    (folder.path / "mine.png").write_bytes(b"the user's")
    report.main(["a"])
    assert not (folder.path / "importances.png").exists()
    assert (folder.path / "mine.png").read_bytes() == b"the user's"
