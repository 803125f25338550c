"""What is claimed over seeds: against scipy, against numbers worked out by hand, and against chance itself."""

from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sweeps.answers.statistics import (
    LEVEL,
    MOST_SEEDS,
    POWER,
    Estimate,
    compare_with_first,
    estimate,
    holm,
    power,
    seeds_to_tell,
    t_test,
)

numbers = st.floats(-1e6, 1e6).filter(lambda value: value == 0 or abs(value) > 1e-6)
NO_DIFFERENCE = 600  # simulated sweeps in which all configurations are equally good


def test_mean_and_standard_error_by_hand() -> None:
    # 2, 4, 9: mean 5, squares 9 + 1 + 16 = 26, variance 13, error sqrt(13 / 3)
    assert estimate([2.0, 4.0, 9.0]) == Estimate(5.0, pytest.approx(math.sqrt(13 / 3)), 3)
    assert estimate([7.0]) == Estimate(7.0, None, 1)
    with pytest.raises(ValueError, match="no mean of no values"):
        estimate([])


@given(st.lists(numbers, min_size=2, max_size=20))
def test_standard_error_as_scipy_has_it(values: list[float]) -> None:
    found = estimate(values)
    assert found.mean == pytest.approx(numpy.mean(values), rel=1e-9, abs=1e-9)
    assert found.error == pytest.approx(stats.sem(values), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Estimate(0.031234, 0.00041, 3), "0.03123 +- 0.00041"),
        (Estimate(0.0312, None, 1), "0.0312"),
        (Estimate(34.66, 2.03, 3), "34.7 +- 2"),
        (Estimate(0.0, 0.5, 3), "0 +- 0.5"),
        (Estimate(0.002, 0.4, 3), "0.002 +- 0.4"),
        (Estimate(0.5, 0.0, 3), "0.5 +- 0"),
        (Estimate(-0.0123, 0.001, 4), "-0.0123 +- 0.001"),
    ],
)
def test_a_mean_is_as_exact_as_its_error(found: Estimate, words: str) -> None:
    assert str(found) == words


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=12))
def test_two_rows_get_scipys_paired_test(pairs: list[tuple[float, float]]) -> None:
    differences = [a - b for a, b in pairs]
    if numpy.ptp(differences) < 1e-6 * max(1, max(map(abs, differences))):
        return  # scipy warns of lost digits there
    rows = [[a for a, _ in pairs], [b for _, b in pairs]]
    (found,) = compare_with_first(rows)
    assert found.p == pytest.approx(stats.ttest_rel(*rows).pvalue, rel=1e-5, abs=1e-12)


def test_without_any_noise_every_difference_is_real() -> None:
    assert t_test(0.5, 0.0, 3) == 0.0
    assert t_test(0.0, 0.0, 3) == 1.0
    (found,) = compare_with_first([[1.5, 2.5, 3.5], [1.0, 2.0, 3.0]])
    assert (found.tied, found.p) == (False, 0.0)
    (same,) = compare_with_first([[1.5, 2.5, 3.5], [1.5, 2.5, 3.5]])
    assert (same.tied, same.seeds) == (True, None)  # no number of seeds would ever tell


def test_holm_by_hand() -> None:
    """The example of Holm's step-down: 0.01 x 4, 0.02 x 3, 0.03 x 2, 0.04 x 1, none below the one before."""
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_between_no_correction_and_bonferronis(p_values: list[float]) -> None:
    for raw, adjusted in zip(p_values, holm(p_values), strict=True):
        assert raw <= adjusted <= min(1.0, len(p_values) * raw) or math.isclose(adjusted, len(p_values) * raw)


@pytest.mark.parametrize("freedom", [1, 2, 7, 60])
@pytest.mark.parametrize("shift", [0.2, 2.0, 6.0])
@pytest.mark.parametrize("level", [0.05, 0.01])
def test_power_by_its_definition(freedom: int, shift: float, level: float) -> None:
    """A normal mean over an independent chi, integrated over the chi: no noncentral t is used."""
    bar, root = stats.t.ppf(1 - level / 2, freedom), math.sqrt(freedom)
    spread = numpy.linspace(1e-6, stats.chi.ppf(1 - 1e-12, freedom), 20_001)
    passed = stats.norm.sf(bar * spread / root - shift) + stats.norm.cdf(-bar * spread / root - shift)
    expected = numpy.trapezoid(passed * stats.chi.pdf(spread, freedom), spread)
    assert power(shift, freedom, level) == pytest.approx(expected, abs=1e-5)


def test_power_of_a_textbook() -> None:
    """Cohen's medium effect, d = 0.5: 34 pairs give a power of 0.80 at 5 % (G*Power's manual, the paired t test)."""
    assert power(0.5 * math.sqrt(33), 32, 0.05) < POWER < power(0.5 * math.sqrt(34), 33, 0.05)
    assert power(0.0, 9, 0.05) == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize(("shift", "freedom", "level"), [(20.0, 3, 0.005), (10.0, 99, 0.05), (900.0, 2, 0.001)])
def test_a_power_without_doubt_is_one(shift: float, freedom: int, level: float) -> None:
    """Where scipy's series give no number."""
    assert power(shift, freedom, level) == pytest.approx(1.0, abs=1e-3)


def test_how_many_seeds_would_tell() -> None:
    # standard deviation 1 of three: Cohen's d of 0.5 between two
    assert seeds_to_tell(Estimate(0.5, 1 / math.sqrt(3), 3), 2, 0.05) == 34
    assert seeds_to_tell(Estimate(0.001, 1.0, 3), 2, 0.05) is None  # hopeless
    assert seeds_to_tell(Estimate(0.0, 0.0, 3), 2, 0.05) is None


