"""What is fetched next, and from where: decisions alone, without threads, clocks or bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.prefetch.rules.flights import FetchJob
from robust_run.prefetch.rules.queue import FetchQueue
from robust_run.prefetch.rules.source_health import SLOW_S, Health
from robust_run.prefetch.rules.types import BlockRun, FetchLimits, Priority

MIB = 1 << 20


class Setting:
    """A queue over a hundred blocks or more, with a clock and sources that are set by hand."""

    def __init__(
        self, sources: int = 1, limits: FetchLimits | None = None, blocks: int = 100, block_bytes: int = MIB
    ) -> None:
        self.limits = limits or FetchLimits(width=4, demand_width=2, run_bytes=4 * MIB, first_small=0)
        self.health = Health(tuple(f"source {number}" for number in range(sources)), self.limits)
        self.present = bytearray(blocks)
        self.offers: dict[int, float | None] = {}
        self.now_s = 100.0
        self.most: dict[int, int] = {}
        """How many blocks at once a source gives at most."""
        self.queue = FetchQueue(block_bytes, self.present, self._offers, self.health, self.limits)

    def _offers(self, source: int, _start: int, count: int, _priority: Priority) -> float | None:
        return self.offers.get(source, 0.0) if count <= self.most.get(source, count) else None

    def next(self) -> FetchJob:
        job = self.queue.next(self.now_s)
        assert job is not None
        return job

    def nothing(self) -> bool:
        return self.queue.next(self.now_s) is None

    def come(self, job: FetchJob, wrong: tuple[int, ...] = ()) -> list[tuple[int, str]]:
        for block in range(job.start, job.start + job.count):
            if block not in wrong:
                self.present[block] = 1
                self.queue.satisfied(block)
        return self.queue.came(job, wrong, (job.count - len(wrong)) * MIB, self.now_s)


def shape(job: FetchJob) -> tuple[int, int, str]:
    return job.start, job.count, job.priority.name.lower()


def test_demand_goes_before_hot_and_hot_before_background() -> None:
    at = Setting()
    at.queue.background(4, None, at.now_s)
    at.queue.prefetch([BlockRun(50, 2)])
    at.queue.demand(7, at.now_s)
    assert [shape(at.next()) for _ in range(3)] == [(7, 1, "demand"), (50, 2, "hot"), (0, 4, "background")]


def test_prefetching_begins_with_few_small_requests_and_grows_with_each_that_came() -> None:
    at = Setting(limits=FetchLimits(width=4, run_bytes=4 * MIB, first_width=2, first_small=3))
    at.queue.prefetch([BlockRun(0, 40)])
    first, second = at.next(), at.next()
    assert [first.count, second.count] == [1, 1]
    assert at.nothing()
    at.come(first)
    third, fourth = at.next(), at.next()
    assert [(third.start, third.count), (fourth.start, fourth.count)] == [(2, 1), (3, 1)], "its run was cut already"
    assert at.nothing()
    for job in (second, third, fourth):
        at.come(job)
    assert [at.next().count for _ in range(4)] == [4] * 4
    assert at.nothing(), "never more than the width"


def test_nodes_that_share_blocks_ask_for_whole_groups_from_the_beginning() -> None:
    at = Setting(limits=FetchLimits(width=4, run_bytes=4 * MIB, first_width=2, first_small=3, aligned=True))
    at.queue.prefetch([BlockRun(0, 40)])
    assert [at.next().count, at.next().count] == [4, 4]
    assert at.nothing()


def test_prefetching_leaves_room_for_demands() -> None:
    at = Setting()
    at.queue.prefetch([BlockRun(0, 40)])
    assert [at.next().count for _ in range(4)] == [4] * 4
    assert at.nothing()
    at.queue.demand(90, at.now_s)
    assert shape(at.next()) == (90, 1, "demand")


def test_a_demand_for_a_block_that_is_being_fetched_joins_it() -> None:
    at = Setting()
    at.queue.prefetch([BlockRun(0, 4)])
    job = at.next()
    at.queue.demand(2, at.now_s)
    assert at.nothing()
    at.come(job)
    assert at.nothing()


def test_with_a_small_block_that_is_read_comes_what_lies_around_it() -> None:
    at = Setting(blocks=10, block_bytes=MIB // 4)
    at.present[6] = 1
    for block in (5, 4, 1, 8):
        at.queue.demand(block, at.now_s)
    assert [shape(at.next()) for _ in range(3)] == [(4, 2, "demand"), (0, 4, "demand"), (8, 2, "demand")]
    assert at.nothing()


def test_where_a_source_gives_no_more_than_a_small_block_that_is_what_is_asked_for() -> None:
    at = Setting(blocks=8, block_bytes=MIB // 4)
    at.most[0] = 1
    at.queue.demand(5, at.now_s)
    assert shape(at.next()) == (5, 1, "demand")
    at.most.clear()
    at.queue.demand(6, at.now_s)
    assert shape(at.next()) == (6, 2, "demand"), "what is on its way is not asked for again"


def test_a_small_block_that_did_not_come_with_the_others_is_asked_for_alone() -> None:
    at = Setting(sources=2, blocks=8, block_bytes=MIB // 4)
    at.queue.demand(5, at.now_s)
    job = at.next()
    assert shape(job) == (4, 4, "demand")
    at.queue.failed(job, "it broke off", False, at.now_s)
    again = at.next()
    assert (shape(again), again.source) == ((5, 1, "demand"), 1)


def test_a_demand_that_joined_a_slow_request_asks_again_after_a_while_and_once_only() -> None:
    at = Setting(sources=2)
    at.queue.prefetch([BlockRun(0, 4)])
    at.next()
    at.queue.demand(2, at.now_s)
    assert at.nothing()
    assert at.queue.wake_s <= at.now_s + at.limits.hedge_after_s
    at.now_s += at.limits.hedge_after_s
    hedge = at.next()
    assert (shape(hedge), hedge.source, hedge.alone) == ((2, 1, "demand"), 1, False)
    at.now_s += 60
    assert at.nothing()


def test_a_wrong_block_is_asked_for_elsewhere_and_the_liar_is_left_alone() -> None:
    at = Setting(sources=2)
    at.queue.demand(5, at.now_s)
    job = at.next()
    assert job.source == 0
    assert at.come(job, wrong=(5,)) == []
    again = at.next()
    assert (again.start, again.source) == (5, 1)
    at.come(again)
    at.now_s += 5
    at.queue.demand(6, at.now_s)
    assert at.next().source == 1
    at.now_s += at.limits.wrong_s
    at.queue.demand(7, at.now_s)
    assert at.next().source == 0


def test_good_blocks_of_a_run_with_a_wrong_one_are_not_fetched_again() -> None:
    at = Setting(sources=2)
    at.queue.prefetch([BlockRun(0, 4)])
    at.come(at.next(), wrong=(1,))
    assert shape(at.next()) == (1, 1, "hot")
    assert at.nothing()


def test_while_nothing_comes_reads_after_the_first_that_was_given_up_fail_soon() -> None:
    """A program reads hundreds of blocks, one after the other."""
    at = Setting()
    at.queue.demand(1, at.now_s)
    at.now_s += at.limits.read_limit_s
    assert [block for block, _reason in at.queue.demands.late(at.now_s)] == [1]
    at.queue.demand(2, at.now_s)
    at.now_s += at.limits.back_off_s + 1.0
    assert [block for block, _reason in at.queue.demands.late(at.now_s)] == [2]
    at.queue.demand(3, at.now_s)
    at.come(at.next())
    at.queue.demand(4, at.now_s)
    at.now_s += at.limits.read_limit_s - 1.0
    assert at.queue.demands.late(at.now_s) == []


def test_reads_that_wait_for_long_are_said_once() -> None:
    at = Setting()
    at.queue.demand(7, at.now_s)
    at.queue.failed(at.next(), "the origin says 500", False, at.now_s)
    at.now_s += SLOW_S - 0.1
    assert at.queue.demands.slow(at.now_s) == ""
    at.now_s += 0.1
    limit_s = at.limits.read_limit_s
    assert at.queue.demands.slow(at.now_s) == (
        f"reads have waited 10 s for block 7: the origin says 500; they fail after {limit_s:g} s"
    )
    at.now_s += 1.0
    assert at.queue.demands.slow(at.now_s) == ""


def test_a_block_that_always_comes_wrong_is_given_up_with_the_reason() -> None:
    at = Setting()
    at.queue.demand(5, at.now_s)
    lost: list[tuple[int, str]] = []
    requests = 0
    while not lost:
        at.now_s += 6
        lost = at.come(at.next(), wrong=(5,))
        requests += 1
    assert requests == at.limits.tries
    ((block, reason),) = lost
    assert block == 5
    assert reason.startswith("source 0 sends wrong bytes")
    assert at.nothing()


def test_a_source_that_fails_is_left_alone_for_longer_and_longer() -> None:
    at = Setting()
    at.queue.demand(5, at.now_s)
    pauses = []
    for _ in range(8):
        job = at.next()
        at.queue.failed(job, "no route", False, at.now_s)
        assert at.nothing()
        pauses.append(round(at.health.quiet_until_s(0) - at.now_s, 3))
        at.now_s += pauses[-1]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_requests_that_fail_together_count_as_one_failure() -> None:
    at = Setting()
    at.queue.prefetch([BlockRun(0, 16)])
    jobs = [at.next() for _ in range(4)]
    for job in jobs:
        at.queue.failed(job, "no route", False, at.now_s)
    assert at.health.quiet_until_s(0) == pytest.approx(at.now_s + 0.1)


def test_a_demand_ends_at_its_limit_with_the_latest_reason() -> None:
    at = Setting()
    at.queue.demand(5, at.now_s)
    at.queue.failed(at.next(), "no route", False, at.now_s)
    assert at.queue.demands.late(at.now_s + 59) == []
    assert at.queue.demands.late(at.now_s + 60) == [(5, "no route")]
    assert at.queue.demands.late(at.now_s + 60) == []


def test_a_block_that_was_just_given_up_is_refused_and_later_not_waited_for_as_long_again() -> None:
    at = Setting()
    at.queue.demand(5, at.now_s)
    at.now_s += 60
    assert len(at.queue.demands.late(at.now_s)) == 1
    assert "no source could be asked" in at.queue.demand(5, at.now_s + 4.9)
    assert at.queue.demands.late(at.now_s + 100.0) == []
    assert at.queue.demand(5, at.now_s + 5.0) == ""
    assert len(at.queue.demands.late(at.now_s + 15.0)) == 1


def test_another_attempt_waits_the_whole_time_again() -> None:
    at = Setting()
    at.queue.demand(7, at.now_s)
    at.queue.demand(8, at.now_s + 0.1)
    at.now_s += at.limits.read_limit_s
    assert [block for block, _ in at.queue.demands.late(at.now_s)] == [7]
    assert at.queue.demand(7, at.now_s), "it was given up a moment ago"
    at.queue.wait_anew(at.now_s)
    assert not at.queue.demand(7, at.now_s) and not at.queue.demand(8, at.now_s)
    at.now_s += at.limits.read_limit_s - 1.0
    assert not at.queue.demands.late(at.now_s), (
        "neither that one, nor one that the kernel had read ahead of the attempt before"
    )
    assert [block for block, _ in at.queue.demands.late(at.now_s + 1.0)] == [8, 7]


def test_a_demand_that_no_source_could_be_asked_for_ends_at_its_limit_too() -> None:
    at = Setting()
    at.offers[0] = None
    at.queue.demand(5, at.now_s)
    assert at.nothing()
    assert at.queue.demands.late(at.now_s + 60) == [(5, "no source could be asked within 60 s")]


def test_a_source_may_say_that_the_block_is_expected_elsewhere() -> None:
    at = Setting(sources=2)
    at.offers = {0: None, 1: 2.0}
    at.queue.demand(5, at.now_s)
    assert at.nothing()
    at.offers = {0: 0.0, 1: 2.0}
    assert at.next().source == 0


def test_one_that_lied_is_not_asked_while_an_honest_one_will_have_it_soon() -> None:
    at = Setting(sources=2)
    at.offers = {1: 1.0}
    at.queue.demand(5, at.now_s)
    at.come(at.next(), wrong=(5,))
    at.now_s += 1
    assert at.nothing()
    at.offers = {1: 0.0}
    assert at.next().source == 1


def test_background_keeps_to_its_rate() -> None:
    at = Setting()
    at.queue.background(4, 4.0 * MIB, at.now_s)
    begun = []
    for _ in range(1000):
        job = at.queue.next(at.now_s)
        if job is not None:
            begun.append(at.now_s)
            at.come(job)
        at.now_s += 0.01
    assert 10 <= len(begun) <= 12


def test_the_background_stands_back_while_a_program_reads_what_nobody_foresaw() -> None:
    at = Setting(blocks=1000)
    at.queue.background(4, None, at.now_s)
    at.queue.demand(99, at.now_s)
    at.come(at.next())
    kinds = [at.next().priority for _ in range(2)]
    assert kinds == [Priority.BACKGROUND] * 2, "a little of it"
    assert at.nothing()
    assert at.queue.wake_s <= at.now_s + 1, "it is looked at again soon"
    at.now_s += 1
    assert [at.next().priority for _ in range(2)] == [Priority.BACKGROUND] * 2


def test_a_small_rest_is_not_held_back() -> None:
    at = Setting()
    at.queue.background(4, None, at.now_s)
    at.queue.demand(99, at.now_s)
    at.come(at.next())
    assert [at.next().priority for _ in range(4)] == [Priority.BACKGROUND] * 4


def test_background_ends_when_the_image_is_there() -> None:
    at = Setting()
    at.queue.background(4, None, at.now_s)
    for _ in range(25):
        at.come(at.next())
    assert at.nothing()
    assert at.present.count(1) == 100


def test_while_nothing_can_be_kept_only_demands_are_fetched() -> None:
    at = Setting()
    at.queue.background(4, None, at.now_s)
    at.queue.prefetch([BlockRun(0, 4)])
    at.queue.keeping = False
    assert at.nothing()
    at.queue.demand(7, at.now_s)
    assert shape(at.next()) == (7, 1, "demand")


def test_what_another_server_fetches_is_left_to_it_for_a_while() -> None:
    at = Setting()
    at.queue.demand(7, at.now_s)
    at.queue.busy(at.next(), at.now_s)
    assert at.nothing()
    assert at.queue.wake_s <= at.now_s + 0.05
    at.now_s += 2.5
    assert at.next().alone is False


def test_what_another_server_was_fetching_is_looked_at_again_in_the_background() -> None:
    """Its stretch may overlap ours by a block: what neither fetched of it never came, and the image was never whole."""
    at = Setting(blocks=12)
    at.queue.background(4, None, at.now_s)
    at.queue.busy(at.next(), at.now_s)
    while not at.nothing():
        pass
    at.now_s += 1.0
    assert shape(at.next()) == (0, 4, "background")


def test_a_prefetch_that_never_works_is_given_up_and_counted() -> None:
    at = Setting()
    at.queue.prefetch([BlockRun(0, 1)])
    for _ in range(8):
        at.queue.failed(at.next(), "no route", False, at.now_s)
        at.now_s += 10
    assert at.nothing()
    assert (at.queue.given_up, at.queue.hot_left) == (1, 0)


def test_a_run_beyond_the_image_is_clipped() -> None:
    at = Setting()
    assert at.queue.prefetch([BlockRun(-5, 3), BlockRun(98, 1000), BlockRun(1 << 60, 1 << 60)]) == 2
    assert shape(at.next()) == (98, 2, "hot")


@given(st.data())
def test_whatever_happens_every_wanted_block_comes_or_is_given_up(data: st.DataObject) -> None:
    at = Setting(sources=2, block_bytes=data.draw(st.sampled_from([MIB, MIB // 8])))
    at.most[1] = data.draw(st.sampled_from([1, 100]))
    at.queue.prefetch(
        [BlockRun(*run) for run in data.draw(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9)), max_size=5))]
    )
    for block in data.draw(st.sets(st.integers(0, 99), max_size=5)):
        at.queue.demand(block, at.now_s)
    lost: list[tuple[int, str]] = []
    flying: list[FetchJob] = []
    for _ in range(1500):
        job = at.queue.next(at.now_s)
        if job is not None:
            assert sum(other.priority != Priority.DEMAND for other in flying) <= at.limits.width
            flying.append(job)
        elif flying:
            done = flying.pop(data.draw(st.integers(0, len(flying) - 1)))
            outcome = data.draw(st.sampled_from(["good", "good", "wrong", "no route", "gone", "busy"]))
            if outcome == "busy":
                at.queue.busy(done, at.now_s)
            elif outcome in ("good", "wrong"):
                lost += at.come(done, wrong=(done.start,) if outcome == "wrong" else ())
            else:
                lost += at.queue.failed(done, outcome, outcome == "gone", at.now_s)
        elif at.queue.wake_s == float("inf"):
            break
        else:
            at.now_s = max(at.queue.wake_s, at.now_s + 0.001)
            lost += at.queue.demands.late(at.now_s)
    assert at.queue.wake_s == float("inf")
    assert (at.queue.hot_left, at.queue.demands.late(at.now_s + 1e6)) == (0, [])


def test_a_second_request_is_made_later_where_all_requests_take_long() -> None:
    health = Health(("origin",), FetchLimits(hedge_after_s=2.0))
    assert health.late_after_s(0) == 2.0
    health.came(0, 1, 0, 100.0, took_s=4.0)
    assert health.late_after_s(0) == 12.0
    for _ in range(50):
        health.came(0, 1, 0, 100.0, took_s=0.1)
    assert health.late_after_s(0) == 2.0
