"""An alarm for a time of the calendar, with clocks that are set and a machine that sleeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from robust_run.slurm.limit import LOOK_S, CalendarAlarm


class Day:
    """A calendar, and an event loop that counts seconds. `slow_s`: how much the calendar is behind."""

    def __init__(self, slow_s: float = 0.0) -> None:
        self.now_s, self.slow_s, self.rang_s = 0.0, slow_s, list[float]()
        self.timers: list[tuple[float, Callable[..., object], tuple[Any, ...]]] = []
        self.alarm = CalendarAlarm(cast("Any", self), lambda: 1e9 + self.now_s - self.slow_s)

    def call_later(self, delay_s: float, call: Callable[..., object], *arguments: Any) -> Day:
        self.timers = [(self.now_s + delay_s, call, arguments)]
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def ring(self) -> None:
        self.rang_s.append(self.now_s)

    def goes_on_to(self, until_s: float) -> None:
        while self.timers and self.timers[0][0] <= until_s:
            self.now_s, call, arguments = self.timers.pop()
            call(*arguments)
        self.now_s = until_s


def test_it_goes_off_once_and_in_time() -> None:
    day = Day()
    day.alarm.set(1e9 + 7200.0, day.ring)
    day.goes_on_to(9000.0)
    assert day.rang_s == [7200.0]


def test_a_clock_that_was_slow_when_it_was_set_and_is_put_right_does_not_make_it_late() -> None:
    day = Day(slow_s=250.0)
    day.alarm.set(1e9 + 7200.0, day.ring)
    day.goes_on_to(60.0)
    day.slow_s = 0.0
    day.goes_on_to(9000.0)
    assert 7200.0 <= day.rang_s[0] < 7200.0 + LOOK_S
    assert len(day.rang_s) == 1


def test_a_clock_that_is_set_back_makes_it_no_earlier() -> None:
    day = Day()
    day.alarm.set(1e9 + 7200.0, day.ring)
    day.goes_on_to(60.0)
    day.slow_s = 600.0
    day.goes_on_to(7700.0)
    assert day.rang_s == []
    day.goes_on_to(9000.0)
    assert len(day.rang_s) == 1


def test_what_is_over_is_called_by_the_loop_and_setting_it_again_replaces_the_time() -> None:
    day = Day()
    day.alarm.set(1e9 + 100.0, day.ring)
    day.alarm.set(1e9 - 5.0, day.ring)
    assert day.rang_s == []
    day.goes_on_to(200.0)
    assert day.rang_s == [0.0]


def test_what_is_to_come_in_some_seconds_comes_then_whatever_the_calendar_says() -> None:
    day = Day()
    day.alarm.set_in(5.0, day.ring)
    day.slow_s = 3600.0  # it is set back
    day.goes_on_to(60.0)
    assert day.rang_s == [5.0]
