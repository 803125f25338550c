"""What a look at fresh data comes to, in sentences and small tables. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeps.monitoring.judgement import Judgement, Thresholds
from sweeps.release.words import interval

if TYPE_CHECKING:
    from sweeps.release.released import Released

MOST_COLUMNS = 8  # in the table; the rest is counted


def verdict_of(judged: Judgement) -> str:
    """One sentence, which begins with ALARM or with no alarm."""
    if judged.alarms:
        return "ALARM: " + "; ".join(judged.alarms)
    asked = [
        *(["drift"] if judged.columns else []),
        *(["decay"] if any(one.method for one in judged.decays) and judged.columns else []),
        *(["latency"] if judged.speed.slower is not None else []),
    ]
    return f"no alarm (asked: {', '.join(asked)})" if asked else "no alarm, but nothing could be compared"


def report_of(released: Released, data: Path, judged: Judgement, limits: Thresholds) -> list[str]:
    """All that the command prints of it, a line each."""
    labels = "with labels" if judged.labelled else "without labels"
    metric = released.told["metric"]["name"]
    lines = [
        f"{released.words} ({released.uri}), accepted {released.told['time'][:10]} from {released.told['sweep']}",
        f"fresh data: {data}, {judged.num_samples:,} samples {labels}",
        "",
    ]
    if judged.columns:
        lines += [*_drift(judged, limits), ""]
    if judged.decays:
        lines += [*_metrics(judged, metric), ""]
    lines += _latency(judged, limits)
    if judged.remarks:
        lines += ["", *(f"remark: {remark}" for remark in judged.remarks)]
    return [*lines, "", verdict_of(judged)]


def as_plain(
    released: Released, data: Path, judged: Judgement, limits: Thresholds, written: Mapping[str, Any]
) -> dict[str, Any]:
    """The same for programs, as JSON has it."""
    found = asdict(judged)
    return {
        "format": 1,
        **written,
        "model": released.uri,
        "registered": released.registered,
        "acceptance": released.told["id"],
        "sweep": released.told["sweep"],
        "data": str(data),
        "num_samples": judged.num_samples,
        "labelled": judged.labelled,
        "alarm": bool(judged.alarms),
        "verdict": verdict_of(judged),
        "alarms": list(judged.alarms),
        "remarks": list(judged.remarks),
        "thresholds": {**asdict(limits), "level_of_each_check": judged.level},
        "columns": {column.pop("name"): column for column in found["columns"]},
        "metrics": {decay.pop("metric"): decay for decay in found["decays"]},
        "speed": found["speed"],
    }


def _drift(judged: Judgement, limits: Thresholds) -> list[str]:
    shown = judged.columns[:MOST_COLUMNS]
    rows = [("column", "index", "p", "", "what moved most: training -> now")]
    for one in shown:
        level = "" if one.level == "none" else one.level
        rows.append((one.name, f"{one.psi:.3f}", f"{one.p_corrected:.2g}", level, one.moved()))
    counted = {level: sum(one.level == level for one in judged.columns) for level in ("alarm", "warn")}
    rest = len(judged.columns) - len(shown)
    said = [
        f"drift: {counted['alarm']} of {len(judged.columns)} columns alarm, {counted['warn']} warn (a stability index "
        f"of {limits.psi_alarm:g} and {limits.psi_warn:g} or more, with p at most {judged.level:g} over all columns)",
        *_aligned(rows, right=(1, 2)),
    ]
    return [*said, f"and {rest} more columns with less drift"] if rest > 0 else said


def _metrics(judged: Judgement, own: str) -> list[str]:
    rows = [("metric", "test", "95 % interval", "now", "95 % interval", "p", "")]
    for one in judged.decays:
        p = "not judged" if one.method is None else f"{one.p_corrected:.2g}"
        row = (f"{one.then['mean']:.4g}", interval(one.then), f"{one.now['mean']:.4g}", interval(one.now))
        rows.append((one.metric, *row, p, "" if one.level == "none" else one.level))
    said = f"decay: worse than on the test samples where p is at most {judged.level:g} over all metrics"
    return [f"{said}; the sweep's own metric is {own}", *_aligned(rows, right=(5,))]


def _latency(judged: Judgement, limits: Thresholds) -> list[str]:
    speed = judged.speed
    rows = [("samples at a time", "p50 ms", "p95 ms", "at acceptance p50", "p95", "times p95")]
    for size, now in speed.now["latency_ms"].items():
        then = speed.then["latency_ms"].get(size, {})
        slower = (speed.slower or {}).get(size)
        cells = (now["p50"], now["p95"], then.get("p50"), then.get("p95"), slower)
        rows.append((size, *("" if cell is None else f"{cell:.3g}" for cell in cells)))
    machine = ", ".join(f"{name} {value}" for name, value in speed.now["machine"].items())
    said = f"latency on {machine}: an alarm is a median of more than {limits.latency_factor:g} times the usual p95"
    again = f", measured {speed.times} times, the best of which count" if speed.times > 1 else ""
    return [f"{said}{again}", *_aligned(rows, right=range(6))]


def _aligned(rows: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
