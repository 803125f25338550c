"""python -m sweeps.monitor MODEL_URI --data FILE_OR_DIR: fresh data against what a model was accepted with.

Drift, decay and latency, in words, a figure and a run in MLflow. Exit code 1 is an alarm.
"""

from __future__ import annotations

import json
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from sweeps.cli import Parser, number_of
from sweeps.command import errors_in_words, leave
from sweeps.monitoring.judgement import Judgement, Thresholds, judge
from sweeps.monitoring.logged import log
from sweeps.monitoring.picture import draw
from sweeps.monitoring.words import as_plain, report_of, verdict_of
from sweeps.release.acceptance import finite
from sweeps.release.released import Released, load
from sweeps.reporting.commands import mlflow_command
from sweeps.tracking.tracker import resolve_uri
from trainable.files import write_text

RESULT, FIGURE = "result.json", "monitor.png"


def parser() -> Parser:
    flags = Parser(prog="python -m sweeps.monitor", description=__doc__.partition("\n")[0])
    add, usual = flags.add_argument, Thresholds()
    add("model", metavar="MODEL_URI", help="models:/NAME@champion, models:/NAME/3, runs:/ID/model or a folder")
    add("--data", required=True, metavar="FILE_OR_DIR", help="the fresh samples: of what kind depends on the task")
    add("--alpha", metavar="P", help=f"how often clean data may raise an alarm (default: {usual.alpha:g})")
    add("--psi-warn", metavar="X", help=f"stability index that is worth a look (default: {usual.psi_warn:g})")
    add("--psi-alarm", metavar="X", help=f"stability index that is an alarm (default: {usual.psi_alarm:g})")
    add("--min-samples", metavar="N", help=f"with fewer, nothing is said (default: {usual.min_samples})")
    add("--latency-factor", metavar="X", help=f"of the 95th percentile then (default: {usual.latency_factor:g})")
    add("--max-latency-ms", metavar="MS", help="alarm above this for one sample, 95th percentile (default: none)")
    add("--metric", action="append", metavar="NAME:MODE", help="judge this one too: more is better (max) or less (min)")
    add("--out", metavar="DIR", default="monitoring", help="where the results are kept (default: monitoring)")
    add("--tracking-uri", metavar="URI", help="MLflow's store (default: MLFLOW_TRACKING_URI, else sqlite:///mlflow.db)")
    add("--json", action="store_true", help="print all of it as JSON on stdout, and nothing else there")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code (0 no alarm, 1 an alarm, 2 bad input)."""
    with errors_in_words():
        asked = {name: value for name, value in vars(parser().parse_args(arguments)).items() if value is not None}
        limits, modes = _thresholds(asked), _modes(asked.get("metric", []))
        data = Path(asked["data"]).expanduser().absolute()
        uri = resolve_uri(asked.get("tracking_uri"), Path.cwd())
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", UserWarning)
            released = load(asked["model"], uri)
            judged = judge(released, data, limits, modes)
        # Ours, such as of images that are left out; what libraries think of each other is no remark.
        remarks = [str(one.message) for one in warned if {"trainable", "sweeps"} & set(Path(one.filename).parts)]
        _finish(released, data, judged, limits, uri, Path(asked["out"]), remarks, as_json=asked["json"])
    return 1 if judged.alarms else 0


def _finish(
    released: Released,
    data: Path,
    judged: Judgement,
    limits: Thresholds,
    uri: str,
    out: Path,
    warned: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Keep it, log it, say it. That MLflow does not answer is a remark."""
    now = time.time()
    written = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)), "time_ms": int(1000 * now)}
    plain = finite(as_plain(released, data, judged, limits, written))
    folder = _new_folder(out, released)
    draw(judged, f"{released.words}, {data.name}: {verdict_of(judged).partition(':')[0]}", folder / FIGURE)
    _keep(folder, plain)
    remarks = list(warned)
    try:
        plain["run_id"] = log(uri, plain, [folder / RESULT, folder / FIGURE])
    except Exception as error:  # the edge to a foreign service: whatever it raises, the answer stands
        words = " ".join(str(error).split())[:200]
        remarks.append(
            f"MLflow at {uri} did not take the result, which is in {folder} ({type(error).__name__}: {words})"
        )
    plain["remarks"] += remarks
    _keep(folder, plain)
    if as_json:
        print(json.dumps(plain, indent=1))
        return
    *lines, verdict = report_of(released, data, judged, limits)
    print("\n".join([*lines, *(f"remark: {remark}\n" for remark in remarks), verdict, ""]))
    print(f"results  {folder}")
    print(f"figure   {folder / FIGURE}")
    print(f"MLflow   {mlflow_command(uri)}")


def _keep(folder: Path, plain: Mapping[str, Any]) -> None:
    write_text(folder / RESULT, json.dumps(plain, indent=1, allow_nan=False))


def _new_folder(out: Path, released: Released) -> Path:
    """One that was not there: no earlier result is written over."""
    name = re.sub(r"[^\w.-]", "_", released.registered["name"] if released.registered else released.told["sweep"])
    first = out.expanduser().absolute() / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 1000):
        folder = first if number == 1 else first.with_name(f"{first.name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ValueError(f"--out {out} cannot be written ({error.strerror}); choose another place") from error
        return folder
    raise ValueError(f"--out {out} has a thousand results of this second; choose another place")


def _thresholds(asked: Mapping[str, Any]) -> Thresholds:
    kinds: dict[str, Any] = {"min_samples": int}
    names = [field.name for field in fields(Thresholds)]
    return Thresholds(**{name: number_of(asked, name, kinds.get(name, float)) for name in names if name in asked})


def _modes(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, _, mode = text.rpartition(":")
        if not name or mode not in ("min", "max"):
            raise ValueError(f"--metric {text!r} must be NAME:max (more is better) or NAME:min, e.g. close:max")
        found[name] = mode
    return found


if __name__ == "__main__":
    leave(main())
