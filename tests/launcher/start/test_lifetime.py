"""How long a job has lived, when the wall clock of who says so was set."""

from __future__ import annotations

from robust_run.launcher.start.controller_records import Lifetime


class Clock:
    def __init__(self) -> None:
        self.now_s, self.ahead_s = 50.0, 1e9

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s + self.ahead_s


def test_a_clock_that_is_set_makes_a_job_no_older_and_no_younger() -> None:
    clock = Clock()
    lifetime = Lifetime(clock)
    clock.now_s += 20.0
    clock.ahead_s -= 3600.0
    assert lifetime.of_job_s(started_unix_s=1e9 + 50.0) == 20.0


def test_what_earlier_controllers_led_counts() -> None:
    clock = Clock()
    lifetime = Lifetime(clock)
    clock.now_s += 20.0
    assert lifetime.of_job_s(started_unix_s=1e9 - 50.0) == 120.0


def test_a_job_that_was_started_by_a_clock_that_is_ahead_has_lived_as_long_as_this_controller() -> None:
    clock = Clock()
    lifetime = Lifetime(clock)
    clock.now_s += 20.0
    assert lifetime.of_job_s(started_unix_s=1e9 + 90_000.0) == 20.0
