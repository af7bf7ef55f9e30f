"""How far the clocks of a node and of the controller are apart, as heartbeats tell it that take their time."""

from __future__ import annotations

import pytest

from robust_run.launcher.control.clock_offset import BEATS, CREEP_S, ClockOffset


def after(offset: ClockOffset, *told_s: float) -> float:
    for second, each in enumerate(told_s):
        offset.take(second, second + each)
    return offset.ahead_s


def test_the_quickest_message_tells_best() -> None:
    assert after(ClockOffset(100.5), 100.2, 100.1, 100.4) == pytest.approx(100.1 + CREEP_S)


def test_messages_that_are_late_for_a_while_move_it_next_to_nothing() -> None:
    late = [103.0] * (BEATS - 1)
    assert after(ClockOffset(100.0), *late, 100.0) == 100.0


def test_a_machine_whose_clock_stood_still_is_believed_after_some_heartbeats() -> None:
    """It was moved to another host and its clock stopped for 2 s: else its ranks would seem to fail 2 s earlier for an hour."""
    moved = [102.0 + jitter_s for jitter_s in (0.02, 0.3, 0.01) * BEATS][:BEATS]
    assert after(ClockOffset(100.0), *moved) == pytest.approx(102.01)


def test_heartbeats_that_a_network_held_up_come_at_once_and_are_no_clock_that_stood_still() -> None:
    """What fails is told among them: who failed first would be mistaken by seconds."""
    offset = ClockOffset(100.0)
    for sent_s in range(20):
        offset.take(sent_s, 124.0 + sent_s * 1e-4)
        assert offset.ahead_s < 100.1, sent_s


def test_a_controller_whose_own_clock_stood_still_sees_it_at_once() -> None:
    assert after(ClockOffset(100.0), 98.0) == 98.0


def test_it_follows_clocks_that_drift_apart() -> None:
    drifting = [100.0 + 0.0002 * beat for beat in range(1000)]
    assert after(ClockOffset(100.0), *drifting) == pytest.approx(100.1998)
