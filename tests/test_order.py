"""Tests that take long begin first, in every process that runs some."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from order import COST_S, LONG, Test, dealt

ONE_FILE = [Test(place, "a.py", f"test_{place}", "") for place in range(4)]


def test_the_costly_are_dealt_out_and_each_share_begins_with_them() -> None:
    jobs = [Test(4 + place, f"job_{place}.py", "test_a_job", "job") for place in range(4)]
    assert dealt([*ONE_FILE, *jobs], 2) == [4, 6, 0, 1, 5, 7, 2, 3]


def test_tests_of_a_file_stay_together_because_they_may_share_a_cluster() -> None:
    clusters = [Test(4 + place, "cluster.py", f"test_{place}", "cluster") for place in range(3)]
    hosts = [Test(7 + place, f"hosts_{place}.py", "test_hosts", "hosts") for place in range(3)]
    assert dealt([*ONE_FILE, *clusters, *hosts], 2) == [4, 5, 6, 0, 1, 7, 8, 9, 2, 3]


def test_every_other_share_begins_with_some_of_what_computes() -> None:
    hosts = [Test(place, f"hosts_{place}.py", "test_hosts", "hosts") for place in range(2)]
    jobs = [Test(2 + place, f"job_{place}.py", "test_a_job", "job") for place in range(4)]
    assert dealt([*hosts, *jobs], 2) == [0, 2, 4, 3, 1, 5]


def test_a_long_one_begins_first_whatever_its_tier() -> None:
    long_file, long = min(LONG).split("::")
    tests = [*ONE_FILE, Test(4, "cluster.py", "test_a", "cluster"), Test(5, long_file, long, "")]
    assert dealt(tests, 1)[0] == 5


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(sorted(COST_S))), max_size=60), st.integers(1, 6))
def test_every_test_is_in_it_once(drawn: list[tuple[str, str]], shares: int) -> None:
    tests = [Test(place, file, f"test_{place}", tier) for place, (file, tier) in enumerate(drawn)]
    assert sorted(dealt(tests, shares)) == list(range(len(tests)))
