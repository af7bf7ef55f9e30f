"""Which ranks are watched, and what calls for a look at all."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st
from tracer.nccl.simulate import Model, trace_of
from tracer.nccl.stalls import one_group

from robust_run.tracer.nccl.sampling import SampleWindow, Trigger, sample, window


@given(st.integers(1, 40), st.integers(1, 20), st.integers(0, 100))
def test_one_of_each_group_and_ten_at_the_most(groups: int, size: int, turn: int) -> None:
    of = [[group + groups * place for place in range(size)] for group in range(groups)]
    watched = sample(of, turn=turn)
    assert len(watched) == min(10, groups)
    assert len({rank % groups for rank in watched}) == len(watched)


def test_turn_by_turn_all_groups_are_watched() -> None:
    of = [[group, group + 30] for group in range(30)]
    assert {rank % 30 for turn in range(30) for rank in sample(of, turn=turn)} == set(range(30))


def test_a_rank_of_several_groups_is_watched_once() -> None:
    assert sample([[0, 1], [0, 2]]) == (0, 2)
    assert sample([]) == ()
    assert sample([[], [4]]) == (4,)


def seen(completed: int, moved: int = 1000, in_flight: bool = True) -> SampleWindow:
    return SampleWindow(length_s=10.0, completed=completed, bytes=moved * completed, in_flight=in_flight)


def test_nothing_completed_while_something_is_in_flight() -> None:
    assert "no operation was completed in 10 s" in Trigger().look(seen(0))
    assert Trigger().look(seen(0, in_flight=False)) == ""


def test_throughput_that_halves() -> None:
    trigger = Trigger()
    assert [trigger.look(seen(8)) for _ in range(5)] == [""] * 5
    assert trigger.look(seen(8, moved=600)) == ""
    assert "MB/s are usual" in trigger.look(seen(8, moved=400))


def test_intervals_that_double() -> None:
    trigger = Trigger()
    assert [trigger.look(seen(8, moved=0)) for _ in range(5)] == [""] * 5
    assert trigger.look(seen(5, moved=0)) == ""
    assert trigger.look(seen(3, moved=0)) == "an operation every 3.33 s where one every 1.25 s is usual"


def test_what_lasts_becomes_usual() -> None:
    trigger = Trigger()
    for _ in range(5):
        trigger.look(seen(8))
    assert [bool(trigger.look(seen(2))) for _ in range(20)][-1] is False


def test_a_window_is_what_was_completed_between_two_readings() -> None:
    model = Model(one_group(3, "ring", 10, 1), None, 1)
    model.run(30)
    before = copy.deepcopy(model)
    assert not model.run()
    first, last = trace_of(before, 0), trace_of(model, 0)
    done = sum(op.closed == op.opened > 0 for op in first.ops)
    assert window(first, last, 5.0) == SampleWindow(length_s=5.0, completed=4 - done, bytes=0, in_flight=False)
    assert window(last, last, 5.0).completed == 0
