"""`python -m trainable`: one trial in this process, what it writes, how it stops and goes on, and bad input."""

from __future__ import annotations

import json
import math
import os
import pty
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trainable import loop
from trainable.__main__ import main
from trainable.config import TrainConfig
from trainable.settings import _by_hand, parse_settings, parse_value
from trainable.task import load_task

TASK = """
from dataclasses import dataclass
import os, pathlib, signal, time, torch
from torch import nn
from torch.nn import functional
from trainable.task import Splits, Task

@dataclass(frozen=True)
class Blobs(Task):
    width: int = 8
    at_call: int = 0      # of loss(): what happens then, once
    event: str = "none"

    def model(self):
        return nn.Sequential(nn.Linear(4, self.width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(self.width, 3))

    def splits(self, seed):
        draw = torch.Generator().manual_seed(seed)
        inputs, labels = torch.randn(70, 4, generator=draw), torch.arange(70) % 3
        inputs[:, 0] += labels
        return Splits((inputs[:50], labels[:50]), (inputs[50:], labels[50:]), {"train": list(range(50))})

    def loss(self, outputs, batch):
        calls = pathlib.Path("calls")
        number = (int(calls.read_text()) if calls.exists() else 0) + 1
        calls.write_text(str(number))
        if number == self.at_call:
            while self.event in ("twice", "SIGKILL") and not list(pathlib.Path().rglob("step-*/manifest.json")):
                time.sleep(0.01)  # checkpoints are written beside the training: there is to be one to go on from
            if self.event == "raise":
                raise ValueError("a mistake of the task")
            elif self.event == "breakpoint":
                breakpoint()
            elif self.event == "twice":
                handler = signal.getsignal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
                while signal.getsignal(signal.SIGINT) is handler:
                    time.sleep(0.001)  # until the first has been heard: of two at once only one is
                signal.raise_signal(signal.SIGINT)
            elif self.event.startswith("SIG"):
                os.kill(os.getpid(), getattr(signal, self.event))
        return functional.cross_entropy(outputs, batch[1], reduction="sum")
"""
SETTINGS = ["--epochs", "3", "--set", "batch_size=10", "--set", "lr=1e-2", "--set", "threads=1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a task file."""
    (tmp_path / "blobs.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str, again: bool = False) -> tuple[int, str, str]:
        """`again`: the task's event has happened already, and does not happen again."""
        Path("calls").write_text("1000") if again else Path("calls").unlink(missing_ok=True)
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return run


def unbroken(settings: dict[str, Any] | None = None, **config: Any) -> loop.Report:
    """The last report of the run that the loop makes of the same settings, without files and signals."""
    task = load_task("blobs.py:Blobs", settings)
    full = TrainConfig(**{"epochs": 3, "batch_size": 10, "lr": 1e-2, "threads": 1, **config})
    run = loop.start(task, full, task.splits(full.data_seed))
    while not (report := loop.advance(run)).done:
        pass
    return report


def reports(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "report.jsonl").read_text().splitlines()]


def test_json_is_the_result_and_alone_on_stdout(folder: Path, call: Any) -> None:
    code, out, err = call("--task", "blobs.py:Blobs", *SETTINGS, "--out", "one", "--json")
    expected = unbroken()
    result = json.loads(out)
    assert code == 0
    assert result["status"] == "finished"
    assert result["weights_sha256"] == expected.weights_sha256
    assert result["metrics"] == expected.metrics
    assert (result["step"], result["total_steps"]) == (15, 15)
    assert result == json.loads((folder / "one" / "result.json").read_text())
    assert "epoch 3/3" in err
    assert "1 CPU threads" in err


def test_the_folder_holds_what_it_was_and_what_it_said(folder: Path, call: Any) -> None:
    code, out, _ = call("--task", "blobs.py:Blobs", *SETTINGS, "--set", "task.width=16", "--seed", "5", "--out", "one")
    assert code == 0
    assert unbroken({"width": 16}, seed=5).weights_sha256 in out
    run = json.loads((folder / "one" / "run.json").read_text())
    assert run["task"] == f"{folder}/blobs.py:Blobs"
    assert run["settings"] == {"width": 16}
    assert (run["config"]["seed"], run["config"]["lr"]) == (5, 0.01)
    assert [report["step"] for report in reports(folder / "one")] == [5, 10, 15]
    assert all(len(report["curves"]["loss"]) == 5 for report in reports(folder / "one"))
    assert {"step-00000010", "step-00000015"} <= {path.name for path in (folder / "one" / "checkpoints").iterdir()}


def test_without_out_the_folder_is_named_after_task_and_time(folder: Path, call: Any) -> None:
    for _ in range(2):
        assert call("--task", "blobs.py:Blobs", *SETTINGS)[0] == 0
    names = [path.name for path in (folder / "results").iterdir()]
    assert len(names) == 2
    assert all(name.startswith("Blobs-20") for name in names)


BAD = {
    "no task": ([], "--task is missing"),
    "unknown task": (["--task", "digist"], "unknown task 'digist'; did you mean digits"),
    "no such file": (["--task", "none.py:Task"], "there is no file"),
    "no such class": (["--task", "blobs.py:Blob"], "no 'Blob' there; tasks in it: Blobs"),
    "unknown key": (["--task", "blobs.py:Blobs", "--set", "learning_rate=1"], "unknown config key 'learning_rate'"),
    "near key": (["--task", "blobs.py:Blobs", "--set", "batchsize=1"], "did you mean batch_size"),
    "unknown task key": (["--task", "blobs.py:Blobs", "--set", "task.widht=1"], "did you mean task.width"),
    "lr is 0": (["--task", "blobs.py:Blobs", "--set", "lr=0"], "lr=0.0 must be above 0"),
    "lr is a word": (["--task", "blobs.py:Blobs", "--set", "lr=fast"], "lr='fast' must be a number"),
    "no equals sign": (["--task", "blobs.py:Blobs", "--set", "lr"], "--set 'lr' must be KEY=VALUE"),
    "no value": (["--task", "blobs.py:Blobs", "--set", "clip_norm="], "write clip_norm=null"),
    "given twice": (["--task", "blobs.py:Blobs", "--set", "lr=1", "--set", "lr=2"], "--set lr is given twice"),
    "in two ways": (["--task", "blobs.py:Blobs", "--seed", "1", "--set", "seed=2"], "--seed 1 and --set seed=2"),
    "no epochs": (["--task", "blobs.py:Blobs", "--epochs", "0"], "epochs=0 must be at least 1"),
    "epochs a word": (["--task", "blobs.py:Blobs", "--epochs", "many"], "invalid int value: 'many'"),
    "unknown flag": (["--task", "blobs.py:Blobs", "--lr", "1"], "unrecognized arguments: --lr 1"),
    "unreadable": (["--task", "blobs.py:Blobs", "--set", "freeze=[a"], "freeze='[a' cannot be read"),
    "freezes nothing": (
        ["--task", "blobs.py:Blobs", "--set", "freeze=[head]"],
        "freeze pattern 'head' matches nothing",
    ),
    "no such run": (["--resume", "nowhere"], "there is no run"),
    "no run at all": (["--resume"], "there is no unfinished run under"),
    "out is a file": (["--task", "blobs.py:Blobs", "--out", "blobs.py"], "is a file; name a folder"),
    "out below a file": (["--task", "blobs.py:Blobs", "--out", "blobs.py/x"], "cannot be written"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_message_and_writes_nothing(folder: Path, call: Any, name: str) -> None:
    arguments, said = BAD[name]
    code, out, err = call(*arguments)
    assert code == 2
    assert said in err
    assert err.startswith("python -m trainable: ")
    assert len(err.splitlines()) == 1
    assert out == ""
    assert [path.name for path in folder.iterdir() if path.name != "__pycache__"] == ["blobs.py"]


def test_a_typing_mistake_is_answered_without_waiting_for_torch(folder: Path) -> None:
    code = (
        "import sys; from trainable.__main__ import main; from trainable.checks.__main__ import main as check\n"
        "assert main(['--task', 'digits', '--set', 'lr=-1']) == 2 and check(['--task', 'digist']) == 2\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_folder_that_holds_something_is_not_written_over(folder: Path, call: Any) -> None:
    assert call("--task", "blobs.py:Blobs", *SETTINGS, "--out", "one")[0] == 0
    before = {path: path.stat().st_mtime_ns for path in (folder / "one").rglob("*")}
    code, _, err = call("--task", "blobs.py:Blobs", *SETTINGS, "--out", "one")
    assert code == 2
    assert "is not empty; go on with it by --resume" in err
    assert {path: path.stat().st_mtime_ns for path in (folder / "one").rglob("*")} == before


# loss() is called 5 times an epoch in training and once in evaluation: call 9 is step 8, the third of epoch 2.
@pytest.mark.parametrize(("event", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_stops_at_the_step_and_the_resumed_run_equals_the_unbroken_one(
    folder: Path, call: Any, event: str, code: int
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    stopping = ["--set", "task.at_call=9", "--set", f"task.event={event}"]
    found, out, err = call("--task", "blobs.py:Blobs", *SETTINGS, *stopping, "--out", "one", "--json")
    assert found == code
    assert "stopping at this step" in err
    assert json.loads(out)["status"] == "interrupted"
    assert json.loads(out)["step"] == 8
    assert [report["step"] for report in reports(folder / "one")] == [5]
    assert (folder / "one" / "checkpoints" / "step-00000008" / "manifest.json").exists()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers

    found, out, err = call("--resume", "one", "--json", again=True)
    whole = unbroken()
    assert found == 0
    assert "going on from step 8 of 15" in err
    assert json.loads(out)["weights_sha256"] == whole.weights_sha256
    assert json.loads(out)["metrics"] == whole.metrics
    assert [report["step"] for report in reports(folder / "one")] == [5, 10, 15]
    assert reports(folder / "one")[-1]["curves"] == whole.curves


def test_a_second_signal_ends_at_once_and_the_run_goes_on_from_the_last_checkpoint(folder: Path, call: Any) -> None:
    stopping = ["--set", "task.at_call=9", "--set", "task.event=twice"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a process of its own
    try:
        code, out, err = call("--task", "blobs.py:Blobs", *SETTINGS, *stopping, "--out", "one")
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == 130
    assert out == ""
    assert "--resume" in err
    code, out, err = call("--resume", "one", "--json", again=True)
    assert code == 0
    assert "going on from step 5 of 15" in err
    assert json.loads(out)["weights_sha256"] == unbroken().weights_sha256


@pytest.mark.filterwarnings("always")  # the kill may cut a checkpoint short
def test_killed_it_goes_on_with_each_report_once(folder: Path, call: Any) -> None:
    command = [sys.executable, "-m", "trainable", "--task", "blobs.py:Blobs", *SETTINGS, "--out", "results/one"]
    command += ["--set", "task.at_call=15", "--set", "task.event=SIGKILL"]
    assert subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == -signal.SIGKILL
    with (folder / "results" / "one" / "report.jsonl").open("a") as file:
        file.write('{"number": 3, "st')  # a line that the kill cut off
    code, out, _ = call("--resume", "--json", again=True)  # the latest unfinished one
    assert code == 0
    assert json.loads(out)["weights_sha256"] == unbroken().weights_sha256
    assert [report["step"] for report in reports(folder / "results" / "one")] == [5, 10, 15]


@pytest.mark.filterwarnings("always")
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(folder: Path, call: Any) -> None:
    stopping = ["--set", "task.at_call=15", "--set", "task.event=SIGINT"]
    assert call("--task", "blobs.py:Blobs", *SETTINGS, *stopping, "--out", "one")[0] == 130
    files = sorted((folder / "one" / "checkpoints").glob("*/state.pt"))
    content = bytearray(files[-1].read_bytes())
    content[len(content) // 2] ^= 1
    files[-1].write_bytes(content)
    code, out, err = call("--resume", "one", "--json", again=True)
    assert code == 0
    assert f"warning: a checkpoint is passed over: {files[-1]} is damaged" in err
    assert "going on from step 10 of 15" in err
    assert json.loads(out)["weights_sha256"] == unbroken().weights_sha256


@pytest.mark.filterwarnings("always")
def test_when_every_checkpoint_is_bad_nothing_is_begun_again_in_silence(folder: Path, call: Any) -> None:
    stopping = ["--set", "task.at_call=15", "--set", "task.event=SIGINT"]
    assert call("--task", "blobs.py:Blobs", *SETTINGS, *stopping, "--out", "one")[0] == 130
    for file in (folder / "one" / "checkpoints").glob("*/state.pt"):
        os.truncate(file, 100)
    code, out, err = call("--resume", "one", again=True)
    assert code == 2
    assert "checkpoints are bad, there is nothing to go on from" in err
    assert out == ""


def test_more_epochs_train_on_as_if_asked_for_from_the_start(folder: Path, call: Any) -> None:
    assert call("--task", "blobs.py:Blobs", *SETTINGS, "--out", "one")[0] == 0
    code, out, _ = call("--resume", "one", "--epochs", "5", "--json")
    assert code == 0
    assert json.loads(out)["weights_sha256"] == unbroken(epochs=5).weights_sha256
    code, _, err = call("--resume", "one", "--epochs", "2")
    assert code == 2
    assert "--epochs 2 is less than the 5 that are done; ask for 5 or more" in err


def test_resuming_a_finished_run_says_its_result_again(folder: Path, call: Any) -> None:
    first = json.loads(call("--task", "blobs.py:Blobs", *SETTINGS, "--out", "one", "--json")[1])
    code, out, _ = call("--resume", "one", "--json")
    assert code == 0
    again = json.loads(out)
    assert {key: again[key] for key in ("status", "step", "metrics", "weights_sha256", "best")} == {
        key: first[key] for key in ("status", "step", "metrics", "weights_sha256", "best")
    }
    assert len(reports(folder / "one")) == 3


def test_a_resumed_run_keeps_its_settings(folder: Path, call: Any) -> None:
    same = ["--task", "blobs.py:Blobs", *SETTINGS, "--set", "task.width=9"]
    assert call(*same, "--out", "one")[0] == 0
    assert call(*same, "--out", "one", "--resume")[0] == 0  # the same command with --resume added
    for arguments, said in [
        (["--set", "lr=1e-3"], "another lr=0.001 (it was 0.01)"),
        (["--set", "task.width=8"], "another task.width=8 (it was 9)"),
        (["--task", "digits"], "another --task digits"),
    ]:
        code, _, err = call("--resume", "one", *arguments)
        assert code == 2
        assert said in err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("nn.Linear(self.width, 3)", "nn.Linear(self.width, 4)", "3.weight has shape (3, 8) in the checkpoint, (4, 8)"),
        ("inputs[:, 0] += labels", "inputs[:, 0] -= labels", "samples are not those"),
    ],
    ids=["model", "samples"],
)
def test_a_changed_task_is_noticed(folder: Path, call: Any, old: str, new: str, said: str) -> None:
    assert call("--task", "blobs.py:Blobs", *SETTINGS, "--out", "one")[0] == 0
    (folder / "blobs.py").write_text(TASK.replace(old, new))
    for name in [name for name in sys.modules if name.startswith("blobs_")]:
        del sys.modules[name]  # another process would not have it
    code, out, err = call("--resume", "one", "--epochs", "4")
    assert code == 2
    assert said in err
    assert "Traceback" not in err + out


def test_a_diverged_run_says_so_and_its_weights_become_no_checkpoint(folder: Path, call: Any) -> None:
    wild = ["--set", "batch_size=10", "--set", "lr=1e30", "--set", "optimizer=sgd", "--set", "clip_norm=null"]
    code, out, _ = call("--task", "blobs.py:Blobs", *wild, "--epochs", "2", "--out", "one")
    assert code == 1
    assert "diverged" in out
    result = json.loads((folder / "one" / "result.json").read_text())
    assert result["status"] == "diverged"
    assert "became" in result["diverged"]
    assert list((folder / "one").glob("checkpoints/*")) == []


def test_a_task_that_raises_shows_its_traceback(folder: Path, call: Any) -> None:
    raising = ["--set", "task.at_call=9", "--set", "task.event=raise"]
    code, out, err = call("--task", "blobs.py:Blobs", *SETTINGS, *raising, "--out", "one", "--json")
    assert code == 1
    assert "Traceback" in err
    assert "ValueError: a mistake of the task" in err
    assert json.loads(out)["status"] == "failed"
    assert json.loads(out)["error"] == "ValueError: a mistake of the task"
    assert (folder / "one" / "checkpoints" / "step-00000005" / "manifest.json").exists()


def test_a_task_that_raises_before_the_first_step_shows_its_traceback_too(folder: Path, call: Any) -> None:
    (folder / "blobs.py").write_text(TASK.replace("return nn.Sequential(", "raise ValueError('not ready'); (", 1))
    code, out, err = call("--task", "blobs.py:Blobs")
    assert code == 1
    assert "ValueError: not ready" in err
    assert "Traceback" in err
    assert out == ""
    assert not (folder / "results").exists()


@pytest.mark.filterwarnings("always")
def test_B29_a_disk_without_room_for_checkpoints_does_not_end_the_training(folder: Path, call: Any) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, before[1]))  # reports fit, a state does not
    try:
        code, out, err = call("--task", "blobs.py:Blobs", *SETTINGS, "--out", "one", "--json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 0
    result = json.loads(out)
    assert result["weights_sha256"] == unbroken().weights_sha256
    assert len(result["failed_checkpoints"]) == 3
    assert "warning: the checkpoint of step 5 could not be written" in err
    assert list((folder / "one" / "checkpoints").glob("*")) == []


def test_the_number_of_threads_is_left_alone(folder: Path, call: Any) -> None:
    before = torch.get_num_threads()
    assert call("--task", "blobs.py:Blobs", "--out", "one")[0] == 0
    assert torch.get_num_threads() == before


BARE = """
import runpy, sys
for name in ("ray", "optuna", "mlflow", "rich", "ruamel", "ruamel.yaml", "matplotlib", "filelock"):
    sys.modules[name] = None
sys.argv = ["trainable", "--task", "blobs.py:Blobs", "--set", "lr=1e-2", "--set", 'freeze=["0.*"]', "--json"]
runpy.run_module("trainable", run_name="__main__")
"""


def test_it_runs_where_only_torch_is_installed(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "finished"
    run = json.loads(next((folder / "results").glob("*/run.json")).read_text())
    assert (run["config"]["lr"], run["config"]["freeze"]) == (0.01, ["0.*"])


def _plain_environment() -> dict[str, str]:
    """Without the debugger that Ray, started by another test of this process, has put into the environment."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONBREAKPOINT"}


def test_a_breakpoint_in_the_task_stops_there_and_the_terminal_has_a_bar(folder: Path) -> None:
    """On a real (pseudo) terminal, as a user has it."""
    command = [sys.executable, "-m", "trainable", "--task", "blobs.py:Blobs", *SETTINGS, "--out", "one"]
    command += ["--set", "task.at_call=9", "--set", "task.event=breakpoint"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**_plain_environment(), "TERM": "xterm"}
    )
    os.close(theirs)
    shown = _read(ours, until=b"(Pdb)")
    os.write(ours, b"p 20 + 3\nc\n")
    shown += _read(ours)
    assert process.wait(60) == 0
    assert b"(Pdb)" in shown
    assert b"\r\n23" in shown
    assert "━".encode() in shown  # rich's bar
    assert b"15/15" in shown


def _read(terminal: int, until: bytes | None = None) -> bytes:
    shown = b""
    while until is None or until not in shown:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # Linux says so when the other end is closed
            break
    return shown


VALUES: list[tuple[str, Any]] = [
    ("1e-3", 0.001),
    ("3", 3),
    ("-2.5", -2.5),
    ("+1", 1),
    ("1.", 1.0),
    (".5", 0.5),
    ("1E5", 1e5),
    (".inf", math.inf),
    ("null", None),
    ("~", None),
    ("true", True),
    ("False", False),
    ("no", "no"),
    ("cosine", "cosine"),
    ("head.*", "head.*"),
    ('"1"', "1"),
    ('["a", "b"]', ["a", "b"]),
    ('{"head.*": 10}', {"head.*": 10}),
]


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_values_are_read_as_yaml_1_2_with_and_without_ruamel(text: str, value: Any) -> None:
    for found in (parse_value("key", text), _by_hand("key", text)):
        assert found == value
        assert type(found) is type(value)


def test_settings_are_told_apart() -> None:
    assert parse_settings(["lr=1e-3", "task.width=32", "freeze=[a, b]"]) == (
        {"lr": 0.001, "freeze": ["a", "b"]},
        {"width": 32},
    )


def test_the_flags_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    flags = {word.strip(",[]") for word in shown.split() if word.strip("[").startswith("--")}
    assert flags == {"--help", "--task", "--epochs", "--seed", "--set", "--out", "--resume", "--json"}, textwrap.dedent(
        "a new flag needs a reason: every setting can be given by --set"
    )
