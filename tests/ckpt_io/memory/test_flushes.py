"""Writes to storage are one at a time, of what is whole, and keep training from its buffers no longer than they take."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from robust_run.ckpt_io.memory import generations
from robust_run.ckpt_io.memory.agent_protocol import Flushed, FlushLast, KeeperNote
from robust_run.ckpt_io.memory.copies.guests import Guests, standing_in
from robust_run.ckpt_io.memory.flushing.flushes import SAID_AGAIN_S, WHOLE_WITHIN_S, Flushes
from robust_run.ckpt_io.memory.flushing.removals import AT_THE_END_S
from robust_run.ckpt_io.memory.flushing.words import (
    AnyOrder,
    FlushAnswer,
    FlushDone,
    FlushOrder,
    FlushProgress,
    FlushSilent,
    RemoveOld,
)
from robust_run.ckpt_io.memory.generations import HeldBuffer, Holdings, Part
from robust_run.ckpt_io.rules.keeping import KeepNewest

AGAIN = "training goes on, and it is tried again when storage is due"
RULE = KeepNewest(most=2, session="me")


class FakeProcess:
    def __init__(self, order: FlushOrder, until_s: float | None) -> None:
        self.order, self.until_s = order, until_s
        self.is_stopped, self.hangs = False, False

    def is_over(self) -> bool:
        return not self.hangs

    def next(self) -> FlushAnswer:
        raise AssertionError("answers are given by the test")

    def stop(self) -> None:
        self.is_stopped = True


class FakeRemoval:
    def __init__(self, order: RemoveOld, until_s: float | None) -> None:
        self.order, self.until_s = order, until_s
        self.is_stopped, self.hangs = False, False

    def is_over(self) -> bool:
        return not self.hangs

    def next(self) -> FlushAnswer:
        raise AssertionError("answers are given by the test")

    def stop(self) -> None:
        self.is_stopped = True


class Ground:
    """A node of two ranks, each with three buffers."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.said: list[Any] = []
        self.started: list[FakeProcess] = []
        self.removals: list[FakeRemoval] = []
        self.fails_to_start = False
        self.thens: list[Callable[[Any], None]] = []
        self.descriptors = {number: os.memfd_create("part") for number in range(6)}
        self.flushes = Flushes(self._start, self.said.append, self._run, lambda: self.now_s)
        buffers = tuple(HeldBuffer(id=number, rank=number % 2, size_bytes=100) for number in range(6))
        self.holdings = Holdings(attempt=0, world_size=2, ranks=(0, 1), buffers=buffers)

    def _start(self, order: AnyOrder, descriptors: Sequence[int], until_s: float | None) -> FakeProcess | FakeRemoval:
        if self.fails_to_start:
            raise OSError("no process")
        if isinstance(order, RemoveOld):
            self.removals.append(FakeRemoval(order, until_s))
            return self.removals[-1]
        self.started.append(FakeProcess(order, until_s))
        return self.started[-1]

    def _run(self, job: Callable[[], Any], then: Callable[[Any], None], *, is_long: bool) -> None:
        self.thens.append(then)

    def holds(self, *steps: int, state: str = "whole", ranks: tuple[int, ...] = (0, 1)) -> None:
        buffers = list(self.holdings.buffers)
        for row, step in enumerate(steps):
            for rank in ranks:
                part = Part(attempt=0, step=step, world_size=2, maker=1, state=state, used_bytes=9, digest=b"d")  # type: ignore[arg-type]
                buffers[2 * row + rank] = msgspec.structs.replace(buffers[2 * row + rank], part=part)
        self.holdings = msgspec.structs.replace(self.holdings, buffers=tuple(buffers))
        self.advance()

    def advance(self) -> None:
        self.flushes.advance(self.holdings, self.descriptors, self.advance)

    def want(self, step: int) -> None:
        self.flushes.want((0, step), "")
        self.advance()

    def want_last(self, limit_s: float = 30.0, number: int = 7) -> None:
        self.flushes.want_last(FlushLast(number=number, limit_s=limit_s))
        self.advance()

    def answers(self, answer: FlushAnswer | FlushSilent) -> None:
        """The one that was started last among those that are under way."""
        self.thens.pop()(answer)

    def steps(self) -> list[list[int]]:
        return [sorted({part.step for part in process.order.parts}) for process in self.started]


