"""Learning rates as they are written, grids of them, and what lies beyond a range."""

from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.lr.ranges import AUTO_VALUES, beyond, grid, learning_rates, round_grid

ends = st.tuples(st.floats(1e-9, 1e3), st.floats(1.05, 1e9)).map(lambda pair: (pair[0], pair[0] * pair[1]))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (["1e-5..1e-1:9"], [1e-5, 3.2e-5, 1e-4, 3.2e-4, 1e-3, 3.2e-3, 1e-2, 3.2e-2, 1e-1]),
        (["0.001..0.1:3", "0.5"], [0.001, 0.01, 0.1, 0.5]),
        (["1e-2", "1e-3..1e-1:3"], [1e-2, 1e-3, 1e-1]),  # a value of the grid that is there already is no mistake
        (["1e-4..1e-3:2,3e-3"], [1e-4, 1e-3, 3e-3]),
        ("1e-3..1e0:4", [1e-3, 1e-2, 1e-1, 1.0]),  # from a file
        ([1e-3, "3e-4"], [1e-3, 3e-4]),
        (0.01, [0.01]),
        (["auto"], None),
        ("auto", None),
    ],
)
def test_what_is_written(written: object, meant: list[float] | None) -> None:
    assert learning_rates(written) == meant


@given(ends, st.integers(2, 40))
def test_a_grid_is_even_and_has_both_ends(pair: tuple[float, float], num: int) -> None:
    """As numpy.geomspace, to a tenth of a step, and in order: no two values become one by rounding."""
    found = grid(*pair, num)
    assert (found[0], found[-1], len(found)) == (*pair, num)
    assert found == sorted(set(found))
    step = math.log(pair[1] / pair[0]) / (num - 1)
    for lr, exact in zip(found, numpy.geomspace(*pair, num), strict=True):
        assert abs(math.log(lr / exact)) <= step / 10 + 1e-9


@given(st.floats(1e-9, 1e2), st.floats(10, 1e8))
def test_round_values_between_two_ends(low: float, ratio: float) -> None:
    found = round_grid(low, low * ratio)
    assert 2 <= len(found) <= AUTO_VALUES + 1
    assert found == sorted(set(found))
    assert found[0] <= low * 3.2
    assert found[-1] <= low * ratio * 3.2
    assert found[-1] >= low * ratio / 3.2


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (6e-4, 0.0202, [5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2]),
        (2e-4, 0.04, [3e-4, 1e-3, 3e-3, 1e-2, 3e-2]),
        (1e-5, 0.1, [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]),
    ],
)
def test_round_values_by_hand(low: float, high: float, found: list[float]) -> None:
    assert round_grid(low, high) == found


@pytest.mark.parametrize(
    ("tried", "larger", "smaller"),
    [
        ([3e-3, 1e-3, 3e-4], 1e-2, 1e-4),  # the default scan goes on as its verdict advises
        ([5e-3, 1e-2, 2e-2], 5e-2, 2e-3),
        ([1e-3, 1e-2], 0.1, 1e-4),
        ([1e-4, 3.2e-4, 1e-3, 3.2e-3, 1e-2], 0.032, 3.2e-5),
        ([1.0, 1.001], 1.002, 0.999),
        ([2e-3, 8e-3], 0.032, 5e-4),
    ],
)
def test_beyond_an_edge(tried: list[float], larger: float, smaller: float) -> None:
    assert beyond(tried, larger=True) == larger
    assert beyond(tried, larger=False) == smaller
    assert beyond(tried[::-1], larger=True) == larger


@given(ends, st.integers(2, 12), st.booleans())
def test_beyond_is_beyond(pair: tuple[float, float], num: int, larger: bool) -> None:
    """Never a value that was tried, never on the wrong side; about as far away as the neighbour of the edge."""
    tried = grid(*pair, num)
    found = beyond(tried, larger=larger)
    assert found > tried[-1] if larger else found < tried[0]
    step = math.log(tried[-1] / tried[-2]) if larger else math.log(tried[1] / tried[0])
    assert abs(math.log(found / tried[-1 if larger else 0])) <= 2.5 * step