@given(st.floats(1e-3, 10), st.integers(2, 9), st.integers(2, 9), st.floats(1e-3, 1e3))
def test_the_advice_knows_no_unit(effect: float, num: int, rows: int, unit: float) -> None:
    found = seeds_to_tell(Estimate(effect, 1.0, num), rows, 0.05)
    assert found is None or num < found <= num + MOST_SEEDS
    scaled = seeds_to_tell(Estimate(unit * effect, unit, num), rows, 0.05)
    assert (found is None) == (scaled is None)
    assert found is None or scaled is None or abs(found - scaled) <= 1  # by rounding alone


def test_three_rows_by_hand() -> None:
    """Rows less their means 2, 1, 0: (-1, 0, 1), (-1, 1, 0), (0, 0, 0); less the seeds' (-2/3, 1/3, 1/3): squares
    1/9 + 1/9 + 4/9, 1/9 + 4/9 + 1/9, 4/9 + 1/9 + 1/9 = 2, over 4 degrees of freedom: 1/2 a value, 1 a difference."""
    close, far = compare_with_first([[1.0, 2.0, 3.0], [0.0, 2.0, 1.0], [0.0, 0.0, 0.0]])
    # Their own spreads: of (1, 0, 2): 1; of (1, 2, 3): 1. So 1 it is, and the errors are 1 / sqrt 3.
    error = pytest.approx(1 / math.sqrt(3))
    assert (close.difference, far.difference) == (Estimate(1.0, error, 3), Estimate(2.0, error, 3))
    # t = 1.732 and 3.464 at 4 degrees of freedom (and 1.732 for the pair beside them): p = 0.158 and 0.0257
    assert far.p == pytest.approx(3 * 0.02572, rel=1e-3)
    assert close.p == pytest.approx(2 * 0.15830, rel=1e-3)
    assert close.tied
    assert far.tied
    assert close.seeds == next(n for n in range(4, 99) if power(math.sqrt(n), 2 * (n - 1), 0.05 / 3) >= POWER)


def test_a_pair_that_spreads_more_has_its_own_spread() -> None:
    """The noisy row must not borrow the calm of the others, nor they suffer for all of its noise."""
    draw = numpy.random.default_rng(1)
    calm = [list(4 + 0.01 * draw.normal(size=4)), list(3 + 0.01 * draw.normal(size=4))]
    noisy = [0.0, 6.0, 1.0, 5.0]
    beside_calm, beside_noisy = compare_with_first([*calm, noisy])
    assert beside_noisy.difference is not None
    own = stats.sem(numpy.subtract(calm[0], noisy))
    assert beside_noisy.difference.error == pytest.approx(own)
    assert beside_calm.difference is not None
    assert beside_calm.difference.error is not None
    assert beside_calm.difference.error < own


def test_one_seed_tells_nothing() -> None:
    (found,) = compare_with_first([[5.0], [1.0]])
    assert (found.difference, found.p, found.tied, found.seeds, found.is_known) == (None, 1.0, True, None, False)
    assert compare_with_first([[1.0, 2.0]]) == compare_with_first([]) == []


@given(st.integers(2, 5), st.integers(2, 5))
def test_what_all_share_on_a_seed_changes_nothing(num: int, seeds: int) -> None:
    """That is what pairs are for: a seed that is easy for all must not blur the difference between them."""
    draw = numpy.random.default_rng(num * 10 + seeds)
    rows, shift = draw.normal(size=(num, seeds)), draw.normal(size=seeds) * 100
    plain, shifted = compare_with_first(rows.tolist()), compare_with_first((rows + shift).tolist())
    assert [one.p for one in plain] == pytest.approx([other.p for other in shifted], rel=1e-6)


@pytest.mark.parametrize(
    ("num_rows", "num_seeds", "spread"),
    [(2, 2, 1), (2, 3, 1), (2, 8, 3), (5, 3, 1), (5, 3, 3), (9, 3, 3), (5, 10, 3)],
)
def test_a_difference_is_claimed_in_vain_at_most_so_often(num_rows: int, num_seeds: int, spread: float) -> None:
    """No row is better, the noisiest is `spread` times as noisy as the calmest, and the winner is picked by that
    noise: any other that is not called tied is a false claim. With two it is the nominal 5 %, with more the
    correction errs on the safe side."""
    draw = numpy.random.default_rng(num_rows * 100 + num_seeds)
    spreads = numpy.linspace(1, spread, num_rows)[:, None]
    false = 0
    for _ in range(NO_DIFFERENCE):
        rows = draw.normal(size=(num_rows, num_seeds)) * spreads + draw.normal(size=num_seeds)
        ordered = rows[numpy.argsort(-rows.mean(axis=1))]
        false += any(not found.tied for found in compare_with_first(ordered.tolist()))
    bound = 3 * math.sqrt(LEVEL * (1 - LEVEL) / NO_DIFFERENCE)  # three standard deviations of the simulation
    assert false / NO_DIFFERENCE <= LEVEL + bound
    if num_rows == 2:
        assert false / NO_DIFFERENCE >= LEVEL - bound


def test_a_real_difference_is_found_with_the_advised_seeds() -> None:
    """The advice is honest: with so many seeds a difference of that size is found about as often as promised."""
    num = seeds_to_tell(Estimate(0.8, 1 / math.sqrt(3), 3), 2, LEVEL)
    assert num is not None
    draw = numpy.random.default_rng(7)
    found = 0
    for _ in range(600):
        other = draw.normal(size=num)
        (comparison,) = compare_with_first([list(other + draw.normal(0.8, 1, num)), list(other)])
        found += not comparison.tied
    assert 0.75 < found / 600 < 0.88
