"""An interrupted sweep goes on as if nothing had happened: the driver is really killed, with all it started."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import optuna
import pytest
from mlflow.tracking import MlflowClient

from tests.helpers.drivers import ROOT, driver, kill, result_of, run_command, wait_until, without_circumstances

TASK = f"{ROOT / 'tests/helpers/moody.py'}:Moody"
EPOCHS, STEPS_PER_EPOCH = 4, 40  # 1258 training samples in batches of 32
ARGUMENTS = ("--name", "kept", "--task", TASK, "--epochs", str(EPOCHS), "--set", "task.sleep_s=0.01")


def num_reports(folder: Path) -> int:
    """Reports on the disk, of all trials."""
    return sum(path.read_bytes().count(b"\n") for path in (folder / "history").glob("*.jsonl"))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The result of the same sweep, never interrupted."""
    place = tmp_path_factory.mktemp("unbroken")
    done = run_command(*ARGUMENTS, "--set", "task.step_log=steps.log", cwd=place)
    assert done.returncode == 0, done.stderr
    assert len((place / "steps.log").read_text().split()) == 3 * EPOCHS * STEPS_PER_EPOCH
    return without_circumstances(result_of(place / "results/kept"))


@pytest.mark.soak  # tests/faults/test_driver_killed.py does it at random times
@pytest.mark.parametrize("moments", [(4,), (0, 1, 4, 7, 10)])
def test_killed_at_some_moments(moments: tuple[int, ...], tmp_path: Path, unbroken: dict[str, object]) -> None:
    """B03, B11: SIGKILL of the whole group after so many of 12 reports; 0: right after the ledger exists."""
    folder = tmp_path / "results/kept"
    arguments: tuple[str, ...] = (*ARGUMENTS, "--set", "task.step_log=steps.log")
    for reports in moments:
        with driver(*arguments, cwd=tmp_path) as process:
            wait_until(
                lambda reports=reports: (folder / "ledger.db").exists() and num_reports(folder) >= reports,
                f"{reports} reports are there",
                process,
            )
            kill(process)
        arguments = ("--resume",)
    done = run_command("--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr

    result = result_of(folder)
    assert without_circumstances(result) == unbroken
    assert max(trial["attempts"] for trial in result["trials"]) > 1
    # Two trials at once lose at most the interval they were in, at each kill.
    steps = len((tmp_path / "steps.log").read_text().split())
    assert steps <= (3 * EPOCHS + 2 * len(moments)) * STEPS_PER_EPOCH

    (study,) = optuna.get_all_study_summaries(f"sqlite:///{folder / 'ledger.db'}")
    trials = optuna.load_study(study_name=study.study_name, storage=f"sqlite:///{folder / 'ledger.db'}").trials
    assert Counter(trial.state.name for trial in trials) == {"COMPLETE": 3}

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, "tags.`steadysweep.role` = 'trial'")
    assert {run.data.tags["steadysweep.trial"] for run in runs} == {"0", "1", "2"}
    assert [run.info.status for run in runs] == ["FINISHED"] * 3
    for run in runs:
        epochs = client.get_metric_history(run.info.run_id, "epoch")
        assert sorted(point.value for point in epochs) == [1, 2, 3, 4]
        losses = client.get_metric_history(run.info.run_id, "loss")
        assert sorted(point.step for point in losses) == list(range(1, EPOCHS * STEPS_PER_EPOCH + 1))
    (parent,) = client.search_runs(experiments, "tags.`steadysweep.role` = 'sweep'")
    assert parent.info.status == "FINISHED"
    assert {run.data.tags["mlflow.parentRunId"] for run in runs} == {parent.info.run_id}


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.soak),  # in test_events.py too
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.soak),
    ],
)
def test_asked_to_stop(number: int, code: int, tmp_path: Path, unbroken: dict[str, object]) -> None:
    """Ctrl-C and SIGTERM: trials save at their current step, the result says so, and no step is taken twice."""
    folder = tmp_path / "results/kept"
    with driver(*ARGUMENTS, "--set", "task.step_log=steps.log", cwd=tmp_path) as process:
        wait_until(lambda: num_reports(folder) >= 2, "2 reports are there", process)
        process.send_signal(number)
        assert process.wait(timeout=60) == code
    interrupted = result_of(folder)
    assert interrupted["status"] == "interrupted"
    assert "running" in {trial["state"] for trial in interrupted["trials"]}
    client = MlflowClient(interrupted["tracking_uri"])
    statuses = [
        client.get_run(t["mlflow_run_id"]).info.status for t in interrupted["trials"] if t["state"] == "running"
    ]
    assert set(statuses) == {"KILLED"}
    assert client.get_run(interrupted["mlflow_run_id"]).info.status == "KILLED"

    done = run_command("--resume", "kept", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert without_circumstances(result_of(folder)) == unbroken
    assert len((tmp_path / "steps.log").read_text().split()) == 3 * EPOCHS * STEPS_PER_EPOCH
