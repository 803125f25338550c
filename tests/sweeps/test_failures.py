"""Failures by kind: who is tried again, how often, and what is said; B21, B22 and trials that all fail alike."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from rich.console import Console

from sweeps import lr_scan
from sweeps.record.history import History
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder
from sweeps.record.trial import TrialRecord
from sweeps.running.conduct import Judgement, Outcome, conduct
from sweeps.running.failures import Failure, classify, may_try_again
from sweeps.running.placement import Wish
from sweeps.running.work import Work
from sweeps.sweep import Sweep
from tests.helpers.drivers import ROOT, result_of
from trainable.config import TrainConfig

Scan = Callable[..., tuple[int, dict[str, Any]]]
FRAGILE = f"{ROOT / 'tests/helpers/fragile.py'}:Fragile"

TASK_ERROR = "ray.exceptions.RayTaskError({0}): ray::ResourceTrainable.train() (pid=7, ip=127.0.0.1)\n  File x\n{1}"
DIED = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: Trial"
TEXTS = {
    DIED: "infrastructure",
    "ray.exceptions.ActorUnavailableError: The actor is temporarily unavailable": "infrastructure",
    "ray.exceptions.NodeDiedError: the node 10.0.0.7 has died": "infrastructure",
    "ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task.": "infrastructure",
    TASK_ERROR.format("OSError", "OSError: [Errno 116] Stale file handle: '/mnt/x'"): "infrastructure",
    TASK_ERROR.format("OSError", "OSError: [Errno 5] Input/output error"): "infrastructure",
    TASK_ERROR.format("OSError", "OSError: [Errno 28] No space left on device"): "infrastructure",
    f"{DIED}\nWorker exit type: NODE_OUT_OF_MEMORY. Task was killed due to the node running low on memory.": (
        "out of memory"
    ),
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.": "out of memory",
    TASK_ERROR.format("OutOfMemoryError", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"): (
        "out of memory"
    ),
    TASK_ERROR.format("OutOfMemory", "trainable.memory.OutOfMemory: one sample at a time does not fit in memory"): (
        "out of memory"
    ),
    TASK_ERROR.format("MemoryError", "MemoryError"): "out of memory",
    TASK_ERROR.format("RuntimeError", "RuntimeError: the mood was bad"): "exception",
    # What a user's error talks about is not what happened.
    TASK_ERROR.format("RuntimeError", "RuntimeError: NodeDiedError is what I expected"): "exception",
    TASK_ERROR.format("ValueError", "  raise OutOfMemory\nValueError: lr must be above 0"): "exception",
    "ActorDiedError: The actor died because of an error raised in its creation task\nKeyError: 'a'": "exception",
    "no message": "exception",
}


@pytest.mark.parametrize("text", TEXTS)
def test_kinds(text: str) -> None:
    assert classify(text).kind == TEXTS[text]


def test_what_the_watchdog_wrote_comes_first() -> None:
    failure = classify(DIED, "no progress for 31 s at step 12\nThread 0x1\n  File y")
    assert (failure.kind, failure.line) == ("stalled", "no progress for 31 s at step 12")
    assert "File y" in failure.reason
    assert classify(DIED, "").kind == "infrastructure"


@pytest.mark.parametrize(
    ("kinds", "retries", "again"),
    [
        (["exception"], 0, False),
        (["exception"], 1, True),
        (["exception", "exception"], 1, False),
        (["exception"] * 3, 3, True),
        (["infrastructure"] * 3, 0, True),
        (["infrastructure"] * 4, 9, False),
        (["out of memory"], 0, True),
        (["out of memory"] * 2, 9, False),
        (["stalled"], 0, True),
        (["stalled"] * 2, 9, False),
        (["infrastructure", "infrastructure", "exception"], 1, True),  # each kind is counted for itself
        (["exception", "exception", "forgiven", "exception"], 1, True),
    ],
)
def test_how_often(kinds: list[str], retries: int, again: bool) -> None:
    forgiven = kinds.index("forgiven") if "forgiven" in kinds else 0
    failures = [{"kind": kind, "forgiven": index < forgiven} for index, kind in enumerate(kinds) if kind != "forgiven"]
    assert may_try_again(failures, retries) is again


def test_who_ran_out_of_memory_runs_alone() -> None:
    work = Work([0, 1, 2])
    assert (work.next(), work.next()) == (0, 1)
    work.put_back(0, alone=True)
    assert work.next() is None  # 1 still runs
    work.end(1, None)
    assert work.next() == 0
    assert work.next() is None  # nothing beside it
    work.end(0, None)
    assert work.next() == 2
    assert not work.is_done()
    work.end(2, None)
    assert work.is_done()


def test_the_first_three_to_end() -> None:
    same, other = Failure("exception", "x\nRuntimeError: a"), Failure("exception", "y\nRuntimeError: b")
    stalled = Failure("stalled", "RuntimeError: a")
    again = Failure("exception", "at another place\nRuntimeError: a")
    for ended, alike in [
        ([same, again], False),
        ([same, again, same], True),
        ([same, again, same, None], True),
        ([same, same, other], False),
        ([same, same, stalled], False),
        ([same, None, same, same], False),
        ([None, same, same, same], False),
    ]:
        assert (Work([], ended=list(ended)).all_fail_alike() is not None) is alike


def in_order_of_number(trials: Sequence[TrialRecord], history: History) -> Judgement:
    return Judgement(trials, [trial for trial in trials if trial.state == "complete"], "")


def run_moods(
    name: str, moods: list[str], metric: str = "val_loss", at_once: int = 1, **again: Any
) -> tuple[Outcome, list[TrialRecord]]:
    """A sweep of two epochs with one trial for each mood, in ./results; run again, it is a resume."""
    here = Path.cwd()
    points: list[Mapping[str, Any]] = [{"lr": 1e-3 / 2**number, "task.mood": mood} for number, mood in enumerate(moods)]
    sweep = Sweep(
        name=name,
        question="moods",
        task=FRAGILE,
        task_settings={"broken": str(here / "broken"), "step_log": str(here / "steps.log"), "sleep_s": 0.01},
        train=TrainConfig(threads=1, epochs=2, batch_size=128),  # 10 steps an epoch
        points=tuple(points),
        metric=metric,
    )
    outcome = conduct(
        Folder(here / "results" / name),
        sweep,
        tracking_uri=f"sqlite:///{here / 'mlflow.db'}",
        wish=Wish(trials_at_once=at_once, cpus_per_trial=0.5),
        address=None,
        judge=in_order_of_number,
        console=Console(file=io.StringIO()),
        began=time.time(),
        **again,
    )
    ledger = Ledger(outcome.folder.ledger)
    trials = ledger.trials()
    ledger.close()
    return outcome, trials


def test_b21_failed_trials_are_left_out_aloud_and_run_again_on_request(local_ray: None, launch_folder: Path) -> None:
    moods = ["good", "good", "broken"]
    Path("broken").touch()
    outcome, trials = run_moods("b21", moods, retries=1)
    assert outcome.exit_code == 1
    assert [trial.state for trial in trials] == ["complete", "complete", "failed"]
    assert [trial.attempts for trial in trials] == [1, 1, 2]  # one retry, from the checkpoint of the first epoch
    assert [(failure["kind"], failure["line"]) for failure in trials[2].failures] == [
        ("exception", "RuntimeError: it is broken")
    ] * 2
    assert any("1 failed trial(s) are left out" in said and "--retry-failed" in said for said in outcome.remarks)
    client = MlflowClient(outcome.result.tracking_uri)
    run_ids = [trial.mlflow_run_id for trial in trials]
    assert all(run_ids)
    failed = client.get_run(str(run_ids[2]))
    assert failed.info.status == "FAILED"
    assert failed.data.tags["steadysweep.reason"] == "RuntimeError: it is broken"
    assert "attempt 2: exception: RuntimeError: it is broken" in failed.data.tags["steadysweep.failures"]

    Path("broken").unlink()
    steps = Path("steps.log").read_text()
    outcome, trials = run_moods("b21", moods)
    assert (outcome.exit_code, Path("steps.log").read_text()) == (1, steps)  # nothing is run
    assert any("1 failed trial(s) are left out" in said for said in outcome.remarks)

    outcome, trials = run_moods("b21", moods, retry_failed=True)
    assert outcome.exit_code == 0
    assert [(trial.state, trial.epochs) for trial in trials] == [("complete", 2.0)] * 3
    assert [trial.mlflow_run_id for trial in trials] == run_ids
    assert Path("steps.log").read_text()[len(steps) :].split() == ["broken"] * 10  # its second epoch
    mended = client.get_run(str(run_ids[2]))
    assert (mended.info.status, mended.data.tags["steadysweep.reason"]) == ("FINISHED", "trained to its last epoch")
    assert len(client.get_metric_history(str(run_ids[2]), "epoch")) == 2

    steps = Path("steps.log").read_text()
    outcome, trials = run_moods("b21", moods, retry_failed=True)
    assert (outcome.exit_code, Path("steps.log").read_text()) == (0, steps)


def test_out_of_memory_is_tried_once_more_alone(local_ray: None, launch_folder: Path) -> None:
    outcome, trials = run_moods("memory", ["good", "memory", "good"], at_once=2)
    assert [trial.state for trial in trials] == ["complete"] * 3
    assert [failure["kind"] for failure in trials[1].failures] == ["out of memory"]
    assert trials[1].attempts == 2
    steps = Path("steps.log").read_text().split()
    first = steps.index("memory")
    assert steps[first : first + 20] == ["memory"] * 20
    assert outcome.exit_code == 0


@pytest.mark.parametrize(
    "mood",
    [
        "lacking",
        pytest.param("none", marks=pytest.mark.slow),
        *(pytest.param(mood, marks=pytest.mark.soak) for mood in ("vector", "text")),
    ],
)
def test_b22_one_trial_without_the_metric(mood: str, local_ray: None, launch_folder: Path) -> None:
    """Only that trial fails; the message is the trial's, and names the key."""
    outcome, trials = run_moods("b22", ["good", mood, "good"], metric="val_extra")
    assert [trial.state for trial in trials] == ["complete", "failed", "complete"]
    assert [trial.epochs for trial in trials][::2] == [2.0, 2.0]
    assert outcome.exit_code == 1
    assert "extra" in trials[1].failures[-1]["line"]


