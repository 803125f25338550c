"""All that is asked of a released model and fresh data, together: drift, decay, latency; what raises an alarm.

Measures and judges; says nothing, writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeps.release.candidate import of_task
from trainable.config import TrainConfig

if TYPE_CHECKING:
    from sweeps.release.released import Released
    from trainable.release.decay import Decay
    from trainable.release.drift import ColumnDrift

MEASURED_AGAIN = 3  # times that a latency which looks bad is measured in all, before it is believed
PAUSE_S = 0.5
DIRECTIONS = {"loss": "min", "accuracy": "max", "mae": "min", "mse": "min"}


@dataclass(frozen=True)
class Thresholds:
    """alpha: how often clean data raise an alarm, all checks together; psi_*: of the stability index; latency_factor:
    of the median now over the 95th percentile at acceptance."""

    alpha: float = 0.01
    psi_warn: float = 0.1
    psi_alarm: float = 0.2
    min_samples: int = 30
    latency_factor: float = 1.5
    max_latency_ms: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 0.5:
            raise ValueError(f"--alpha {self.alpha:g} must be above 0 and below 0.5, e.g. 0.01")
        if not 0 < self.psi_warn <= self.psi_alarm:
            raise ValueError(f"--psi-warn {self.psi_warn:g} must be above 0 and at most --psi-alarm {self.psi_alarm:g}")
        if self.min_samples < 2:
            raise ValueError(f"--min-samples {self.min_samples} must be at least 2")
        if self.latency_factor < 1:
            raise ValueError(f"--latency-factor {self.latency_factor:g} must be at least 1")
        if self.max_latency_ms is not None and self.max_latency_ms <= 0:
            raise ValueError(f"--max-latency-ms {self.max_latency_ms:g} must be above 0")


@dataclass(frozen=True)
class Speed:
    """then, now: what `trainable.release.speed.measured` gives; slower: of each batch size how many times as slow as
    the slowest usual call at acceptance, None where the machine is another; times: measured so often."""

    then: Mapping[str, Any]
    now: Mapping[str, Any]
    slower: Mapping[str, float] | None
    times: int


@dataclass(frozen=True)
class Judgement:
    """level: of each check, the share of `alpha` that it has. columns and decays are empty where nothing can be said;
    `remarks` say why. alarms: a sentence each; none is no alarm."""

    num_samples: int
    labelled: bool
    level: float
    columns: Sequence[ColumnDrift]
    decays: Sequence[Decay]
    speed: Speed
    alarms: Sequence[str]
    remarks: Sequence[str]


def judge(released: Released, data: Path, thresholds: Thresholds, modes: Mapping[str, str]) -> Judgement:
    """modes: metric -> min or max, beside those that are known. Raises ValueError in words for data that cannot be
    compared."""
    from trainable.data import num_samples_of
    from trainable.release.baseline import columns_of, some_samples
    from trainable.release.decay import decayed
    from trainable.release.drift import compared
    from trainable.release.outcomes import outcomes_of
    from trainable.release.speed import measured, threads

    task, told, preparing = released.task, released.told, released.told["preparing"]
    baseline = told["baseline"]
    fresh = of_task("fresh", lambda: task.fresh(data, preparing))
    num, remarks = num_samples_of(fresh.examples), list(fresh.remarks)
    columns = of_task("features", lambda: columns_of(task, fresh.examples, preparing))
    missing = [name for name in baseline["features"] if name not in columns]
    if missing:
        raise ValueError(
            f"the task gives no {', '.join(missing[:5])} now, which it gave at acceptance: its code has changed; "
            "accept the model again"
        )
    level = thresholds.alpha / 2 if fresh.labelled else thresholds.alpha
    enough = num >= thresholds.min_samples
    if not enough:
        remarks.append(
            f"{num} samples are too few to tell drift or decay from chance: nothing is said of them; give at least "
            f"{thresholds.min_samples} (--min-samples)"
        )
    drifts = compared(baseline["features"], columns, level=level, warn=thresholds.psi_warn, alarm=thresholds.psi_alarm)
    decays: list[Decay] = []
    if fresh.labelled:
        config = TrainConfig.from_dict(told["config"])
        now = of_task("loss", lambda: outcomes_of(task, released.model, fresh.examples, config, released=True))
        known = {**DIRECTIONS, told["metric"]["name"]: told["metric"]["mode"], **modes}
        unknown = [name for name in modes if name not in now.sums]
        if unknown:
            raise ValueError(f"--metric {unknown[0]}: no such metric; the task has {', '.join(now.sums)}")
        decays = decayed(released.outcomes, now, known if enough else {}, level=level)
    else:
        remarks.append("the data have no labels: whether the model has become worse is not seen")
    samples = some_samples(fresh.examples, max(1, *map(int, baseline["speed"]["latency_ms"])))
    with threads(baseline["speed"]["machine"]["threads"]):
        speed = _speed(baseline["speed"], lambda: measured(task, released.model, samples), thresholds)
    if speed.slower is None:
        remarks.append(
            f"latency was measured on another machine at acceptance ({_machine(speed.then)}; this is "
            f"{_machine(speed.now)}): it is not compared"
        )
    drifts = drifts if enough else []
    alarms = [*_drift_alarm(drifts), *_decay_alarms(decays), *_latency_alarms(speed, thresholds)]
    return Judgement(num, fresh.labelled, level, drifts, decays, speed, alarms, remarks)


def _speed(then: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]], thresholds: Thresholds) -> Speed:
    """The best of a few measurements, where the first looks bad: a busy machine is no slow model."""
    from trainable.release.speed import best_of, slowdown

    now = measure()
    same = now["machine"] == then["machine"]
    times = 1
    while times < MEASURED_AGAIN and _latency_alarms(
        Speed(then, now, slowdown(then, now) if same else None, times), thresholds
    ):
        time.sleep(PAUSE_S)
        now, times = best_of(now, measure()), times + 1
    return Speed(then, now, slowdown(then, now) if same else None, times)


def _drift_alarm(drifts: Sequence[ColumnDrift]) -> list[str]:
    moved = [one for one in drifts if one.level == "alarm"]
    if not moved:
        return []
    first = moved[0]
    which = "" if len(drifts) == 1 else f"{len(moved)} of {len(drifts)} columns drifted, most of all "
    return [f"{which}{first.name}{'' if which else ' drifted'} (index {first.psi:.2g}; {first.moved()})"]


def _decay_alarms(decays: Sequence[Decay]) -> list[str]:
    return [
        f"{one.metric} is {one.now['mean']:.4g} and was {one.then['mean']:.4g} on the test samples "
        f"(p={one.p_corrected:.2g})"
        for one in decays
        if one.level == "alarm"
    ]


def _latency_alarms(speed: Speed, thresholds: Thresholds) -> list[str]:
    found = []
    for size, slower in (speed.slower or {}).items():
        if slower > thresholds.latency_factor:
            median, usual = speed.now["latency_ms"][size]["p50"], speed.then["latency_ms"][size]["p95"]
            found.append(
                f"latency of {size} sample(s) at a time is {median:.3g} ms, {slower:.2g} times its 95th percentile at "
                f"acceptance ({usual:.3g} ms)"
            )
    limit = thresholds.max_latency_ms
    size = next(iter(speed.now["latency_ms"]))
    if limit is not None and speed.now["latency_ms"][size]["p95"] > limit:
        found.append(
            f"latency of {size} sample(s) is {speed.now['latency_ms'][size]['p95']:.3g} ms at the 95th percentile, "
            f"above --max-latency-ms {limit:g}"
        )
    return found


def _machine(speed: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in speed["machine"].items())
