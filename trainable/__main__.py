"""`python -m trainable`: one trial here, in this process, without Ray; a breakpoint() in the task works.

Exit codes: 0 finished; 1 diverged, or the task raised; 2 bad input, nothing was written; 130 and 143 stopped by
Ctrl-C and SIGTERM with a checkpoint at the current step. The work is in single/.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from trainable.config import TrainConfig
from trainable.settings import parse_settings
from trainable.single.folder import RunFolder
from trainable.task import absolute_settings, absolute_spec, load_task

if TYPE_CHECKING:
    from trainable.single.run import Prepared

OK, FAILED, BAD_INPUT, SIGNALLED = 0, 1, 2, 128
LATEST = ""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one trial as the flags say; the exit code."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
        return _main(arguments)


def _main(arguments: Sequence[str] | None) -> int:
    try:
        flags = _flags(arguments)
        ready = _prepare(flags)
    except ValueError as error:
        if not _is_about_input(error):
            traceback.print_exc()
            return FAILED
        print(f"python -m trainable: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("stopped before the first step; nothing was written", file=sys.stderr)
        return SIGNALLED + signal.SIGINT
    except Exception:  # the task's own code: its author needs the traceback
        traceback.print_exc()
        return FAILED
    from trainable.single import run as single

    try:
        single.begin(ready)
    except OSError as error:
        print(f"python -m trainable: {ready.folder.path} cannot be written: {error}; use --out DIR", file=sys.stderr)
        return BAD_INPUT
    return _train(ready, as_json=flags.json)


def _flags(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(
        prog="python -m trainable", description="Train one trial in this process, without Ray.", allow_abbrev=False
    )
    parser.add_argument("--task", metavar="T", help="a built-in task, package.module:Class or path/file.py:Class")
    parser.add_argument("--epochs", type=int, metavar="N", help="passes over the training samples")
    parser.add_argument("--seed", type=int, metavar="N", help="where every random number comes from")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, e.g. lr=1e-3 or task.width=32"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write to; default results/<task>-<time>")
    parser.add_argument(
        "--resume", nargs="?", const=LATEST, metavar="DIR", help="go on with the run in DIR, or with the latest one"
    )
    parser.add_argument("--json", action="store_true", help="the result on stdout as JSON, and nothing else there")
    return parser.parse_args(arguments)


def _prepare(flags: argparse.Namespace) -> Prepared:
    given, settings = parse_settings(flags.set)
    for name in ("epochs", "seed"):
        value = getattr(flags, name)
        if value is None:
            continue
        if name in given:
            raise ValueError(f"--{name} {value} and --set {name}={given[name]} are both given; keep one of them")
        given[name] = value
    if flags.resume is not None:
        return _prepare_resume(flags, given, settings)
    if flags.task is None:
        raise ValueError("--task is missing; name a task, e.g. --task digits, or a run to --resume")
    spec = absolute_spec(flags.task)
    settings = absolute_settings(spec, settings)
    load_task(spec, settings)
    config = TrainConfig.from_dict(given)
    folder = RunFolder.new(flags.out, spec)
    # torch is imported only now: a typing mistake is answered at once
    from trainable.single import run as single

    return single.prepare(folder, spec, settings, config)


def _prepare_resume(flags: argparse.Namespace, given: dict[str, Any], settings: dict[str, Any]) -> Prepared:
    """A resumed run keeps its settings; the same ones may be repeated, and there may be more epochs."""
    if flags.out is not None and flags.resume != LATEST:
        raise ValueError(f"--resume {flags.resume} names the folder already; leave --out {flags.out} out")
    folder = RunFolder.existing(Path(flags.resume) if flags.resume != LATEST else flags.out)
    description = folder.description()
    spec = absolute_spec(flags.task) if flags.task is not None else description["task"]
    recorded = TrainConfig.from_dict(description["config"])
    wanted = TrainConfig.from_dict({**description["config"], **given})
    task_before = load_task(description["task"], description["settings"]).settings()
    changed = [
        f"{name}={wanted.to_dict()[name]!r} (it was {value!r})"
        for name, value in recorded.to_dict().items()
        if name != "epochs" and wanted.to_dict()[name] != value
    ]
    if spec != description["task"]:
        changed.append(f"--task {spec} (it was {description['task']})")
    else:
        settings = absolute_settings(spec, settings)
        task_now = load_task(spec, {**description["settings"], **settings}).settings()
        changed += [f"task.{n}={task_now[n]!r} (it was {v!r})" for n, v in task_before.items() if task_now[n] != v]
    if changed:
        raise ValueError(
            f"--resume {folder.path} keeps its settings, but here is another {', another '.join(changed)}; "
            "leave that out, or begin a new run without --resume"
        )
    from trainable.checkpoint import CheckpointError
    from trainable.single import run as single
    from trainable.state import StateMismatch

    try:
        return single.prepare_resume(folder, description, wanted)
    except (CheckpointError, StateMismatch) as error:
        raise ValueError(f"--resume {folder.path}: {error}") from error


def _train(ready: Prepared, *, as_json: bool) -> int:
    from trainable.memory import OutOfMemory
    from trainable.single import run as single
    from trainable.single.console import Console

    run = ready.run
    stop = single.StopRequest()
    with Console(run.state.progress.step, run.total_steps) as console:
        notes = run.notes
        console.line(
            f"{ready.spec} on {notes['device']} ({notes['device_reason']}), {notes['precision']} "
            f"({notes['precision_reason']}), {notes['threads']} CPU threads; in {ready.folder.path}"
        )
        for line in ready.lines:
            console.line(line)
        try:
            with single.stopping_on_signals(console, stop):
                result = single.train(ready, console, stop)
        except KeyboardInterrupt:
            console.line(f"stopped at once; go on from the last checkpoint with: {_resume_command(ready)}")
            return SIGNALLED + signal.SIGINT
        except Exception as error:  # the task's own code
            # Its author needs the traceback; out of memory has said all there is to say.
            console.line(str(error) if isinstance(error, OutOfMemory) else traceback.format_exc())
            result = single.failed(ready, error)
        finally:
            run.close()
    print(json.dumps(result, indent=1) if as_json else _in_words(result, ready))
    if result["status"] == "interrupted":
        assert stop.signal_number is not None
        return SIGNALLED + stop.signal_number
    return OK if result["status"] == "finished" else FAILED


def _in_words(result: dict[str, Any], ready: Prepared) -> str:
    lines = [
        f"{result['status']} at step {result['step']} of {result['total_steps']}, "
        f"epoch {result['epoch']:.4g}, after {result['seconds']:.1f} s"
    ]
    if result.get("diverged") is not None:
        lines.append(f"diverged: {result['diverged']}")
    lines.append(
        "  ".join(f"{name} {value:.5g}" for name, value in result.get("metrics", {}).items() if value is not None)
    )
    if result["best"] is not None:
        lines.append(f"best val_loss {result['best']['val_loss']:.5g} at step {result['best']['step']}")
    if "weights_sha256" in result:
        lines.append(f"weights_sha256 {result['weights_sha256']}")
    lines.append(f"reports and checkpoints: {result['folder']}")
    if result["status"] in ("interrupted", "failed"):
        lines.append(f"go on with: {_resume_command(ready)}")
    return "\n".join(line for line in lines if line)


def _resume_command(ready: Prepared) -> str:
    return f"python -m trainable --resume {shlex.quote(str(ready.folder.path))}"


def _is_about_input(error: ValueError) -> bool:
    """Whether this package refused a value. What a task's own code, or torch under it, raises is the task's."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    package = Path(__file__).parent
    return frame is None or Path(frame.tb_frame.f_code.co_filename).is_relative_to(package)


if __name__ == "__main__":
    sys.exit(main())
