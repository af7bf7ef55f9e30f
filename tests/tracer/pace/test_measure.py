"""From step marks to the pace of a rank."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.tracer.pace.measure import pace_of
from robust_run.tracer.pace.types import MOST_STEPS, STEPS_NEEDED, NodePace, RankPace
from robust_run.tracer.types import StepMark


def marks(count: int, step_s: float = 0.1, blocked_s: float = 0.04) -> tuple[StepMark, ...]:
    return tuple(StepMark(5.0 + n * step_s, n * blocked_s) for n in range(count))


def test_own_time_is_the_step_without_what_was_waited_in_it() -> None:
    pace = pace_of(marks(31), 31, rank=2, node="gpu-03")
    assert pace is not None
    assert (pace.rank, pace.node, pace.first_step) == (2, "gpu-03", 2)
    assert pace.own_ms == pytest.approx([60.0] * 30)
    assert pace.step_ms == pytest.approx([100.0] * 30)


def test_too_few_steps_are_no_pace() -> None:
    assert pace_of(marks(STEPS_NEEDED), STEPS_NEEDED, rank=0, node="a") is None
    assert pace_of(marks(STEPS_NEEDED + 1), STEPS_NEEDED + 1, rank=0, node="a") is not None
    assert pace_of((), 1000, rank=0, node="a") is None


def test_only_steps_after_the_given_one_count() -> None:
    pace = pace_of(marks(60), 160, 130, rank=0, node="a")
    assert pace is not None and pace.first_step == 131 and len(pace.own_ms) == 30
    assert pace_of(marks(60), 160, 141, rank=0, node="a") is None


def test_a_message_has_the_newest_steps_only() -> None:
    pace = pace_of(marks(100), 500, rank=0, node="a")
    assert pace is not None and len(pace.own_ms) == MOST_STEPS and pace.first_step == 500 - MOST_STEPS + 1


@pytest.mark.parametrize("lead", [0, 1, 17, 40])
def test_nodes_that_look_at_different_moments_send_the_same_steps_when_steps_are_fast(lead: int) -> None:
    here = pace_of(marks(1200, 0.005, 0.0), 5200, rank=0, node="a")
    there = pace_of(marks(1200, 0.005, 0.0), 5200 + lead, rank=1, node="b")
    assert here is not None and there is not None
    assert here.first_step == there.first_step


def test_marks_before_damage_are_ignored() -> None:
    good = marks(40)
    broken = (*marks(5), StepMark(math.nan, 0.0), *good)
    assert pace_of(broken, 46, rank=0, node="a") == pace_of(good, 46, rank=0, node="a")
    assert pace_of((StepMark(1e9, 0.0), *good), 41, rank=0, node="a") == pace_of(good, 41, rank=0, node="a")


@given(
    numbers=st.lists(st.tuples(st.floats(), st.floats()), max_size=90),
    steps=st.integers(0, 1 << 62),
    since=st.integers(0, 1 << 62),
)
def test_whatever_a_ring_holds_the_pace_is_sound(numbers: list[tuple[float, float]], steps: int, since: int) -> None:
    pace = pace_of([StepMark(at, blocked) for at, blocked in numbers], steps, since, rank=0, node="a")
    if pace is not None:
        assert STEPS_NEEDED <= len(pace.own_ms) == len(pace.step_ms) <= MOST_STEPS
        assert pace.first_step > since and pace.first_step + len(pace.own_ms) - 1 <= steps
        assert all(value >= 0.0 for value in pace.own_ms + pace.step_ms)


def test_a_message_from_elsewhere_cannot_be_larger_than_agreed() -> None:
    long = (1.0,) * (MOST_STEPS + 1)
    packed = msgspec.msgpack.encode(NodePace(0, "a", 0.0, 10.0, (RankPace(0, "a", 1, long, long),)))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(packed, type=NodePace)
