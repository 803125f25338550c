"""Whether this process is a job that `ray job submit --working-dir` has sent to the cluster: then it works in a folder
that Ray has unpacked for it, and takes away after it. Knows nothing of sweeps or trials."""

from __future__ import annotations

from pathlib import Path

UNPACKED = "working_dir_files"  # Ray's name for the folder of such folders, below that of a node's session


def goes_with_the_job(path: Path) -> bool:
    """Whether Ray takes this file or folder away after the job."""
    return UNPACKED in path.parts
