"""What an acceptance comes to, in sentences and one small table. Pure functions of what is written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sweeps.release.registry import Registered
from sweeps.sweep import describe


def report_of(told: Mapping[str, Any], registered: Registered | None) -> list[str]:
    """All that the command prints of an acceptance, a line each."""
    lines = [
        f"{told['sweep']}: trial {told['trial']}, {told['chosen']} ({describe(told['params']) or 'no parameters'})"
    ]
    lines += [_origin(told), "", *_table(told), ""]
    lines += [*openings_words(told), validation_words(told), *told["remarks"], export_words(told)]
    if registered is not None:
        lines.append(
            f"registered as {registered.name} version {registered.version}, {registered.alias}: {registered.why}"
        )
    return lines


def _origin(told: Mapping[str, Any]) -> str:
    again = told["retrained"]
    if again is None:
        return f"the weights are those of its best checkpoint, at step {told['checkpoint']['step']}"
    words = (
        f"trained anew with {len(again['seeds'])} seed(s); the weights are those of seed {again['chosen']}, "
        f"the best on validation, at step {again['step']}"
    )
    spread = again["test"].get(told["metric"]["name"])
    if spread is not None and spread["deviation"] is not None:
        words += (
            f"; over the seeds test {told['metric']['name']} is {spread['mean']:.4g} "
            f"+- {spread['deviation']:.2g} (standard deviation)"
        )
    return words


def _table(told: Mapping[str, Any]) -> list[str]:
    test, val = told["test"], told["val"]
    level = next(iter(test["metrics"].values()))["level"]
    rows = [("", f"test ({test['num_samples']:,} samples)", f"{level:.0%} interval", f"val ({val['num_samples']:,})")]
    for name, found in test["metrics"].items():
        beside = val["metrics"].get(name)
        rows.append((name, f"{found['mean']:.4g}", interval(found), f"{beside['mean']:.4g}" if beside else ""))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def interval(found: Mapping[str, Any]) -> str:
    if found["low"] is None:
        return "not known"
    return f"{found['low']:.4g} to {found['high']:.4g}"


def openings_words(told: Mapping[str, Any]) -> list[str]:
    """How often these test samples were looked at, here and by other sweeps."""
    openings, others = told["openings"], told["opened_by_others"]
    now, before = _minute(openings[-1]), [f"{_minute(entry)} for trial {entry['trial']}" for entry in openings[:-1]]
    lines = [f"the test samples were opened at {now} UTC, for the first time by this sweep"]
    if before:
        lines = [
            f"the test samples were opened at {now} UTC, for time {len(openings)} by this sweep (before: "
            f"{', '.join(before)}): the more often they are looked at, the more the test flatters what is chosen by it"
        ]
    if others:
        names = sorted({entry["sweep"] for entry in others})
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        lines.append(f"the same samples were opened {len(others)} time(s) by other sweeps of this folder: {shown}")
    return lines


def _minute(opening: Mapping[str, Any]) -> str:
    return str(opening["time"])[:16].replace("T", " ")


def validation_words(told: Mapping[str, Any]) -> str:
    """Whether the validation promised more than the test kept, by the metric of the sweep."""
    name, mode = told["metric"]["name"], told["metric"]["mode"]
    if name not in told["val"]["metrics"] or name not in told["test"]["metrics"]:
        return f"there is no {name} to compare validation and test by"
    val, test = told["val"]["metrics"][name]["mean"], told["test"]["metrics"][name]
    if test["low"] is None:
        return f"whether validation was optimistic cannot be told: the test {name} has no interval"
    ends = interval(test)
    if test["low"] <= val <= test["high"]:
        return f"validation was about right: its {name}, {val:.4g}, lies within the interval of the test, {ends}"
    better = (val < test["low"]) == (mode == "min")
    words = f"its {name}, {val:.4g}, is {'better' if better else 'worse'} than all of the test's interval, {ends}"
    beside = told["val"]["metrics"][name]
    if beside["low"] is not None and beside["low"] <= test["high"] and test["low"] <= beside["high"]:
        words += f"; but its own interval, {interval(beside)}, overlaps: it may be chance"
    elif better:
        words += "; the test is what to expect"
    return f"validation was {'optimistic' if better else 'pessimistic'}: {words}"


def export_words(told: Mapping[str, Any]) -> str:
    export = told["export"]
    sure = (
        f"loaded back, its outputs differ by at most {export['max_difference']:.2g} "
        f"(allowed: {export['tolerance']:.2g})"
    )
    if export["kind"] == "pt2":
        return f"exported as a graph without pickle (pt2) for any number of samples; {sure}"
    return f"exported as weights, which need the task {told['task']} to be called: {export['reason']}; {sure}"


def load_words(told: Mapping[str, Any], registered: Registered) -> str:
    """How Python gets the model from the registry."""
    if told["export"]["kind"] == "pt2":
        return f'mlflow.set_tracking_uri("{registered.tracking_uri}"); mlflow.pytorch.load_model("{registered.uri}")'
    return f'sweeps.release.released.load("{registered.uri}", "{registered.tracking_uri}").model'


def watch_words(registered: Registered) -> str:
    """The command that holds the model against fresh data."""
    where = f' --tracking-uri "{registered.tracking_uri}"'
    return f'python -m sweeps.monitor "{registered.uri}" --data FILE_OR_DIR{where}'


def refusal(openings: Sequence[Any], name: str, there: str | None, registered: bool) -> str:
    """Why the test samples are not opened once more, and what can be done instead."""
    last = openings[-1]
    words = f"{name}: its test samples were opened already ({last.day} UTC, for trial {last.trial}"
    words += f", {len(openings)} times in all)" if len(openings) > 1 else ")"
    if there is None:
        words += "; that command ended before its result was written down"
    else:
        words += f"; the result is in {there}"
        if not registered:
            words += ", not registered yet: --register does that, and opens nothing"
    return f"{words}. Each look makes the test worth less; --again opens them once more, which is recorded"