@pytest.fixture
def ground() -> Iterator[Ground]:
    made = Ground()
    yield made
    for each in made.descriptors.values():
        os.close(each)


def done(step: int) -> FlushDone:
    return FlushDone(attempt=0, step=step, text=f"step {step} was written", is_stored=True)


def test_a_step_is_written_once_all_ranks_have_it_whole_and_keeps_its_buffers_until_then(ground: Ground) -> None:
    ground.want(5)
    ground.holds(5, ranks=(0,))
    assert (ground.started, ground.flushes.is_busy) == ([], True)
    assert ground.flushes.pinned(ground.holdings) == {0}
    ground.holds(5, 6)
    assert ground.steps() == [[5]]
    assert ground.flushes.pinned(ground.holdings) == {0, 1}
    ground.want(6)
    assert len(ground.started) == 1, "two at once"
    ground.answers(done(5))
    assert (ground.flushes.is_busy, ground.flushes.pinned(ground.holdings)) == (False, frozenset())
    assert ground.said == [], "nothing is said of what goes well beside a training"


def test_a_step_that_never_gets_whole_does_not_keep_others_from_storage(ground: Ground) -> None:
    ground.want(5)
    ground.now_s += WHOLE_WITHIN_S + 1
    assert not ground.flushes.is_busy


def test_what_fails_is_one_line_and_its_rest_is_removed_by_the_next(ground: Ground) -> None:
    ground.holds(5)
    ground.want(5)
    ground.answers(FlushDone(text="storage is full", is_left=True))
    assert ground.said == [KeeperNote(text=f"storage is full; {AGAIN}")]
    ground.want(5)
    assert ground.started[-1].order.failed == ((0, 5),)
    ground.answers(done(5))
    ground.want(5)
    assert ground.started[-1].order.failed == ()


def test_the_same_trouble_is_told_once_now_and_then_and_when_it_is_over(ground: Ground) -> None:
    def is_full(step: int) -> FlushDone:
        return FlushDone(text=f"step {step}: /ckpt is full", trouble="/ckpt is full", is_left=True)

    for step in (5, 6, 7):
        ground.holds(step)
        ground.want(step)
        ground.answers(is_full(step))
    assert ground.said == [KeeperNote(text=f"step 5: /ckpt is full; {AGAIN}")]
    ground.now_s += SAID_AGAIN_S
    ground.want(7)
    ground.answers(is_full(7))
    assert ground.said[1:] == [KeeperNote(text=f"step 7: /ckpt is full; {AGAIN}")]
    for _ in range(2):
        ground.want(7)
        ground.answers(done(7))
    assert ground.said[2:] == [KeeperNote(text="step 7 was written: storage can be written again")]
    ground.want(7)
    ground.answers(is_full(7))
    assert len(ground.said) == 4, "it is new again"


def test_no_process_is_one_line(ground: Ground) -> None:
    ground.fails_to_start = True
    ground.holds(5)
    ground.want(5)
    assert ground.said == [KeeperNote(text=f"no step can be written from memory to storage: no process; {AGAIN}")]
    assert not ground.flushes.is_busy


def test_at_the_end_all_that_is_whole_is_offered_and_the_answer_is_passed_on(ground: Ground) -> None:
    ground.holds(5, 6)
    ground.want_last()
    assert ground.steps() == [[5, 6]]
    assert (ground.started[0].order.is_last, ground.started[0].until_s) == (True, 30.0)
    ground.answers(done(6))
    assert ground.said == [Flushed(number=7, text="step 6 was written", is_stored=True)]