@pytest.mark.slow
def test_all_fail_alike(scan: Scan, launch_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sweep stops before its fourth trial, says so, and goes on when the cause is mended."""
    Path("broken").touch()
    settings = {"mood": "broken", "broken": launch_folder / "broken", "step_log": launch_folder / "steps.log"}
    task = [part for name, value in settings.items() for part in ("--set", f"task.{name}={value}")]
    arguments = ("--name", "alike", "--task", FRAGILE, *task, "--lrs", "3e-3", "1e-3", "3e-4", "1e-4", "3e-5")
    code = lr_scan.main([*arguments, "--retries", "0", "--trials-at-once", "1", "--cpus-per-trial", "1"])
    assert code == 1
    said = capsys.readouterr()
    assert "all failed alike (exception: RuntimeError: it is broken): the others are not begun" in said.err
    assert "go on with --resume alike --retry-failed" in said.out
    assert "trial 2 failed: exception: RuntimeError: it is broken" in said.out
    result = result_of(launch_folder / "results/alike")
    assert result["status"] == "failed"
    assert [trial["state"] for trial in result["trials"]][:3] == ["failed"] * 3
    assert "failed" not in [trial["state"] for trial in result["trials"]][3:]
    Path("broken").unlink()
    code, result = scan("--resume", "--retry-failed", "--results", str(launch_folder / "results"))
    assert code == 0
    assert [trial["state"] for trial in result["trials"]] == ["complete"] * 5
    assert [trial["number"] for trial in result["trials"]] == [0, 1, 2, 3, 4]


HELD = f"{ROOT / 'tests/helpers/held.py'}:Held"


def hold(scan: Scan, gate: Path, *settings: str, until: Callable[[], bool]) -> tuple[int, dict[str, Any]]:
    """One trial that hangs while `gate` exists, and is held to 3 s without a step; the gate goes when `until` says."""

    def release() -> None:
        while not until() and not ended.wait(0.05):
            pass
        gate.unlink(missing_ok=True)

    gate.touch()
    ended = threading.Event()
    thread = threading.Thread(target=release)
    thread.start()
    try:
        return scan("--name", "held", "--task", HELD, "--lrs", "1e-3", "--set", "stall_s=3", *settings)
    finally:
        ended.set()
        thread.join()


def stacks_in(launch_folder: Path, attempt: int) -> str:
    path = launch_folder / f"results/held/trials/00000-attempt-{attempt}/stacks.txt"
    return path.read_text() if path.exists() else ""


@pytest.mark.slow
def test_a_loader_worker_that_hangs(scan: Scan, launch_folder: Path) -> None:
    """Its trial's process alone is ended, with all stacks on the disk, and goes on from its checkpoint."""
    gate = launch_folder / "gate"
    settings = ("task.loaded=true", f"task.worker_gate={gate}", "num_workers=2", "epochs=2")
    code, result = hold(
        scan, gate, *(part for setting in settings for part in ("--set", setting)),
        # Not before the next attempt: let go while the stacks are being written, the first would train to its end.
        until=(launch_folder / "results/held/trials/00000-attempt-2").exists,
    )  # fmt: skip
    assert code == 0
    (trial,) = result["trials"]
    assert (trial["state"], trial["attempts"], trial["epochs"]) == ("complete", 2, 2.0)
    said = stacks_in(launch_folder, 1)
    assert said.startswith("no progress for")
    assert "loader process" in said
    assert "held.py" in said  # where the worker hangs
    assert "trial.py" in said  # who waits for it
    tags = MlflowClient(result["tracking_uri"]).get_run(trial["mlflow_run_id"]).data.tags
    assert "attempt 1: stalled: no progress for" in tags["steadysweep.failures"]


@pytest.mark.slow
def test_a_step_that_always_hangs(scan: Scan, launch_folder: Path) -> None:
    gate = launch_folder / "gate"
    code, result = hold(scan, gate, "--set", f"task.gate={gate}", "--set", "task.from_step=5", until=lambda: False)
    assert code == 1
    (trial,) = result["trials"]
    assert (trial["state"], trial["attempts"]) == ("failed", 2)
    client = MlflowClient(result["tracking_uri"])
    assert "no progress for" in client.get_run(trial["mlflow_run_id"]).data.tags["steadysweep.reason"]
    text = Path(client.download_artifacts(trial["mlflow_run_id"], "failure.txt")).read_text()
    assert "held.py" in text
    assert "augment" in text
