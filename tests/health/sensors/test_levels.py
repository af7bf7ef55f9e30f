"""When something that lasts is said: after it has lasted long enough, again while it lasts, and when it is over."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from robust_run.health.sensors.types import Condition, Event, Levels
from robust_run.health.signs.levels import MOST_CONDITIONS, follow

DOWN = Condition(name="network.link_down", subject="eth0", detail="the link is down", repeat_s=30.0)
HOT = Condition(name="gpu.hot", subject="GPU 0", detail="hot", hold_s=10.0, repeat_s=30.0)


def said_over(*moments: tuple[float, tuple[Condition, ...]]) -> list[Event]:
    levels: Levels = {}
    events: list[Event] = []
    for now_s, conditions in moments:
        levels, new = follow(levels, conditions, now_s)
        events += new
    return events


def test_what_heals_before_its_time_is_never_said() -> None:
    assert said_over((0, (HOT,)), (9, (HOT,)), (9.5, ())) == []


def test_what_lasts_is_said_once_it_has_lasted_long_enough() -> None:
    events = said_over((0, (HOT,)), (10, (HOT,)), (11, (HOT,)))
    assert [(event.kind, event.at_s) for event in events] == [("alert", 10)]
    assert "for 10 s now" in events[0].detail


def test_what_lasts_is_said_again_so_that_rules_can_count_it() -> None:
    moments = [(float(now_s), (DOWN,)) for now_s in range(61)]
    assert [event.at_s for event in said_over(*moments)] == [0, 30, 60]


def test_what_was_said_is_taken_back_when_it_is_over_and_may_come_again() -> None:
    events = said_over((0, (DOWN,)), (5, ()), (6, (DOWN,)))
    assert [event.kind for event in events] == ["alert", "clear", "alert"]
    assert "over after 5 s" in events[1].detail


def test_of_any_number_of_conditions_only_so_many_are_followed() -> None:
    many = tuple(Condition(name="disk.error", subject=str(number), detail="") for number in range(10_000))
    levels, events = follow({}, many, 0.0)
    assert len(levels) == len(events) == MOST_CONDITIONS


@given(st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=40))
def test_alerts_and_clears_alternate_except_for_repeats(steps: list[tuple[float, bool]]) -> None:
    now_s, moments = 0.0, []
    for passed_s, wrong in steps:
        now_s += passed_s
        moments.append((now_s, (HOT,) if wrong else ()))
    kinds = [event.kind for event in said_over(*moments)]
    assert kinds[:1] != ["clear"]
    assert ("clear", "clear") not in list(itertools.pairwise(kinds))


def test_one_that_is_followed_is_not_over_because_others_crowd_it_out() -> None:
    others = tuple(Condition(name="disk.error", subject=str(number), detail="") for number in range(MOST_CONDITIONS))
    assert [event.kind for event in said_over((0, (DOWN,)), (1, (*others, DOWN)))].count("clear") == 0