def test_at_the_end_what_is_under_way_is_waited_for_and_the_newest_comes_after_it(ground: Ground) -> None:
    ground.holds(5)
    ground.want(5)
    ground.holds(5, 6)
    ground.want_last()
    assert ground.started[0].until_s == 30.0
    ground.answers(done(5))
    assert ground.steps() == [[5], [5, 6]]
    ground.answers(done(6))
    assert [each.text for each in ground.said] == ["step 6 was written"]


def test_at_the_end_what_was_just_written_is_not_written_again(ground: Ground) -> None:
    ground.holds(5)
    ground.want(5)
    ground.want_last()
    ground.answers(done(5))
    assert ground.said == [Flushed(number=7, text="step 5 was written", is_stored=True)]
    assert len(ground.started) == 1


def test_at_the_end_with_nothing_in_memory_there_is_nothing_to_say(ground: Ground) -> None:
    ground.want_last()
    assert ground.said == [Flushed(number=7)]


def test_at_the_end_other_nodes_are_told_that_there_is_nothing_in_memory(ground: Ground) -> None:
    ground.holdings = msgspec.structs.replace(ground.holdings, world_size=4)
    ground.flushes.storage = "/ckpt"
    ground.want_last()
    assert [(process.order.parts, process.order.storage) for process in ground.started] == [((), "/ckpt")]
    ground.answers(FlushDone())
    assert ground.said == [Flushed(number=7, text="")]
    ground.want_last(limit_s=0.0, number=8)
    ground.flushes.want_last(FlushLast(number=9, limit_s=30.0, is_job_over=False))
    ground.advance()
    assert len(ground.started) == 1, "it was given up; and who leaves while others go on tells them nothing"
    assert ground.said[1:] == [Flushed(number=8, text=""), Flushed(number=9, text="")]


def test_who_asks_again_gets_an_answer_soon(ground: Ground) -> None:
    ground.holds(5)
    ground.want_last()
    ground.want_last(limit_s=0.0, number=8)
    assert ground.started[0].is_stopped
    ground.answers(FlushDone(is_left=True))
    (said,) = ground.said
    assert (said.number, said.is_stored) == (8, False)
    assert said.text == "step 5 was not written from memory to storage: there was no more time"


def test_at_the_end_people_hear_now_and_then_how_far_it_is(ground: Ground) -> None:
    ground.holds(5)
    ground.want_last()
    for _ in range(21):
        ground.now_s += 1.0
        ground.answers(FlushProgress(step=5, done_bytes=1 << 30, of_bytes=2 << 30, url="/ckpt"))
    assert ground.said == [KeeperNote(text="writing step 5 to /ckpt: 1.0 of 2.0 GiB")] * 2


@pytest.mark.parametrize(("resumed_step", "stopped"), [(None, True), (4, True), (5, False), (9, False)])
def test_an_attempt_gives_up_what_is_not_of_its_past(ground: Ground, resumed_step: int | None, stopped: bool) -> None:
    ground.holds(5)
    ground.want(5)
    ground.flushes.begin_attempt(resumed_step)
    assert ground.started[0].is_stopped == stopped


def test_buffers_of_a_write_are_not_written_to_and_two_are_left_to_save_in(ground: Ground) -> None:
    ground.holds(5, 6)
    ground.want(5)
    free = set(range(6)) - ground.flushes.pinned(ground.holdings)
    _, chosen = generations.make(ground.holdings, 0, 7, maker=1, free=free)
    assert chosen == 4


# --- older checkpoints (--ckpt-keep)


def done_and_remove(step: int) -> FlushDone:
    return msgspec.structs.replace(done(step), remove=RemoveOld(folder="/ckpt", rule=RULE))


