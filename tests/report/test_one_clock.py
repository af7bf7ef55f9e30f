"""Traces of several nodes in one picture: machines that were booted weeks apart count their time from different moments."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from robust_run.report.one_clock import FAR_S, on_one_clock
from robust_run.tracer.types import Op, RankTrace, StepMark

WEEK_S = 7 * 86400.0


def op(seq: int, at_s: float, group: str = "world", **more: Any) -> Op:
    """A call that took a second."""
    fields = {"op": "all_reduce", "state": "done", "done_at_s": at_s + 1.0, **more}
    return Op(group=group, seq=seq, at_s=at_s, **fields)


def trace(rank: int, booted_s: float, *ops: Op, last_s: float = 100.0) -> RankTrace:
    """A rank on a machine whose clock is ahead by so much."""
    replace = msgspec.structs.replace
    own = tuple(
        replace(
            each, at_s=each.at_s + booted_s, done_at_s=None if each.done_at_s is None else each.done_at_s + booted_s
        )
        for each in ops
    )
    return RankTrace(
        rank=rank,
        world_size=4,
        pid=1,
        steps=1,
        last_at_s=last_s + booted_s,
        blocked_s=0.0,
        ops=own,
        groups=(),
        marks=(StepMark(last_s - 5.0 + booted_s, 0.0),),
    )


def begins(*traces: RankTrace) -> dict[int, list[float]]:
    moved, _ = on_one_clock(traces)
    return {each.rank: [pytest.approx(one.at_s, abs=1e-6) for one in each.ops] for each in moved}


def test_calls_that_are_made_together_are_drawn_together() -> None:
    here = trace(0, 0.0, op(1, 10.0), op(2, 20.0))
    there = trace(2, WEEK_S, op(1, 10.2, done_at_s=11.0), op(2, 20.2, done_at_s=21.0))
    assert begins(here, there) == {0: [10.0, 20.0], 2: [10.2, 20.2]}
    moved, _ = on_one_clock([here, there])
    assert [each.last_at_s for each in moved] == [100.0, pytest.approx(100.0)]
    assert [each.marks[0].at_s for each in moved] == [95.0, pytest.approx(95.0)]


def test_one_call_that_ended_late_on_a_node_does_not_move_it() -> None:
    here = trace(0, 0.0, *(op(seq, 10.0 * seq) for seq in (1, 2, 3)))
    there = trace(2, -WEEK_S, op(1, 10.0), op(2, 20.0, done_at_s=29.0), op(3, 30.0))
    assert begins(here, there)[2] == [10.0, 20.0, 30.0]


def test_nodes_without_a_call_in_common_are_known_by_way_of_others() -> None:
    first = trace(0, 0.0, op(1, 10.0, "ab"))
    between = trace(2, WEEK_S, op(1, 10.0, "ab"), op(7, 30.0, "bc"))
    last = trace(3, -3 * WEEK_S, op(7, 30.0, "bc"))
    assert begins(first, between, last) == {0: [10.0], 2: [10.0, 30.0], 3: [30.0]}


def test_what_one_sends_to_the_other_is_a_call_in_common() -> None:
    sends = trace(1, 0.0, op(4, 10.0, op="send", peer=2, tag=1))
    receives = trace(2, WEEK_S, op(4, 10.0, op="recv", peer=1, tag=1))
    assert begins(sends, receives) == {1: [10.0], 2: [10.0]}


def test_ranks_of_one_machine_are_not_moved_against_each_other() -> None:
    late = trace(1, 0.0, op(1, 10.0, done_at_s=11.9))
    assert begins(trace(0, 0.0, op(1, 10.0)), late) == {0: [10.0], 1: [10.0]}
    there = (trace(2, WEEK_S, op(1, 10.0)), trace(3, WEEK_S, op(1, 10.0, done_at_s=11.3)))
    assert begins(trace(0, 0.0, op(1, 10.0)), *there) == {0: [10.0], 2: [10.0], 3: [10.0]}


def test_where_no_call_is_done_the_newest_events_meet_if_the_clocks_are_certainly_others() -> None:
    stuck = op(1, 50.0, state="waiting", done_at_s=None)
    assert begins(trace(0, 0.0, stuck), trace(2, WEEK_S, stuck)) == {0: [50.0], 2: [50.0]}
    near = trace(2, FAR_S / 2, stuck)
    assert begins(trace(0, 0.0, stuck), near)[2] == [50.0 + FAR_S / 2]


def test_times_that_are_none_move_nothing() -> None:
    broken = trace(2, 0.0, op(1, math.nan, done_at_s=math.nan), last_s=math.inf)
    moved, _ = on_one_clock([trace(0, 0.0, op(1, 10.0)), broken])
    assert moved[1].last_at_s == math.inf
