"""When a leader that sees no other node lets others lead: only where it can do nothing, and somebody else might."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from robust_run.launcher.controller.leadership.alone import AloneWatch

LOOK_S, PATIENCE_S = 0.1, 6.5


class Leader:
    """A leader that looks ten times a second."""

    def __init__(self) -> None:
        self.watch = AloneWatch(PATIENCE_S)
        self.now_s = 0.0

    def looks(
        self, for_s: float, others: int, *, is_stuck: bool = True, were_lost: bool = True, every_s: float = LOOK_S
    ) -> int:
        """Return how often it stood down."""
        times, began_s = 0, self.now_s
        for _ in range(round(for_s / every_s)):
            self.now_s += every_s
            times += self.watch.look(others, self.now_s, is_stuck=is_stuck, lost_at_s=began_s if were_lost else None)
        return times


def test_a_leader_that_is_cut_off_from_all_stands_down_once() -> None:
    leader = Leader()
    leader.looks(10, others=2)
    assert leader.looks(6, others=0) == 0
    assert leader.looks(60, others=0) == 1


def test_one_that_has_seen_nobody_yet_waits_for_its_nodes() -> None:
    assert Leader().looks(600, others=0) == 0


def test_one_whose_job_can_go_on_here_goes_on() -> None:
    leader = Leader()
    leader.looks(10, others=1)
    assert leader.looks(60, others=0, is_stuck=False) == 0


def test_nodes_that_left_in_good_order_or_may_not_lead_are_nobody_to_make_room_for() -> None:
    leader = Leader()
    leader.looks(10, others=1)
    assert leader.looks(60, others=0, were_lost=False) == 0


def test_a_node_that_was_lost_and_replaced_before_is_nobody_to_make_room_for() -> None:
    """The others have just ended in good order, at a scheduler's signal, and this one still saves."""
    leader = Leader()
    leader.looks(100, others=2)
    lost_at_s = 50.0
    for _ in range(600):
        leader.now_s += LOOK_S
        assert not leader.watch.look(0, leader.now_s, is_stuck=True, lost_at_s=lost_at_s)


def test_one_node_that_answers_is_company_enough() -> None:
    leader = Leader()
    leader.looks(10, others=3)
    for _ in range(20):
        assert leader.looks(5, others=0) == 0
        leader.looks(0.1, others=1)


def test_time_in_which_this_process_stood_still_does_not_count() -> None:
    leader = Leader()
    leader.looks(10, others=3)
    assert leader.looks(600, others=0, every_s=3.0) == 0


@given(some.lists(some.tuples(some.integers(0, 2), some.booleans(), some.floats(0.01, 20)), max_size=60))
def test_it_stands_down_at_most_once_for_each_time_that_others_were_there(
    story: list[tuple[int, bool, float]],
) -> None:
    leader = Leader()
    seen = stood_down = 0
    was_alone = True
    for others, is_stuck, for_s in story:
        seen += bool(others) and was_alone
        was_alone = not others
        stood_down += leader.looks(for_s, others, is_stuck=is_stuck)
    assert stood_down <= seen
