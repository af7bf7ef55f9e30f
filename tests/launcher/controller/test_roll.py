"""Who counts as silent: nobody because this process was held up, everybody who really is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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


class Thorough(FailureDetector):
    """Looks at everybody, every time."""

    def lost(self, now_s: float) -> list[tuple[str, float]]:
        self._none_before_s = float("-inf")
        return super().lost(now_s)


NODES = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("heard"), NODES, st.floats(0, 5)),
        st.tuples(st.just("granted"), NODES, st.floats(0, 9)),
        st.tuples(st.just("expect"), NODES, st.floats(0, 9)),
        st.tuples(st.just("forget"), NODES, st.just(0.0)),
        st.tuples(st.just("look"), st.just(""), st.floats(0, 4)),
    ),
    max_size=60,
)


@given(STEPS)
def test_that_not_everybody_is_looked_at_every_time_changes_no_verdict(
    steps: list[tuple[str, str, float]],
) -> None:
    """`heard` may come late (an old sign of an agent that was forgotten); `heard_all` is newer than the last look."""
    quick, thorough = FailureDetector(PATIENCE_S), Thorough(PATIENCE_S)
    now_s = 0.0
    said: set[str] = set()
    for what, node, amount_s in steps:
        for each in (quick, thorough):
            if what == "heard":
                each.heard(node, now_s - amount_s)
            elif what == "granted":
                each.granted(node, now_s + amount_s)
            elif what == "expect":
                each.expect([node], now_s, amount_s)
            elif what == "forget":
                each.forget(node)
        if what == "heard":
            said.add(node)
        if what == "look":
            now_s += amount_s
            for each in (quick, thorough):
                each.heard_all([(name, now_s) for name in sorted(said)])
            said.clear()
            assert quick.lost(now_s) == thorough.lost(now_s)
