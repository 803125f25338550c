"""Drift of columns: right values from scipy and from hand, no false alarm on clean resamples, real shifts found."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from trainable.release.columns import columns_of
from trainable.release.drift import LEVEL, ColumnDrift, compared, expected_index, stability_index
from trainable.release.histogram import DIGITS, alikeness, bin_names, counted, described, rounded
from trainable.tasks.char_lm import CharLm
from trainable.tasks.digits import Digits

Array = numpy.ndarray[Any, Any]


def baseline_of(columns: dict[str, Array], names: tuple[str, ...] = ()) -> dict[str, Any]:
    """After a way through JSON, as it is kept."""
    found = {name: described(values, names, 0) for name, values in columns.items()}
    return dict(json.loads(json.dumps(found, allow_nan=False)))


def one(then: Array, now: Array) -> ColumnDrift:
    (found,) = compared(baseline_of({"x": then}), {"x": now})
    return found


def test_the_index_by_hand() -> None:
    """Ten equal bins of a scorecard, one of which doubled at the cost of another: 0.1 ln 2 + 0.1 ln(1/(1e-3 / 0.1))."""
    assert stability_index([0.1] * 10, [0.1] * 10) == 0
    assert stability_index([0.5, 0.5], [0.75, 0.25]) == pytest.approx(0.25 * math.log(1.5) + 0.25 * math.log(2))
    then, now = [0.1, 0.2, 0.3, 0.4], [0.2, 0.2, 0.25, 0.35]
    by_hand = 0.1 * 0.693147 + 0 + -0.05 * -0.182322 + -0.05 * -0.133531
    assert stability_index(then, now) == pytest.approx(by_hand, abs=1e-6)
    # Twice the Jeffreys divergence's half: the two Kullback-Leibler divergences together.
    assert stability_index(then, now) == pytest.approx(stats.entropy(then, now) + stats.entropy(now, then))


def test_the_index_is_on_average_what_is_taken_off() -> None:
    random = numpy.random.default_rng(0)
    shares = numpy.full(10, 0.1)
    found = []
    for _ in range(400):
        then, now = random.multinomial(2000, shares) / 2000, random.multinomial(500, shares) / 500
        found.append(stability_index(then.tolist(), now.tolist()))
    assert numpy.mean(found) == pytest.approx(expected_index(10, 2000, 500), rel=0.1)


def test_numbers_are_compared_as_scipy_does() -> None:
    random = numpy.random.default_rng(1)
    then, now = random.normal(size=1500), random.normal(0.1, 1, 400)
    wanted = stats.ks_2samp(then, now)
    found = one(then, now)
    assert found.statistic == pytest.approx(wanted.statistic, rel=1e-6)
    assert wanted.pvalue <= found.p <= 1.2 * wanted.pvalue  # the limit for many samples: never too small
    assert found.method == "Kolmogorov-Smirnov"


def test_categories_are_compared_as_scipy_does() -> None:
    random = numpy.random.default_rng(2)
    then, now = random.choice(4, 900, p=[0.4, 0.3, 0.2, 0.1]), random.choice(4, 300, p=[0.3, 0.3, 0.2, 0.2])
    table = [numpy.bincount(codes, minlength=4) for codes in (then, now)]
    wanted = stats.chi2_contingency(table, correction=False)
    found = one(then, now)
    assert (found.statistic, found.p) == pytest.approx((wanted.statistic, wanted.pvalue))
    assert found.method == "chi-square"


def test_bins_hold_tenths_and_a_gap_has_its_own() -> None:
    values = numpy.arange(1000) / 7
    values[::10] = math.nan
    found = described(values, (), 0)
    assert found["counts"][:-1] == [90] * 10
    assert found["counts"][-1] == 100
    assert bin_names(found)[-1] == "missing"
    assert len(bin_names(found)) == len(found["counts"])
    assert (found["min"], found["max"]) == (pytest.approx(1 / 7, rel=1e-5), pytest.approx(999 / 7, rel=1e-5))


@settings(max_examples=80)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=False, width=32), min_size=1, max_size=60),
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=60),
)
def test_any_numbers_are_counted_once(then: list[float], now: list[float]) -> None:
    baseline = baseline_of({"x": numpy.asarray(then, float)})
    counts, _ = counted(baseline["x"], numpy.asarray(now, float))
    assert counts.sum() == len(now)
    assert sum(baseline["x"]["counts"]) == len(then)
    (found,) = compared(baseline, {"x": numpy.asarray(now, float)})
    assert found.psi >= 0
    assert math.isfinite(found.psi_raw)
    assert 0 <= found.p <= found.p_corrected <= 1
    same = one(numpy.asarray(then, float), numpy.asarray(then, float))
    assert same.p == pytest.approx(1)
    assert same.level == "none"


@settings(max_examples=80)
@given(st.floats(-1e280, 1e280))
def test_rounding_keeps_what_a_reader_sees(value: float) -> None:
    (found,) = rounded(numpy.asarray([value]))
    assert found == pytest.approx(float(f"{value:.{DIGITS - 1}e}"), rel=2 * 10.0**-DIGITS, abs=1e-289)


def test_values_that_came_a_long_way_are_equal_still() -> None:
    """Scaled in 32 bits and back, 5.1 is 5.0999999; that is no drift."""
    values = numpy.random.default_rng(0).choice([5.1, 4.9, 0.1], 600)
    there_and_back = ((values - 4.2) / 1.7).astype(numpy.float32).astype(float) * 1.7 + 4.2
    assert not numpy.array_equal(values, there_and_back)
    assert one(values, there_and_back).p == pytest.approx(1)


def test_constants_and_rare_values() -> None:
    constant = numpy.zeros(300)
    assert one(constant, numpy.zeros(100)).level == "none"
    for other in (1.0, -1.0, math.nan):
        assert one(constant, numpy.full(100, other)).level == "alarm"
    assert bin_names(described(constant, (), 0)) == ["below 0", "0", "above 0", "missing"]
    nearly = numpy.where(numpy.arange(500) < 5, 0.0, 1.0)  # every tenth is 1
    assert one(nearly, numpy.zeros(100)).moved() == "below 1: 1.0% -> 100.0%"
    assert one(nearly, numpy.zeros(100)).level == "alarm"
    gaps = numpy.where(numpy.arange(400) % 4 == 0, math.nan, 1.0)
    assert one(gaps, numpy.full(100, 1.0)).level == "alarm"
    assert one(gaps, gaps[:100]).level == "none"


@pytest.mark.parametrize(
    ("values", "first", "last"),
    [
        (numpy.arange(2000, 2030), "up to 2002", "above 2026"),  # years are told apart
        (numpy.linspace(0, 1, 1001), "up to 0.1", "above 0.9"),
        (numpy.linspace(0, 1e9, 1001), "up to 1e+08", "above 9e+08"),
        (1013 + numpy.arange(100) / 1000, "up to 1013.01", "above 1013.09"),
    ],
)
def test_bins_are_called_by_what_tells_them_apart(values: Array, first: str, last: str) -> None:
    names = bin_names(described(values.astype(float), (), 0))
    assert len(set(names)) == len(names)
    assert (names[0], names[-2]) == (first, last)


def test_a_code_that_training_never_had() -> None:
    then = numpy.asarray([0, 1, 2] * 100)
    now = numpy.asarray([0, 1, 2, 3] * 30)
    found = one(then, now)
    assert found.level == "alarm"
    assert found.moved() == "other: 0.0% -> 25.0%"
    assert baseline_of({"x": then}, ("red", "green", "blue"))["x"]["names"] == ["red", "green", "blue"]


def test_an_alarm_needs_both_size_and_sureness() -> None:
    random = numpy.random.default_rng(3)
    then = random.normal(size=20_000)
    small = one(then, random.normal(0.15, 1, 20_000))  # sure, and too small to matter
    assert small.p_corrected < LEVEL / 10
    assert small.level == "none"
    unsure = compared(baseline_of({"x": random.normal(size=30)}), {"x": random.normal(0.6, 1, 12)})[0]
    assert unsure.level == "none"
    large = one(then, random.normal(0.7, 1, 2000))
    assert large.level == "alarm"
    assert large.psi == pytest.approx(0.7**2, rel=0.2)  # of two normals of one spread: the square of their distance
    assert one(then, random.normal(0.38, 1, 2000)).level == "warn"


def test_many_columns_are_corrected_for() -> None:
    random = numpy.random.default_rng(4)
    columns = {f"x{n}": random.normal(size=400) for n in range(50)}
    found = compared(baseline_of(columns), {name: random.normal(size=100) for name in columns})
    assert sum(column.p < 0.05 for column in found) >= 2
    assert min(column.p_corrected for column in found) > LEVEL
    assert all(column.p_corrected >= column.p for column in found)


@pytest.mark.parametrize(
    "num", [50, pytest.param(270, marks=pytest.mark.slow), pytest.param(1000, marks=pytest.mark.soak)]
)
def test_no_false_alarms_on_resamples_of_clean_data(num: int) -> None:
    """Of digits' samples that no model saw, drawn with replacement: at most 5 % of 200 alarm, by any of 64 columns."""
    task = Digits()
    baseline = baseline_of({name: values.numpy() for name, values in columns_of(task.splits(0).train[0]).items()})
    clean = task.splits(0).val[0]
    random = numpy.random.default_rng(num)
    alarms = 0
    for _ in range(200):
        resample = clean[random.choice(len(clean), num)]
        found = compared(baseline, {name: values.numpy() for name, values in columns_of(resample).items()})
        alarms += found[0].level == "alarm"
    assert alarms <= 10


