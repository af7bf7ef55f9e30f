"""What is held against nodes, and how it fades."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.health.ladder.suspicion import (
    OFTEN,
    SUSPECT,
    Suspicions,
    from_now,
    held_together,
    outstanding,
    passed,
    suspect,
    weight_of,
    worst_first,
)

H = 100.0


def blamed(*times: tuple[str, float]) -> Suspicions:
    found: Suspicions = {}
    for name, at_s in times:
        found = suspect(found, (name,), 1.0, "it hung", at_s, H)
    return found


def test_it_is_half_after_a_half_life_and_forgotten_at_last() -> None:
    found = blamed(("a", 0.0))
    assert weight_of(found, "a", H, H) == pytest.approx(0.5)
    assert not suspect(found, (), 1.0, "", 10 * H, H)


def test_a_verdict_that_names_several_is_shared_by_them_and_counts_as_one_for_them_together() -> None:
    found = suspect({}, ("a", "b", "c", "d"), 1.0, "one of them", 0.0, H)
    assert weight_of(found, "a", 0.0, H) == 0.25
    assert held_together(found, ("a", "b", "c", "d"), 0.0, H) == pytest.approx(1.0)
    assert held_together(found, ("a",), 0.0, H) < SUSPECT


def test_one_stands_out_only_if_no_other_is_nearly_as_suspect() -> None:
    assert outstanding(blamed(("a", 0), ("a", 1)), ("a", "b"), OFTEN, 2.0, H) == "a"
    assert outstanding(blamed(("a", 0)), ("a", "b"), OFTEN, 2.0, H) == "", "once is not often"
    assert outstanding(blamed(("a", 0), ("a", 1), ("b", 2), ("b", 3)), ("a", "b"), OFTEN, 4.0, H) == ""
    assert outstanding(blamed(("a", 0), ("a", 1)), ("a",), OFTEN, 10 * H, H) == "", "long ago"
    assert outstanding({}, (), OFTEN, 0.0, H) == ""


def test_checks_that_find_nothing_leave_half_of_it() -> None:
    assert weight_of(passed(blamed(("a", 0.0)), ("a", "b"), 0.0, H), "a", 0.0, H) == 0.5


def test_another_clock_neither_ages_nor_renews_it() -> None:
    found = from_now(blamed(("a", 9000.0)), 5.0)
    assert weight_of(found, "a", 5.0, H) == 1.0 and weight_of(found, "a", 5.0 + H, H) == pytest.approx(0.5)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 1e5)), max_size=20))
def test_the_order_is_whole_and_weights_are_never_negative(told: list[tuple[str, float]]) -> None:
    found = blamed(*sorted(told, key=lambda each: each[1]))
    ordered = worst_first(found, "abcd", 1e5, H)
    assert sorted(ordered) == list("abcd")
    weights = [weight_of(found, name, 1e5, H) for name in ordered]
    assert weights == sorted(weights, reverse=True) and min(weights) >= 0