def test_older_ones_are_removed_once_the_newest_is_there_and_the_next_write_does_not_wait_for_it(
    ground: Ground,
) -> None:
    ground.flushes.begin_attempt(None)
    ground.holds(5)
    ground.want(5)
    assert ground.removals == []
    ground.answers(done_and_remove(5))
    assert [each.order.rule for each in ground.removals] == [RULE]
    assert not ground.flushes.is_busy
    ground.holds(5, 6)
    ground.want(6)
    assert ground.steps() == [[5], [6]]
    ground.answers(done_and_remove(6))
    assert len(ground.removals) == 1, "two at once"
    ground.answers(FlushDone())
    assert ground.said == []


@pytest.mark.parametrize("failed", [FlushDone(text="storage is full", is_left=True), FlushDone(is_left=True), done(5)])
def test_nothing_is_removed_where_nothing_was_written_or_nothing_is_to_go(ground: Ground, failed: FlushDone) -> None:
    ground.flushes.begin_attempt(None)
    ground.holds(5)
    ground.want(5)
    ground.answers(failed)
    assert ground.removals == []


def test_nothing_more_is_removed_once_a_worker_has_ended_for_an_attempt_may_be_choosing_what_to_start_from(
    ground: Ground,
) -> None:
    ground.flushes.begin_attempt(None)
    ground.holds(5)
    ground.want(5)
    ground.answers(done_and_remove(5))
    ground.flushes.removals.worker_gone()
    assert ground.removals[0].is_stopped
    ground.answers(FlushDone())
    ground.holds(5, 6)
    ground.want(6)
    ground.answers(done_and_remove(6))
    assert len(ground.removals) == 1
    ground.flushes.begin_attempt(6)
    ground.want(6)
    ground.answers(done_and_remove(6))
    assert len(ground.removals) == 2, "all have loaded again"
    ground.flushes.begin_attempt(6)
    assert ground.removals[1].is_stopped


def test_one_that_cannot_be_is_one_line_however_often_it_is_tried(ground: Ground) -> None:
    ground.flushes.begin_attempt(None)
    for step in (5, 6):
        ground.holds(step)
        ground.want(step)
        ground.answers(done_and_remove(step))
        ground.answers(FlushDone(text="older checkpoints in /ckpt are not removed: read-only"))
    assert ground.said == [KeeperNote(text="older checkpoints in /ckpt are not removed: read-only")]


def test_at_the_end_of_a_job_they_are_removed_before_that_is_said_and_not_for_long(ground: Ground) -> None:
    ground.holds(5)
    ground.want_last()
    ground.now_s = 1.0
    ground.answers(done_and_remove(5))
    assert (ground.said, ground.removals[0].until_s) == ([], 1.0 + AT_THE_END_S)
    ground.advance()
    assert ground.said == [], "it is not over yet"
    ground.answers(FlushDone(is_left=True))
    assert ground.said == [Flushed(number=7, text="step 5 was written", is_stored=True)]
    assert not ground.flushes.is_busy


def test_at_the_end_of_a_job_one_that_was_told_to_end_comes_first(ground: Ground) -> None:
    """It began beside the training, and stopped when the first worker had ended."""
    ground.flushes.begin_attempt(None)
    ground.holds(5)
    ground.want(5)
    ground.answers(done_and_remove(5))
    ground.flushes.removals.worker_gone()
    ground.holds(5, 6)
    ground.want_last()
    removal = ground.thens.pop(0)
    ground.answers(done_and_remove(6))
    assert (len(ground.removals), ground.said) == (1, [])
    removal(FlushDone())
    assert (len(ground.removals), ground.said) == (2, [])
    ground.answers(FlushDone())
    assert ground.said == [Flushed(number=7, text="step 6 was written", is_stored=True)]


def test_at_the_end_of_a_job_they_are_removed_too_where_the_newest_had_just_been_written(ground: Ground) -> None:
    """Its workers ended before that could be done."""
    ground.flushes.begin_attempt(None)
    ground.holds(5)
    ground.want(5)
    ground.flushes.removals.worker_gone()
    ground.answers(done_and_remove(5))
    assert ground.removals == []
    ground.want_last()
    assert (len(ground.started), len(ground.removals), ground.said) == (1, 1, [])
    ground.answers(FlushDone())
    assert [each.is_stored for each in ground.said] == [True]