@pytest.mark.parametrize("num", [50, 400])
def test_no_false_alarms_where_every_number_is_another(num: int) -> None:
    """Twelve independent columns, among them skewed ones and categories, drawn afresh: at most 2 % of 200."""
    random = numpy.random.default_rng(num)

    def drawn(count: int) -> dict[str, Array]:
        numbers = {f"n{n}": random.lognormal(0, 1.5, count) for n in range(6)}
        few = {f"w{n}": random.poisson(1.5, count).astype(float) for n in range(3)}
        codes = {f"c{n}": random.choice(12, count, p=numpy.arange(1, 13) / 78) for n in range(3)}
        return {**numbers, **few, **codes}

    baseline = baseline_of(drawn(1200))
    alarms = sum(compared(baseline, drawn(num))[0].level == "alarm" for _ in range(200))
    assert alarms <= 200 * 2 * LEVEL


@pytest.mark.parametrize(("num", "shift"), [(50, 1.0), (200, 0.8)])
def test_a_shift_is_found(num: int, shift: float) -> None:
    """Of one of twelve columns, by so many of its deviations: in at least 90 of 100 draws."""
    random = numpy.random.default_rng(5)
    baseline = baseline_of({f"x{n}": random.normal(size=1200) for n in range(12)})
    found = 0
    for _ in range(100):
        columns = {f"x{n}": random.normal(shift * (n == 7), 1, num) for n in range(12)}
        first = compared(baseline, columns)[0]
        found += first.level == "alarm" and first.name == "x7"
    assert found >= 90


