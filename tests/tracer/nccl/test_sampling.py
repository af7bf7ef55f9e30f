"""Which ranks are watched, and what calls for a look at all."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st
from tracer.nccl.simulate import Model, trace_of
from tracer.nccl.stalls import one_group

from robust_run.tracer.nccl.sampling import SampleWindow, Trigger, sampled_ranks, window


@given(st.integers(1, 40), st.integers(1, 16), st.integers(0, 100))
def test_ten_of_a_job_at_the_most_spread_over_nodes_and_places(nodes: int, per_node: int, turn: int) -> None:
    watched = sampled_ranks(nodes * per_node, per_node, turn)
    assert len(watched) == len(set(watched)) == min(10, nodes * per_node)
    assert all(0 <= rank < nodes * per_node for rank in watched)
    assert len({rank // per_node for rank in watched}) == min(10, nodes)
    if nodes in (4, 8) and per_node == 8:  # data parallelism by places: one of each group
        assert len({rank % per_node for rank in watched}) == 8


def test_turn_by_turn_all_ranks_are_watched() -> None:
    assert {rank for turn in range(240) for rank in sampled_ranks(30 * 8, 8, turn)} == set(range(30 * 8))


def test_a_last_node_with_fewer_ranks() -> None:
    assert set(sampled_ranks(5, 4)) == {0, 1, 2, 3, 4}
    assert sampled_ranks(1, 1) == (0,)


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
