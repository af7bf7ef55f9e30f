"""Intervals and tails of counts, against tables and against sums of their terms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.fleet.poisson import at_least, interval, share_at_least

#: 95 % and 99 % intervals: Pearson and Hartley, Biometrika Tables for Statisticians I, table 40 (Garwood 1936).
TABLE = {
    0: ((0.0, 3.69), (0.0, 5.30)),
    1: ((0.0253, 5.57), (0.00501, 7.43)),
    2: ((0.242, 7.22), (0.103, 9.27)),
    3: ((0.619, 8.77), (0.338, 10.98)),
    5: ((1.62, 11.67), (1.08, 14.15)),
    10: ((4.80, 18.39), (3.72, 21.40)),
    20: ((12.22, 30.89), (10.35, 34.67)),
    50: ((37.11, 65.92), (33.66, 71.27)),
}


@pytest.mark.parametrize("count", TABLE)
def test_intervals_are_those_of_the_tables(count: int) -> None:
    for level, told in zip((0.95, 0.99), TABLE[count], strict=True):
        for found, value in zip(interval(count, level), told, strict=True):
            assert found == pytest.approx(value, rel=5e-3, abs=1e-9)


@given(st.integers(0, 400), st.floats(1e-3, 500.0))
def test_a_tail_is_the_sum_of_its_terms(count: int, mean: float) -> None:
    terms = [math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count, count + 2500)]
    assert at_least(count, mean) == pytest.approx(math.fsum(terms), rel=1e-7, abs=1e-12)


@given(st.integers(0, 1_000_000), st.sampled_from((0.8, 0.95, 0.99, 0.9999)))
def test_the_ends_of_an_interval_have_the_tails_that_its_level_says(count: int, level: float) -> None:
    low, high = interval(count, level)
    assert low <= count < high
    tail = (1 - level) / 2
    if count:
        assert at_least(count, low) == pytest.approx(tail, rel=1e-5)
    assert 1 - at_least(count + 1, high) == pytest.approx(tail, rel=1e-5)


def test_no_interval_of_what_is_no_count() -> None:
    for count, level in ((-1, 0.95), (1, 0.0), (1, 1.0)):
        with pytest.raises(ValueError, match="no interval"):
            interval(count, level)


@given(st.integers(1, 60), st.integers(0, 60), st.floats(1e-6, 0.999))
def test_a_share_that_is_more_than_due_has_the_tail_of_a_binomial_count(total: int, count: int, share: float) -> None:
    found = share_at_least(count, total, share)
    if count > total:
        assert found == 0.0
    elif count <= total * share:
        assert found == 1.0, "nobody asks"
    else:
        terms = (math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(count, total + 1))
        assert found == pytest.approx(math.fsum(terms), rel=1e-9)


def test_a_tail_that_is_tiny_has_right_digits() -> None:
    assert share_at_least(40, 40, 0.01) == pytest.approx(1e-80, rel=1e-9)
    assert at_least(60, 1.0) == pytest.approx(
        math.exp(-1.0) / math.factorial(60) * (1 + 1 / 61 + 1 / 61 / 62), rel=1e-6
    )
