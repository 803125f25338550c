"""Imports go down only, and each foreign library has its place: read from the source, nothing is run."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.drivers import ROOT, environment

# From the top down. A module may import those of lower floors, and of its own where that makes no circle.
FLOORS = [
    {"sweeps.api"},
    {"sweeps.lr_scan", "sweeps.search", "sweeps.ship", "sweeps.fetch", "sweeps.show", "sweeps.__main__"}
    | {"sweeps.accept", "sweeps.questions", "sweeps.report", "sweeps.monitor"}
    | {"cluster.check"},
    {"sweeps.command", "sweeps.running.plan", "sweeps.callable", "sweeps.monitoring"},
    {"sweeps.running.conduct", "sweeps.lr.answer", "sweeps.searching.answer", "sweeps.release"} | {"sweeps.reporting"},
    {"sweeps.answers.judgement"},
    {"sweeps.running.run", "sweeps.running.resume", "sweeps.running.keeper", "sweeps.running.opening"}
    | {"sweeps.running.scheduling", "sweeps.running.observer", "sweeps.running.waiting"}
    | {"sweeps.running.rays_words", "sweeps.running.run_ids"}
    | {
        "sweeps.running.progress",
        "sweeps.running.live",
        "sweeps.running.sparkline",
        "sweeps.running.budget",
        "sweeps.running.account",
    }
    | {"sweeps.tracking.tracker", "sweeps.tracking.runs", "sweeps.tracking.moved"}
    | {"sweeps.tracking.tags", "sweeps.tracking.files", "sweeps.tracking.dataset", "sweeps.tracking.client"}
    | {"sweeps.answers.tables", "sweeps.answers.overview", "sweeps.answers.result", "sweeps.answers.remarks"}
    | {"sweeps.answers.seeds", "sweeps.lr.descent", "sweeps.lr.finder", "sweeps.searching.files", "sweeps.cli"},
    {"sweeps.sweep", "sweeps.spaces", "sweeps.record", "sweeps.searching", "sweeps.tracking.spelling"}
    | {"sweeps.running.packing", "sweeps.running.measuring"}
    | {"sweeps.running.placement", "sweeps.running.signals", "sweeps.running.failures", "sweeps.running.work"},
    {
        "sweeps.answers.statistics",
        "sweeps.answers.diagnosis",
        "sweeps.answers.doubts",
        "sweeps.lr.ranges",
        "sweeps.running.doors",
        "cluster.connect",
        "cluster.capacity",
        "cluster.drain",
        "cluster.fit",
        "cluster.job",
        "cluster.ask",
        "cluster.nodes",
        "cluster.token",
        "cluster.reaper",
    },
    {
        "trainable.trial",
        "trainable.followers",
        "trainable.kept",
        "trainable.checks",
        "trainable.contract",
        "trainable.single",
        "trainable.__main__",
    }
    | {"trainable.lr_range_test", "trainable.probe", "trainable.peak", "trainable.inference", "trainable.release"},
    {"trainable.loop", "trainable.step", "trainable.evaluation", "trainable.undo", "trainable.training"}
    | {"trainable.latency"},
    {
        "trainable.state",
        "trainable.checkpoint",
        "trainable.saving",
        "trainable.mirror",
        "trainable.data",
        "trainable.loader",
    }
    | {
        "trainable.optim",
        "trainable.memory",
        "trainable.group",
        "trainable.average",
        "trainable.muon",
        "trainable.clipping",
    }
    | {"trainable.interval", "trainable.report", "trainable.schedule", "trainable.workers", "trainable.tasks"}
    | {"trainable.vision", "trainable.tabular", "trainable.text", "trainable.mlp"},
    {"trainable.config", "trainable.task", "trainable.device", "trainable.seeding", "trainable.precision"}
    | {"trainable.declared", "trainable.settings", "trainable.plain", "trainable.files"}
    | {"trainable.manifest", "trainable.marks", "trainable.objects"}
    | {"trainable.crashpoint", "trainable.watchdog", "trainable.limits"}
    | {"trainable.release.fresh", "trainable.release.columns", "trainable.release.holm"}
    | {"trainable.system", "trainable.output"},
]
PLACES = {
    "ray": {
        "trainable.trial",
        "trainable.followers",
        "trainable.marks",
        "sweeps.running.run",
        "sweeps.running.keeper",
        "sweeps.running.scheduling",
    }
    | {"sweeps.running.observer"}
    | {"cluster.connect", "cluster.drain", "cluster.ask", "cluster.token"},
    "optuna": {"sweeps.record.ledger", "sweeps.record.trial", "sweeps.record.reopen", "sweeps.record.writes"}
    | {"sweeps.record.home", "sweeps.record.postgres"}
    | {"sweeps.running.run"}
    | {"sweeps.spaces.draw", "sweeps.spaces.function", "sweeps.searching.samplers", "sweeps.searching.proposals"}
    | {"sweeps.searching.beginnings", "sweeps.searching.outcomes", "sweeps.searching.pruners"}
    | {"sweeps.reporting.importance"},
    "psycopg": {"sweeps.record.address"},
    "pyarrow": {"trainable.objects"},
    "mlflow": {"sweeps.tracking.runs", "sweeps.tracking.client", "sweeps.tracking.dataset"}
    | {"sweeps.release.packaging", "sweeps.release.registry", "sweeps.release.released", "sweeps.monitoring.logged"},
    "rich": {"sweeps.api", "sweeps.lr_scan", "sweeps.search", "sweeps.show", "sweeps.__main__", "sweeps.command"}
    | {
        "sweeps.running.progress",
        "sweeps.running.live",
        "sweeps.running.conduct",
        "sweeps.running.plan",
        "sweeps.answers.tables",
    }
    | {"sweeps.report", "cluster.check"}
    | {"trainable.single.console"},
    "matplotlib": {"sweeps.release.pictures", "sweeps.reporting.png"} | {"sweeps.monitoring.picture"},
    "scipy": {"sweeps.answers.statistics", "sweeps.reporting.compare"}
    | {"trainable.release.drift", "trainable.release.decay"},
    "sklearn": {"trainable.tasks.digits", "trainable.tabular.preparation"},
    "pandas": {"sweeps.answers.result", "trainable.tabular.schema", "trainable.tabular.preparation"}
    | {"trainable.tabular.arrived"},
    "torchvision": {"trainable.vision.official", "trainable.vision.folder", "trainable.vision.images"}
    | {"trainable.vision.backbone"},
    "PIL": {"trainable.vision.images"},
}
# A task is looked up by its name, and a task may use what the others offer.
LOOKED_UP = {"trainable.tasks.digits": {"trainable.data"}}


def sources() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for folder in ("trainable", "sweeps", "cluster")
        for path in (ROOT / folder).rglob("*.py")
    }


def imports(path: Path) -> set[str]:
    """The full names that a file imports, also inside functions, but not for types only."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    for_types = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
    return found