def test_who_is_told_again_does_not_wait_for_it(ground: Ground) -> None:
    ground.holds(5)
    ground.want_last()
    ground.answers(done_and_remove(5))
    ground.want_last(limit_s=0.0, number=8)
    assert ground.removals[0].is_stopped
    ground.answers(FlushDone())
    assert ground.said == [Flushed(number=8, text="step 5 was written", is_stored=True)]


def test_a_node_that_only_leaves_removes_nothing_for_the_job_may_go_on_elsewhere(ground: Ground) -> None:
    ground.holds(5)
    ground.flushes.want_last(FlushLast(number=7, limit_s=30.0, is_job_over=False))
    ground.advance()
    ground.answers(done_and_remove(5))
    assert ground.removals == []
    assert ground.said == [Flushed(number=7, text="step 5 was written", is_stored=True)]


def test_where_no_process_can_be_started_the_job_ends_all_the_same(ground: Ground) -> None:
    ground.holds(5)
    ground.want_last()
    ground.fails_to_start = True
    ground.answers(done_and_remove(5))
    assert ground.said == [Flushed(number=7, text="step 5 was written", is_stored=True)]


# --- storage that hangs


def test_a_write_that_stands_still_is_told_and_one_that_nobody_can_end_keeps_others_from_hanging_too(
    ground: Ground,
) -> None:
    ground.holds(5)
    ground.want(5)
    ground.answers(FlushSilent(silent_s=120.0))
    assert ground.said == [
        KeeperNote(text="step 5 goes to storage, and nothing of it has been written for 120 s; training goes on")
    ]
    assert ground.flushes.is_busy
    ground.started[0].hangs = True
    ground.answers(FlushDone(text="cannot be ended", is_left=True))
    assert ground.flushes.pinned(ground.holdings) == frozenset(), "training has its buffers again"
    assert ground.flushes.is_busy
    ground.holds(5, 6)
    ground.want(6)
    assert ground.steps() == [[5]]
    ground.started[0].hangs = False
    assert not ground.flushes.is_busy
    ground.want(6)
    assert ground.steps() == [[5], [6]]
    assert ground.started[1].order.failed == ((0, 5),)


def test_at_the_end_of_a_job_copies_of_a_lost_node_are_written_as_if_they_were_this_node_s(ground: Ground) -> None:
    """Rank 2 was on the lost node. Of step 6 there is no copy."""
    descriptors = [os.memfd_create("copy") for _ in range(2)]
    ground.descriptors |= {6 + number: descriptor for number, descriptor in enumerate(descriptors)}
    part = Part(attempt=0, step=5, world_size=2, maker=-1, state="whole", used_bytes=9, digest=b"d")
    copies = Guests(
        buffers=(
            HeldBuffer(id=6, rank=2, size_bytes=100, part=part),
            HeldBuffer(id=7, rank=3, size_bytes=100, part=part),  # of another node, which is there
        )
    )
    ground.holds(5, 6)
    ground.flushes.want_last(FlushLast(number=7, limit_s=30.0, stands_in=(2,)))
    holdings = standing_in(ground.holdings, copies, ground.flushes.stands_in)
    ground.flushes.advance(holdings, ground.descriptors, ground.advance)
    (process,) = ground.started
    assert isinstance(process.order, FlushOrder)
    assert process.order.ranks == (0, 1, 2)
    assert sorted((each.step, each.rank) for each in process.order.parts) == [(5, 0), (5, 1), (5, 2)]


def test_where_nobody_is_lost_copies_are_no_part_of_it(ground: Ground) -> None:
    part = Part(attempt=0, step=5, world_size=2, maker=-1, state="whole", used_bytes=9, digest=b"d")
    copies = Guests(buffers=(HeldBuffer(id=6, rank=2, size_bytes=100, part=part),))
    assert standing_in(ground.holdings, copies, ()) is ground.holdings
