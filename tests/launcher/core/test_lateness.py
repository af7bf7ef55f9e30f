"""How late a process was: the worst of the last minute, at once when it gets worse and slowly when it gets better."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.core.lateness import SLOT_S, WINDOW_S, Lateness


def test_nothing_was_late() -> None:
    assert Lateness().worst_s(5.0) == 0.0


def test_the_worst_counts_at_once_and_for_a_minute() -> None:
    lateness = Lateness()
    lateness.note(0.01, 100.0)
    lateness.note(2.0, 101.0)
    lateness.note(0.02, 102.0)
    assert lateness.worst_s(102.0) == 2.0
    assert lateness.worst_s(101.0 + WINDOW_S) == 2.0
    assert lateness.worst_s(100.0 + WINDOW_S + SLOT_S) == 0.0


def test_a_timer_that_fires_early_is_not_late() -> None:
    lateness = Lateness()
    lateness.note(-0.5, 1.0)
    assert lateness.worst_s(1.0) == 0.0


@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 20.0)), min_size=1, max_size=60))
def test_nothing_of_the_last_minute_is_forgotten_and_little_is_kept(notes: list[tuple[float, float]]) -> None:
    lateness, now_s, seen = Lateness(), 0.0, []
    for pause_s, late_s in notes:
        now_s += pause_s
        lateness.note(late_s, now_s)
        seen.append((now_s, late_s))
    assert lateness.worst_s(now_s) >= max(late_s for at_s, late_s in seen if at_s > now_s - WINDOW_S)
    assert len(lateness._slots) <= WINDOW_S / SLOT_S + 2
