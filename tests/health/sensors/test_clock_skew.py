"""Wall clocks that jump, drift, or differ between nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.health.sensors.clock_skew import ClockSample, ClockState, judge, judge_offset, offset_to, read
from robust_run.health.sensors.settings import ClockSettings
from robust_run.health.sensors.types import Event, SensorWorld

SETTINGS = ClockSettings()


def at(now_s: float, jumped_s: float = 0.0, synchronised: bool | None = True, error_s: float = 0.01) -> ClockSample:
    return ClockSample(
        unix_s=1e9 + now_s + jumped_s, monotonic_s=now_s, synchronised=synchronised, most_error_s=error_s
    )


def said(*samples: ClockSample) -> list[Event]:
    state, events = ClockState(), []
    for sample in samples:
        state, new = judge(SETTINGS, state, sample, sample.monotonic_s)
        events += new
    return events


def test_a_wall_clock_that_jumps_is_said_with_how_far() -> None:
    events = said(at(0), at(10), at(20, jumped_s=-3.5), at(30, jumped_s=-3.5))
    assert [(event.name, event.at_s) for event in events] == [("clock.jump", 20)]
    assert "-3.50 s" in events[0].detail


def test_a_clock_that_is_slewed_does_not_jump() -> None:
    assert said(at(0), at(10, jumped_s=0.005), at(20, jumped_s=0.01)) == []


def test_a_clock_that_nobody_ever_synchronised_is_a_note_said_once() -> None:
    events = said(*[at(10.0 * turn, synchronised=False, error_s=16.0) for turn in range(20)])
    assert [(event.name, event.kind) for event in events] == [("clock.unsynchronised", "note")]


def test_a_clock_that_loses_its_source_is_said_when_its_error_has_grown() -> None:
    lost = [at(10.0 * turn, synchronised=turn < 2, error_s=0.3 * turn) for turn in range(20)]
    events = said(*lost)
    assert [(event.name, event.kind) for event in events] == [("clock.unsynchronised", "alert")]


def test_this_machine_s_clocks_can_be_read_without_changing_them() -> None:
    sample = read(SensorWorld())
    assert sample.unix_s > 1e9
    assert sample.most_error_s is None or sample.most_error_s >= 0


@given(st.floats(-100, 100), st.floats(0, 10), st.floats(0, 10))
def test_the_true_offset_is_within_the_error_that_is_stated(offset_s: float, there_s: float, back_s: float) -> None:
    """The other clock is `offset_s` ahead; a message takes `there_s` and its answer `back_s`."""
    sent = 1e6
    estimate_s, error_s = offset_to(sent, sent + there_s + offset_s, sent + there_s + back_s)
    assert abs(estimate_s - offset_s) <= error_s + 1e-6


def test_only_an_offset_that_is_certain_is_said() -> None:
    assert judge_offset(SETTINGS, 1.5, 0.6, 0.0) == ()
    (event,) = judge_offset(SETTINGS, 1.7, 0.6, 0.0)
    assert event.name == "clock.skew"
    assert event.value == pytest.approx(-1.7)
