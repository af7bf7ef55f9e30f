"""Who waits for whom how long: the times of one lease are in an order that keeps two nodes from training in one place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.model.job import ManyNodes
from robust_run.launcher.model.lease_times import (
    GUARD_AFTER_S,
    LeaseTimes,
    adapted,
    following_ttl_s,
    leader_ttl_s,
    lease_times,
    longest_hold_s,
)


@given(st.floats(0.1, 1e4))
def test_workers_are_dead_before_their_node_counts_as_lost_and_that_is_known_before_a_new_controller_acts(
    lease_s: float,
) -> None:
    times = LeaseTimes(lease_s)
    assert times.look_elsewhere_s < times.stuck_s < times.lease_s < times.lease_s + GUARD_AFTER_S < times.lost_s
    assert times.lost_s < times.hold_s


@pytest.mark.parametrize(
    ("asked_s", "coordinator", "granted_s"), [(3.0, "", 3.0), (3.0, "etcd://a:1", 5.0), (9.0, "etcd://a:1", 9.0)]
)
def test_an_election_by_etcd_needs_a_lease_that_outlives_it(asked_s: float, coordinator: str, granted_s: float) -> None:
    many = ManyNodes(fewest=1, most=2, host="a", port=1, lease_s=asked_s, coordinator=coordinator)
    assert lease_times(many) == LeaseTimes(granted_s)


def test_a_leader_is_elected_for_a_third_of_a_lease_and_a_second_at_least() -> None:
    assert [leader_ttl_s(lease_s) for lease_s in (0.5, 3.0, 9.0)] == [1.0, 1.0, 3.0]


@given(st.floats(0.5, 60.0), st.floats(0.0, 1e3))
def test_who_founds_beside_a_run_it_knows_nothing_of_waits_for_the_longest_lease_that_is_ever_granted(
    base_s: float, late_s: float
) -> None:
    many = ManyNodes(fewest=1, most=2, host="a", port=1, lease_s=base_s)
    assert longest_hold_s(many) >= adapted(base_s, late_s).hold_s


def test_a_leader_that_follows_one_which_did_not_last_has_longer_up_to_a_limit() -> None:
    """On a starved machine each leader was held up for longer than its lease, and they only followed each other."""
    ttls_s = [1.0]
    for _ in range(5):
        ttls_s.append(following_ttl_s(1.0, ttls_s[-1], renewals=2))
    assert ttls_s == [1.0, 2.0, 4.0, 4.0, 4.0, 4.0]


def test_a_leader_that_lasted_is_followed_by_one_with_the_usual_lease() -> None:
    assert following_ttl_s(1.0, 4.0, renewals=30) == 1.0


def test_a_longer_lease_that_was_asked_for_is_never_shortened() -> None:
    assert following_ttl_s(10.0, 1.0, renewals=0) == 10.0
