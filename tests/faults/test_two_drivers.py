"""A second driver on a sweep that is under way refuses, naming the first."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from tests.faults.helper import NAME, arguments, folder_in, started
from tests.helpers.drivers import wait_until


def test_the_second_refuses(
    tmp_path: Path, local_ray: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sweeps import lr_scan

    monkeypatch.chdir(tmp_path)
    history = folder_in(tmp_path) / "history"
    with started(tmp_path, *arguments(tmp_path, 1, sleep_s=0.05)) as process:
        wait_until(lambda: any(history.glob("*.jsonl")), "there is a report", process)
        for flags in (("--resume", NAME), ("--name", NAME)):
            with pytest.raises(SystemExit) as refused:
                lr_scan.main(flags)
            assert refused.value.code == 2
        said = capsys.readouterr().err
        assert process.poll() is None
    assert re.search(rf"process {process.pid} on {re.escape(socket.gethostname())}", said)
    assert f"{NAME!r} exists already" in said
