"""cluster/slurm.sbatch: two Ray nodes in one job, early notice, requeue, resume, and the same answer."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.drivers import ROOT, environment, kill, result_of, run_command, wait_until, without_circumstances
from tests.helpers.slurm import install

SCRIPT = ROOT / "cluster/slurm.sbatch"
SWEEP = ("--task", f"{ROOT / 'tests/helpers/held.py'}:Held", "--lrs", "3e-3", "1e-3", "--cpus-per-trial", "1")
SLOW = ("--set", "task.sleep_s=0.1", "--set", "task.step_log=steps.log", "--set", "threads=1", "--progress", "plain")


def job_id() -> int:
    """One whose ports are free: the script takes four from 20000 + 4 * (id modulo 4000)."""
    import socket

    for number in range(os.getpid() % 4000, 8000):
        ports = [20000 + number % 4000 * 4 + k for k in range(4)]
        try:
            for port in ports:
                with socket.socket() as probe:
                    probe.bind(("", port))
        except OSError:
            continue
        return number
    raise AssertionError("no free ports")


def test_the_script_is_shell() -> None:
    assert subprocess.run(["bash", "-n", SCRIPT], check=False).returncode == 0


def test_slurm_is_asked_for_the_early_notice_and_the_requeue() -> None:
    asked = re.findall(r"^#SBATCH (--[\w-]+)(?:=(\S+))?$", SCRIPT.read_text(), re.MULTILINE)
    assert dict(asked).items() >= {"--signal": "B:USR1@120", "--requeue": "", "--no-kill": ""}.items()


def test_a_python_without_ray_is_said_before_anything_starts(tmp_path: Path) -> None:
    told = {**environment(), **install(tmp_path, 7), "STEADYSWEEP_PYTHON": "/bin/false"}
    done = subprocess.run(["sbatch", SCRIPT], cwd=tmp_path, env=told, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "STEADYSWEEP_PYTHON" in done.stderr
    assert not (tmp_path / "calls.log").exists()


@pytest.mark.soak  # a minute and a half on a busy machine
def test_notice_requeue_and_resume_end_in_the_answer_of_an_unbroken_run(tmp_path: Path) -> None:
    job, unbroken = tmp_path / "job", tmp_path / "unbroken"
    job.mkdir()
    unbroken.mkdir()
    number = job_id()
    extra = {"STEADYSWEEP_PYTHON": sys.executable, "STEADYSWEEP_NAME": "told", "SLURM_CPUS_PER_TASK": "1"}
    told = {**environment(), **install(job, number), **extra}
    with (job / "job.log").open("w") as log:
        process = subprocess.Popen(
            ["sbatch", str(SCRIPT), *SWEEP, *SLOW],
            cwd=job,
            env=told,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            steps = job / "steps.log"
            wait_until(lambda: steps.exists() and len(steps.read_text().split()) > 10, "trials train", process)
            os.kill(int((job / "spool/pid").read_text()), signal.SIGUSR1)
            code = process.wait(timeout=150)
        finally:
            kill(process)
    said = (job / "job.log").read_text()
    assert code == 0, said
    assert said.count("2 of 2 node(s) in Ray") == 2
    assert "told ended with exit code 138 after USR1" in said
    assert "told ended with exit code 0" in said
    calls = (job / "calls.log").read_text()
    assert calls.count(f"scontrol requeue {number}") == 1
    assert len(re.findall(r"^srun .*--nodelist=node[12] ", calls, re.MULTILINE)) == 4
    assert "RAY_AUTH_TOKEN" not in calls  # it is in the environment, which `ps` does not show to others

    done = run_command(*SWEEP, "--name", "told", "--set", "threads=1", cwd=unbroken)
    assert done.returncode == 0, done.stderr
    resumed, straight = result_of(job / "results/told"), result_of(unbroken / "results/told")
    assert max(trial["attempts"] for trial in resumed["trials"]) == 2
    assert without_circumstances(resumed)["trials"] == without_circumstances(straight)["trials"]
    until = time.monotonic() + 15
    while (left := ray_processes(number)) and time.monotonic() < until:
        time.sleep(0.2)
    assert not left
    assert not list(Path("/tmp").glob(f"ray-{number}-*"))


def ray_processes(number: int) -> list[str]:
    """Processes of the job's Ray, which all bear its folder in their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_text().replace("\0", " ")
        except OSError:
            continue
        if f"/tmp/ray-{number}-" in line:
            found.append(line)
    return found
