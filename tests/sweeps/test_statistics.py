"""What is claimed over seeds: against scipy, against numbers worked out by hand, and against chance itself."""

from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sweeps.statistics import (
    LEVEL,
    MOST_SEEDS,
    POWER,
    Estimate,
    compare_with_first,
    estimate,
    holm,
    paired_p,
    power,
    seeds_to_tell,
)

numbers = st.floats(-1e6, 1e6).filter(lambda value: value == 0 or abs(value) > 1e-6)
NO_DIFFERENCE = 1000  # simulated sweeps in which all configurations are equally good


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
def test_the_paired_test_is_scipys(pairs: list[tuple[float, float]]) -> None:
    differences = [a - b for a, b in pairs]
    if numpy.ptp(differences) < 1e-6 * max(1, max(map(abs, differences))):
        return  # scipy warns of lost digits there
    expected = stats.ttest_rel([a for a, _ in pairs], [b for _, b in pairs]).pvalue
    assert paired_p(differences) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_the_paired_test_where_there_is_nothing_to_test() -> None:
    """One seed says nothing of noise; without any noise every difference is real."""
    assert paired_p([]) == paired_p([3.0]) == paired_p([0.0, 0.0]) == 1.0
    assert paired_p([0.5, 0.5, 0.5]) == 0.0


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


