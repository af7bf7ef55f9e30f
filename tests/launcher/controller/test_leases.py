"""The leases of a controller: the usual ones on a quiet cluster, longer ones for late machines, and no rank ever runs twice."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.controller.leases import Leases
from robust_run.launcher.core.failure_detector import FailureDetector
from robust_run.launcher.core.lateness import SLOT_S, WINDOW_S
from robust_run.launcher.model.lease_times import GUARD_AFTER_S, LONGEST_LEASE_S, QUIET_S, LeaseTimes, adapted
from robust_run.launcher.start.many.fence import Cell, Lease

BASE = LeaseTimes(3.0)
NOW_S = 1000.0


class Recorder:
    """The record of a controller, which takes its time."""

    def __init__(self, *, is_quick: bool = True) -> None:
        self.begun: list[float] = []
        self.is_quick = is_quick

    def begin(self, lost_s: float) -> None:
        self.begun.append(lost_s)

    def is_done(self) -> bool:
        return self.is_quick


class Ground:
    """A controller with one node, which beats every second unless it is late."""

    def __init__(self, *, is_quick: bool = True) -> None:
        self.record = Recorder(is_quick=is_quick)
        self.detector = FailureDetector(BASE.lost_s)
        self.leases = Leases(BASE, 1.0, self.detector, self.record)
        self.now_s = NOW_S
        self.detector.heard("node", NOW_S)
        self.lease_s = self.leases.connected("node", NOW_S).lease_s

    def beat(self, after_s: float = 1.0, late_s: float = 0.0, own_late_s: float = 0.0) -> float:
        self.now_s += after_s
        self.leases.own_look(own_late_s, self.now_s)
        self.detector.heard("node", self.now_s)
        self.lease_s = self.leases.heartbeat("node", late_s, self.now_s).lease_s
        return self.lease_s

    def lost_after_s(self) -> float:
        """How long after the newest heartbeat the node is lost, to a tenth."""
        for tenths in range(1000):
            if self.detector.lost(self.now_s + tenths / 10):
                return tenths / 10
        return float("inf")


@pytest.fixture
def ground() -> Ground:
    return Ground()


def test_a_quiet_cluster_keeps_the_usual_lease_and_answers_a_power_loss_in_three_and_a_half_seconds(
    ground: Ground,
) -> None:
    assert {ground.beat(1.0 + (number % 3) * 0.04, late_s=0.03, own_late_s=0.01) for number in range(200)} == {3.0}
    assert ground.record.begun == []
    assert ground.lost_after_s() == 3.5


@pytest.mark.parametrize("who", ["node", "controller", "way"])
def test_lateness_makes_the_lease_longer_at_once_whoever_shows_it(
    ground: Ground, who: Literal["node", "controller", "way"]
) -> None:
    late_s = {"node": (1.0, 1.4, 0.0), "controller": (1.0, 0.0, 1.4), "way": (2.4, 0.0, 0.0)}[who]
    ground.beat(*late_s)
    assert ground.beat(0.1) == 9.0
    assert ground.lost_after_s() == 11.0, "both fences may be late, too"


def test_what_programs_show_that_start_changes_nothing(ground: Ground) -> None:
    assert {ground.beat(late_s=0.25, own_late_s=0.25) for _ in range(60)} == {3.0}
    assert ground.lost_after_s() == 3.5


def test_before_a_lease_grows_it_is_allowed_for_that_fences_are_late(ground: Ground) -> None:
    ground.beat(late_s=0.9)
    assert ground.beat() == 3.0
    assert ground.lost_after_s() == 4.5


def test_a_stall_that_is_shorter_than_what_was_granted_is_not_noticed(ground: Ground) -> None:
    ground.beat(late_s=1.4)
    ground.beat()
    assert ground.detector.lost(ground.now_s + 8.5) == []
    assert ground.detector.lost(ground.now_s + 8.6) == []


def test_it_is_the_usual_again_when_nothing_was_late_for_a_minute(ground: Ground) -> None:
    ground.beat(late_s=2.0)
    assert {ground.beat() for _ in range(int(WINDOW_S) - 1)} == {11.0}
    for _ in range(int(SLOT_S) + 2):
        ground.beat()
    assert ground.lease_s == 3.0
    for _ in range(int(WINDOW_S) + 20):
        ground.beat()
    assert ground.record.begun == [13.5, 3.5], "a successor need not wait so long any more"
    assert ground.lost_after_s() == 3.5


def test_nothing_longer_is_granted_before_a_successor_would_know(ground: Ground) -> None:
    ground.record.is_quick = False
    assert ground.beat(late_s=1.4) == 3.0
    assert ground.beat() == 3.0
    assert ground.record.begun == [11.0]
    ground.record.is_quick = True
    assert ground.beat() == 9.0


def test_a_time_without_a_connection_is_no_lateness(ground: Ground) -> None:
    assert ground.leases.connected("node", NOW_S + 30.0) == BASE


def test_a_successor_waits_for_what_its_predecessor_may_have_granted(ground: Ground) -> None:
    ground.leases.take_over(13.5, NOW_S)
    ground.detector.expect(["other"], NOW_S, ground.leases.recorded_s)
    assert ground.leases.recorded_s == 13.5
    ground.detector.lost(NOW_S + 13.4)
    assert "other" not in [node for node, _ in ground.detector.lost(NOW_S + 13.45)]
    assert "other" in [node for node, _ in ground.detector.lost(NOW_S + 13.5)]
    ground.leases.own_look(0.0, NOW_S + 13.5 + WINDOW_S + 1.0)
    assert ground.record.begun == [3.5]


@given(base_s=st.floats(0.5, 60.0), late_s=st.floats(0.0, 1e6))
def test_lateness_never_makes_a_lease_shorter_nor_endless(base_s: float, late_s: float) -> None:
    times = adapted(base_s, late_s)
    assert base_s <= times.lease_s <= max(base_s, LONGEST_LEASE_S)
    assert times.late_s >= min(late_s, 3.0) or late_s <= min(QUIET_S, base_s / 3)
    assert times.lease_s + GUARD_AFTER_S < times.lost_s
    if late_s <= min(QUIET_S, base_s / 3):
        assert times == LeaseTimes(base_s)
    if late_s <= base_s / 3:
        assert times.lease_s == base_s


#: Per heartbeat: pause before it is sent, time until it is read, time until its answer is read (None: never), the lateness
#: that the agent tells and the controller sees of itself, whether the record is written by then, whether the connection breaks.
Beats = st.lists(
    st.tuples(
        st.floats(0.01, 6.0),
        st.floats(0.0, 5.0),
        st.none() | st.floats(0.0, 20.0),
        st.floats(0.0, 4.0),
        st.floats(0.0, 4.0),
        st.booleans(),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=30,
)


@given(beats=Beats)
def test_whatever_is_late_workers_are_dead_before_their_node_is_lost(
    beats: list[tuple[float, float, float | None, float, float, bool, int]],
) -> None:
    record = Recorder()
    detector, cell = FailureDetector(BASE.lost_s), Cell()
    leases, lease = Leases(BASE, 1.0, detector, record), Lease(cell)
    detector.heard("node", NOW_S)
    lease.times = LeaseTimes(leases.connected("node", NOW_S).lease_s)
    lease.renew(NOW_S)
    lease.guard(running=True)
    sent_s, heard_s, answers, longest_s = NOW_S, NOW_S, [], BASE.lost_s
    for number, (pause_s, there_s, back_s, late_s, own_late_s, is_quick, fate) in enumerate(beats):
        sent_s += pause_s
        for _, answered, lease_s in [each for each in answers if each[0] <= sent_s]:
            lease.answered(answered, lease_s)
        answers = [each for each in answers if each[0] > sent_s]
        if fate == 0:
            lease.forget()
            answers = []
            continue
        lease.sent(number, sent_s)
        heard_s = max(heard_s, sent_s + there_s)
        record.is_quick = is_quick
        leases.own_look(own_late_s, heard_s)
        detector.heard("node", heard_s)
        granted = leases.heartbeat("node", late_s, heard_s)
        longest_s = max(longest_s, granted.lease_s)
        assert granted.lease_s <= leases.recorded_s
        if back_s is not None:
            answers.append((heard_s + back_s, number, granted.lease_s))
    for _, answered, lease_s in sorted(answers):
        lease.answered(answered, lease_s)
    assert lease.until_s is not None
    dead_s = lease.until_s + GUARD_AFTER_S
    assert lease.is_over(dead_s) and cell.is_over(dead_s + 0.001)
    detector.lost(dead_s - 0.1)
    assert not detector.lost(dead_s), "the controller was faster"
    detector.lost(1e9)
    assert detector.lost(1e9 + 0.1)