def floor(module: str) -> int:
    """Counted from the ground. A module that is named itself stands there, the others where their package does."""
    heights = {name: height for height, modules in enumerate(reversed(FLOORS)) for name in modules}
    for name in (module, *map(".".join, _packages_of(module))):
        if name in heights:
            return heights[name]
    raise AssertionError(f"{module} stands on no floor: say in FLOORS where it belongs")


def _packages_of(module: str) -> list[list[str]]:
    parts = module.split(".")
    return [parts[:length] for length in range(len(parts) - 1, 0, -1)]


def ours() -> dict[str, set[str]]:
    """Each module and those of ours that it imports."""
    modules = sources()
    packages = {"trainable", "sweeps", "cluster"}
    return {
        module: {name for name in imports(path) if name in modules and name not in packages} - {module}
        for module, path in modules.items()
        if module not in packages
    }


def test_imports_go_down_only() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, names in ours().items()
        for name in names
        if floor(name) > floor(module) and name not in LOOKED_UP.get(module, ())
    ]
    assert wrong == []


def test_there_are_no_circles() -> None:
    graph = ours()
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join([*above, module])
        if module in done:
            return
        for name in graph[module]:
            visit(name, (*above, module))
        done.add(module)

    for module in graph:
        visit(module, ())


def test_trainable_knows_no_sweep_and_cluster_knows_nothing_of_ours() -> None:
    for module, names in ours().items():
        own = module.partition(".")[0]
        if module == "cluster.check":
            own = "sweeps"  # a command, which only has its name from here
        allowed = {"trainable": {"trainable"}, "cluster": {"cluster"}, "sweeps": {"trainable", "cluster", "sweeps"}}[
            own
        ]
        if own == "cluster":
            names = names - {"trainable.objects"}  # a leaf that knows nothing of trials: each node tries the store
        assert {name.partition(".")[0] for name in names} <= allowed, module


@pytest.mark.parametrize("library", PLACES)
def test_each_library_has_its_place(library: str) -> None:
    users = {module for module, path in sources().items() if any(n.partition(".")[0] == library for n in imports(path))}
    assert users <= PLACES[library]


def test_no_file_is_where_everything_meets() -> None:
    long = {module: len(path.read_text().splitlines()) for module, path in sources().items()}
    assert {module: lines for module, lines in long.items() if lines > 330} == {}


def run_python(code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_loop_runs_where_only_torch_is(tmp_path: Path) -> None:
    """A bare GPU machine has torch and numpy; the loop must train there."""
    run_python(
        """
import sys
for name in ("ray", "optuna", "mlflow", "sklearn", "rich", "ruamel", "torchvision", "matplotlib", "filelock"):
    sys.modules[name] = None
import torch
from dataclasses import dataclass
from trainable.config import TrainConfig
from trainable.loop import advance, start
from trainable.task import Splits, Task

@dataclass(frozen=True)
class Line(Task):
    def model(self): return torch.nn.Linear(1, 1)
    def splits(self, seed):
        x = torch.linspace(0, 1, 64)[:, None]
        return Splits(train=(x, 2 * x), val=(x, 2 * x))
    def loss(self, outputs, batch): return ((outputs - batch[1]) ** 2).sum()

run = start(Line(), TrainConfig(lr=0.1, epochs=20), Line().splits(0))
while not (report := advance(run)).done: pass
assert report.metrics["val_loss"] < 0.05, report
""",
        tmp_path,
    )


def test_a_driver_does_not_pay_for_torch(tmp_path: Path) -> None:
    run_python(
        "import sys, sweeps.lr_scan as scan; scan.parser().parse_args(['--lrs', '1e-3']);"
        "import sweeps.running.run; assert 'torch' not in sys.modules",
        tmp_path,
    )


def test_no_sweep_reaches_the_test_samples() -> None:
    """Only acceptance opens them, once."""
    users = {
        module
        for module, path in sources().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if _names_the_test_part(node)
    }
    # The contract is no sweep: it asks of a task, in its own test, whether anybody trains on them.
    assert users <= {"sweeps.accept", "trainable.contract"}


def _names_the_test_part(node: ast.AST) -> bool:
    """`anything.test`, `getattr(anything, "test")`, `operator.methodcaller("test")` and the like."""
    if isinstance(node, ast.Attribute):
        return node.attr == "test"
    if not isinstance(node, ast.Call) or not any(isinstance(a, ast.Constant) and a.value == "test" for a in node.args):
        return False
    return ast.unparse(node.func).rpartition(".")[2] in ("getattr", "methodcaller", "attrgetter", "__getattribute__")