@pytest.mark.parametrize("num", [2, 3, 8, 60])
@pytest.mark.parametrize("effect", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("level", [0.05, 0.01])
def test_power_by_its_definition(num: int, effect: float, level: float) -> None:
    """A normal mean over an independent chi, integrated over the chi: no noncentral t is used."""
    bar, shift, root = stats.t.ppf(1 - level / 2, num - 1), effect * math.sqrt(num), math.sqrt(num - 1)
    spread = numpy.linspace(1e-6, stats.chi.ppf(1 - 1e-12, num - 1), 20_001)
    passed = stats.norm.sf(bar * spread / root - shift) + stats.norm.cdf(-bar * spread / root - shift)
    expected = numpy.trapezoid(passed * stats.chi.pdf(spread, num - 1), spread)
    assert power(effect, num, level) == pytest.approx(expected, abs=1e-5)


def test_power_of_a_textbook() -> None:
    """Cohen's medium effect, d = 0.5: 34 pairs give a power of 0.80 at 5 % (G*Power's manual, the paired t test)."""
    assert power(0.5, 33, 0.05) < POWER < power(0.5, 34, 0.05)
    assert power(0.0, 10, 0.05) == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize(("effect", "num", "level"), [(10.0, 4, 0.005), (1.0, 100, 0.05), (300.0, 3, 0.001)])
def test_a_power_without_doubt_is_one(effect: float, num: int, level: float) -> None:
    """Where scipy's series give no number."""
    assert power(effect, num, level) == pytest.approx(1.0, abs=1e-3)


def test_how_many_seeds_would_tell() -> None:
    # mean 0.5, standard deviation 1: Cohen's d of 0.5
    assert seeds_to_tell([-0.5, 0.5, 1.5], 0.05) == 34
    assert seeds_to_tell([1.0], 0.05) is None
    assert seeds_to_tell([0.0, 0.0], 0.05) is None
    assert seeds_to_tell([-1.0, 1.001], 0.05) is None  # hopeless
    assert seeds_to_tell([1.0, 1.0], 0.05) == 2


@given(st.lists(numbers, min_size=2, max_size=8), st.floats(1e-3, 1e3))
def test_the_advice_knows_no_unit(differences: list[float], unit: float) -> None:
    found = seeds_to_tell(differences, 0.05)
    assert found is None or len(differences) <= found <= len(differences) + MOST_SEEDS
    scaled = seeds_to_tell([unit * value for value in differences], 0.05)
    assert (found is None) == (scaled is None)
    assert found is None or scaled is None or abs(found - scaled) <= 1  # by rounding alone


def test_the_winner_against_the_others() -> None:
    """Worked out by hand: differences (0.2, 0.3, 0.1) and (2.0, 2.1, 2.2), the pair beside them (1.8, 1.8, 2.1)."""
    first, second, third = {0: 3.0, 1: 3.1, 2: 3.2}, {0: 2.8, 1: 2.8, 2: 3.1}, {0: 1.0, 1: 1.0, 2: 1.0}
    close, far = compare_with_first([first, second, third])
    # t = 0.2 / (0.1 / sqrt 3) = 3.46, p = 0.0742; t = 2.1 / (0.1 / sqrt 3) = 36.4, p = 0.000756, times 3 tests
    assert (close.p, close.tied) == (pytest.approx(0.0742, abs=1e-4), True)
    assert (far.p, far.tied) == (pytest.approx(3 * 0.000754, rel=1e-2), False)
    assert close.difference == Estimate(pytest.approx(0.2), pytest.approx(0.1 / math.sqrt(3)), 3)
    assert close.seeds == 5  # power 0.80 for an effect of 2 at 5 %: 5 pairs
    assert power(2.0, 4, 0.05) < POWER < power(2.0, 5, 0.05)


def test_pairs_are_seeds_that_both_have() -> None:
    first, second = {0: 2.0, 1: 3.1, 5: 9.0}, {1: 3.0, 0: 1.9, 4: 7.0}
    (found,) = compare_with_first([first, second])
    assert found.difference == Estimate(pytest.approx(0.1), pytest.approx(0.0, abs=1e-9), 2)
    assert not found.tied
    (nothing,) = compare_with_first([{0: 5.0}, {1: 1.0}])
    assert (nothing.difference, nothing.p, nothing.tied, nothing.seeds) == (None, 1.0, True, None)
    assert compare_with_first([{0: 1.0}]) == compare_with_first([]) == []


@given(st.integers(2, 5), st.integers(2, 5), st.randoms(use_true_random=False))
def test_what_all_share_on_a_seed_changes_nothing(num: int, seeds: int, chance: object) -> None:
    """That is what pairs are for: a seed that is easy for all must not blur the difference between them."""
    draw = numpy.random.default_rng(num * 10 + seeds)
    values = draw.normal(size=(num, seeds))
    shift = draw.normal(size=seeds) * 100
    plain = compare_with_first([dict(enumerate(row)) for row in values])
    shifted = compare_with_first([dict(enumerate(row + shift)) for row in values])
    assert [one.p for one in plain] == pytest.approx([other.p for other in shifted], rel=1e-6)


@pytest.mark.parametrize(("num_configurations", "num_seeds"), [(2, 2), (2, 3), (2, 8), (5, 3)])
def test_a_difference_is_claimed_in_vain_at_most_so_often(num_configurations: int, num_seeds: int) -> None:
    """No configuration is better, and the winner is picked by the same noise: any other that is not called tied is a
    false claim. With two of them it is the nominal 5 %; with more the correction errs on the safe side."""
    draw = numpy.random.default_rng(num_configurations * 100 + num_seeds)
    spread = numpy.linspace(1, 3, num_configurations)[:, None]  # some are noisier than others
    false = 0
    for _ in range(NO_DIFFERENCE):
        values = draw.normal(size=(num_configurations, num_seeds)) * spread + draw.normal(size=num_seeds)
        order = values[numpy.argsort(-values.mean(axis=1))]
        false += any(not found.tied for found in compare_with_first([dict(enumerate(row)) for row in order]))
    bound = 3 * math.sqrt(LEVEL * (1 - LEVEL) / NO_DIFFERENCE)  # three standard deviations of the simulation
    assert false / NO_DIFFERENCE <= LEVEL + bound
    if num_configurations == 2:
        assert false / NO_DIFFERENCE >= LEVEL - bound


def test_a_real_difference_is_found_with_the_advised_seeds() -> None:
    """The advice is honest: with so many seeds a difference of that size is found about as often as promised."""
    num = seeds_to_tell([-0.2, 0.8, 1.8], LEVEL)  # mean 0.8, standard deviation 1
    assert num is not None
    draw = numpy.random.default_rng(7)
    found = 0
    for _ in range(600):
        other = draw.normal(size=num)
        (comparison,) = compare_with_first([dict(enumerate(other + draw.normal(0.8, 1, num))), dict(enumerate(other))])
        found += not comparison.tied
    assert 0.75 < found / 600 < 0.88