def test_neighbours_in_a_text_count_less() -> None:
    """Blocks of one code each tell as much as one value each; of independent values, each counts."""
    random = numpy.random.default_rng(6)
    independent = numpy.stack([random.multinomial(50, [0.2, 0.3, 0.5]) for _ in range(200)])
    assert alikeness(independent) == pytest.approx(1, abs=0.25)
    repeated = 50 * numpy.eye(3)[random.choice(3, 200, p=[0.2, 0.3, 0.5])]
    assert alikeness(repeated) == pytest.approx(50, rel=0.1)


def test_a_text_is_compared_with_stretches_of_its_length() -> None:
    """Passages of the same prose differ, and that is no drift; capitals, and digits for vowels, are."""
    task = CharLm()
    preparing = task.preparing(0)
    train, val = task.splits(0).train, task.splits(0).val
    columns = {name: values.numpy() for name, values in task.features(train, preparing).items()}
    baseline = baseline_of(columns, tuple(task.code_names(preparing)["characters"]))
    windows = task.features(val, preparing)["characters"].numpy()
    random = numpy.random.default_rng(7)
    alarms = 0
    for _ in range(200):
        num = int(random.integers(30, 60))
        first = int(random.integers(0, len(windows) - num))
        alarms += compared(baseline, {"characters": windows[first : first + num]})[0].level == "alarm"
    assert alarms <= 4
    vocabulary = preparing["vocabulary"]
    for change in (str.upper, lambda text: text.translate(str.maketrans("aeiou", "12345"))):
        moved = numpy.asarray([0, *(1 + vocabulary.find(change(letter)) for letter in vocabulary), 0])
        found = compared(baseline, {"characters": moved[windows]})[0]
        assert found.level == "alarm"
