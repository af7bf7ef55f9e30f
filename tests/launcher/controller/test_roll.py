"""Who counts as silent: nobody because this process was held up, everybody who really is."""

from __future__ import annotations

from robust_run.launcher.core.failure_detector import NEARLY_S, FailureDetector

PATIENCE_S = 3.5


def roll_of(*nodes: str) -> FailureDetector:
    """A roll of agents that were heard at 0."""
    detector = FailureDetector(PATIENCE_S)
    detector.expect(nodes, 0.0)
    return detector


def test_who_is_silent_for_too_long_is_lost_as_soon_as_that_is_so() -> None:
    detector = roll_of("a", "b")
    assert detector.lost(3.4) == []
    detector.heard("b", 3.45)
    assert detector.lost(3.5) == [("a", 3.5)]


def test_nobody_is_lost_in_the_first_look_after_this_process_was_held_up() -> None:
    detector = roll_of("spoke", "silent")
    assert detector.lost(0.1) == []
    assert detector.lost(60.0) == [], "what arrived in that minute may be unread"
    detector.heard_all([("spoke", 60.05)])
    assert detector.lost(60.1) == [("silent", 60.1)]


def test_a_look_in_time_before_makes_no_verdict_late() -> None:
    detector = roll_of("a")
    assert detector.lost(PATIENCE_S - NEARLY_S) == []
    assert detector.lost(PATIENCE_S) == [("a", PATIENCE_S)]


def test_who_is_forgotten_is_not_waited_for() -> None:
    detector = roll_of("a")
    detector.lost(3.4)
    detector.forget("a")
    assert detector.lost(4.0) == []
    assert detector.silent_s("a", 4.0) is None
