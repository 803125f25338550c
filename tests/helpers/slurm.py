"""Stand-ins for sbatch, srun and scontrol, as small programs on PATH: jobs run on this machine, one process a step.

They do what cluster/slurm.sbatch relies on: the script is run from a copy elsewhere, a requeued job runs again under
its id, a step gets its own process group. They know nothing of Ray or of sweeps.
"""

from __future__ import annotations

import os
from pathlib import Path

SBATCH = """#!/bin/bash
# sbatch SCRIPT ARGUMENTS: runs the job here, and again each time it is requeued; stops at the second requeue.
spool=$(dirname "$0")/../spool
mkdir -p "$spool"
cp "$1" "$spool/slurm_script"
shift
export SLURM_SUBMIT_DIR=$PWD SLURM_NNODES=2 SLURM_JOB_NODELIST='node[1-2]' SLURM_CPUS_ON_NODE=1 SLURM_RESTART_COUNT=0
for SLURM_RESTART_COUNT in 0 1 2; do
  rm -f "$spool/requeued"
  bash "$spool/slurm_script" "$@" &
  echo $! > "$spool/pid"
  wait $!
  code=$?
  [ -e "$spool/requeued" ] || exit $code
done
exit 99
"""
SRUN = """#!/bin/bash
# srun OPTIONS COMMAND: the step, in a process group of its own that ends with srun.
echo "srun $*" >> "$(dirname "$0")/../calls.log"
while [[ $1 == --* ]]; do shift; done
set -m
"$@" &
trap 'kill -TERM -- -$! 2> /dev/null' TERM INT
wait $!
code=$?
while kill -0 $! 2> /dev/null; do wait $!; code=$?; done
exit $code
"""
SCONTROL = """#!/bin/bash
# scontrol show hostnames NODELIST | requeue JOB
echo "scontrol $*" >> "$(dirname "$0")/../calls.log"
case "$1" in
  show) printf 'node1\\nnode2\\n' ;;
  requeue) touch "$(dirname "$0")/../spool/requeued" ;;
  *) exit 1 ;;
esac
"""


def install(place: Path, job_id: int) -> dict[str, str]:
    """Write them below `place`; what a shell's environment needs to find them."""
    programs = place / "bin"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("scontrol", SCONTROL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": str(job_id)}
