"""When work that a rank has given to torch counts as standing still, and what healthy ranks look like."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from robust_run.tracer.flight.progress import NOTED_S, NOTED_STEPS, STALE_S, Progress
from robust_run.tracer.flight.types import GroupClock, GroupName


def clock(completed: int, enqueued: int | None = None, pg: int = 0, on_nccl: bool = True) -> GroupClock:
    return GroupClock(pg, completed + 1 if enqueued is None else enqueued, -1, completed, on_nccl)


class Rank:
    """A rank that is looked at every two seconds."""

    def __init__(self) -> None:
        self.progress, self.now_s, self.steps, self.event_s = Progress(), 0.0, 5, 0.0

    def look(self, *clocks: GroupClock, after_s: float = 2.0) -> float | None:
        self.now_s += after_s
        self.progress.take(clocks, self.now_s, self.steps, on_nccl=True)
        return self.since_s()

    def since_s(self) -> float | None:
        return self.progress.waiting_since_s(self.steps, self.event_s, self.now_s)

    def call(self) -> None:
        self.event_s = self.now_s


def test_work_that_is_not_completed_stands_since_it_was_first_seen_so() -> None:
    rank = Rank()
    assert rank.look(clock(3, 3)) is None
    assert [rank.look(clock(3)) for _ in range(4)] == [4.0] * 4


def test_who_has_nothing_under_way_waits_for_nothing_however_long() -> None:
    rank = Rank()
    assert all(rank.look(clock(3, 3)) is None for _ in range(100))


def test_a_silent_rank_whose_work_gets_done_moves() -> None:
    rank = Rank()
    for count in range(20):
        since_s = rank.look(clock(count, 50))
    assert since_s == rank.now_s
    assert rank.progress.moved_at_s == rank.now_s - 2.0  # at the earliest just after the look before


def test_one_group_that_gets_on_is_a_sign_of_life_for_all() -> None:
    rank = Rank()
    for count in range(10):
        since_s = rank.look(clock(3, pg=0), clock(count, pg=1))
    assert since_s is not None and since_s >= rank.now_s - 2.0


def test_a_call_or_a_step_is_one_too() -> None:
    rank = Rank()
    for _ in range(3):
        rank.look(clock(3))
    rank.call()
    assert rank.since_s() == rank.event_s


def test_a_look_that_is_old_says_nothing() -> None:
    rank = Rank()
    for _ in range(3):
        rank.look(clock(3))
    rank.now_s += STALE_S + 1
    assert rank.since_s() is None


def test_after_a_pause_in_which_nobody_looked_patience_begins_anew() -> None:
    rank = Rank()
    for _ in range(3):
        rank.look(clock(3))
    assert rank.look(clock(3), after_s=3600.0) == rank.now_s
    assert rank.look(clock(3)) == rank.now_s - 2.0


def test_a_look_that_comes_late_is_left_out() -> None:
    rank = Rank()
    rank.look(clock(3, 3))
    rank.progress.take([clock(1)], 1.0, 5, on_nccl=True)
    assert rank.since_s() is None


def test_a_rank_that_counts_from_the_beginning_again_has_moved() -> None:
    rank = Rank()
    rank.look(clock(900))
    assert rank.look(clock(0, 1)) == rank.now_s


def test_a_group_that_is_made_again_with_the_same_name_begins_anew_and_the_old_one_is_forgotten() -> None:
    rank = Rank()
    rank.progress.learn([GroupName(True, 0, "dp", False), GroupName(True, 1, "dp", False)])
    rank.look(clock(900))
    assert rank.look(clock(0, 1, pg=1)) == rank.now_s
    sight = rank.progress.sight()
    assert sight is not None and [(group.name, group.completed) for group in sight.groups] == [("dp", 0)]


def test_of_two_groups_of_one_name_the_newer_counts() -> None:
    rank = Rank()
    rank.progress.learn([GroupName(True, 0, "dp", False), GroupName(True, 1, "dp", False)])
    rank.look(clock(900, 900), clock(4, 4, pg=1))
    sight = rank.progress.sight()
    assert sight is not None and [(group.completed, group.made) for group in sight.groups] == [(4, 1)]


def test_what_was_left_in_a_destroyed_group_keeps_nobody_waiting_and_is_noted_once() -> None:
    rank = Rank()
    for _ in range(40):
        rank.steps += 1
        since_s = rank.look(clock(3, pg=0), clock(9, 9, pg=1))
    assert since_s is None
    rank.progress.learn([GroupName(True, 0, "dp_1", False)])
    still = rank.progress.still_work(rank.steps, rank.now_s)
    assert still is not None and (still.name, still.completed, still.enqueued) == ("dp_1", 3, 4)
    assert still.steps >= NOTED_STEPS and still.stood_s >= NOTED_S
    assert rank.progress.still_work(rank.steps, rank.now_s) is None


def test_work_that_is_completed_between_steps_is_never_noted() -> None:
    rank = Rank()
    for count in range(100):
        rank.steps += 1
        rank.look(clock(count))
        assert rank.progress.still_work(rank.steps, rank.now_s) is None


def test_the_recorders_of_gloo_and_nccl_are_two_clocks() -> None:
    rank = Rank()
    rank.look(clock(3))
    rank.progress.take([clock(7, 7, on_nccl=False)], rank.now_s - 1.0, 5)  # asked before, and not of NCCL
    assert rank.progress.unnamed == {(True, 0), (False, 0)}
    assert rank.look(clock(3)) == 2.0


LOOKS = st.lists(
    st.tuples(st.floats(0.1, 40.0), st.dictionaries(st.integers(0, 2), st.tuples(st.integers(-1, 3), st.integers(0, 2)))),
    max_size=12,
)  # fmt: skip


@given(LOOKS)
def test_nobody_waits_since_before_the_newest_sign_of_life_nor_without_work_under_way(looks: list) -> None:
    rank, last, moved_s = Rank(), {}, 0.0
    for after_s, groups in looks:
        before_s = rank.now_s
        clocks = [clock(completed, completed + ahead, pg) for pg, (completed, ahead) in groups.items()]
        since_s = rank.look(*clocks, after_s=after_s)
        if any(pg in last and last[pg] != completed for pg, (completed, _) in groups.items()):
            moved_s = before_s
        assert since_s is None or moved_s <= since_s <= rank.now_s
        assert since_s is None or any(ahead for _, ahead in groups.values())
        last = {pg: completed for pg, (completed, _) in groups.items()}
