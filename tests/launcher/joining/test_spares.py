"""How many standbys `--standby auto` means."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.core.spares import standby_count


@pytest.mark.parametrize(
    ("nodes", "standbys"), [(0, 0), (1, 0), (8, 0), (9, 1), (128, 2), (256, 2), (512, 3), (1024, 4)]
)
def test_a_day_s_failures_are_covered_99_times_in_100(nodes: int, standbys: int) -> None:
    assert standby_count(nodes) == standbys


@given(st.integers(1, 200), st.integers(1, 999), st.integers(0, 999))
def test_it_is_the_quantile_of_the_binomial(nodes: int, rate: int, confidence: int) -> None:
    p, wanted = Fraction(rate, 1000), Fraction(confidence, 1000)
    covered, exact = Fraction(0), -1
    while covered < wanted or exact < 0:
        exact += 1
        covered += math.comb(nodes, exact) * p**exact * (1 - p) ** (nodes - exact)
    found = standby_count(nodes, rate / 1000, confidence / 1000)
    # Where the distribution meets the wanted confidence exactly, rounding may ask for one more.
    assert found == exact or (found == exact + 1 and abs(float(covered - wanted)) < 1e-9)


@pytest.mark.parametrize("rate", [1e-9, 0.0012, 0.5, 0.999])
def test_it_holds_for_more_nodes_than_anybody_has(rate: float) -> None:
    nodes = 100_000
    mean, deviation = nodes * rate, math.sqrt(nodes * rate * (1 - rate))
    assert mean + 2.2 * deviation - 1 <= standby_count(nodes, rate) <= mean + 2.5 * deviation + 1


def test_nodes_that_never_or_always_fail() -> None:
    assert standby_count(100, 0.0) == 0
    assert standby_count(100, 1.0) == 100


@pytest.mark.parametrize(
    "arguments", [(-1, 0.1, 0.9), (1, -0.1, 0.9), (1, 1.1, 0.9), (1, 0.1, 1.0), (1, math.nan, 0.9)]
)
def test_what_is_no_probability_is_refused(arguments: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        standby_count(*arguments)
