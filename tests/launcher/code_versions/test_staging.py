"""How long an update waits: its timer, and what becomes of that when somebody names another time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stories import Story, one_node

from robust_run.launcher.controller.code.staging import Staging
from robust_run.launcher.model.code_events import CodeCaptured, CodeVersion, UpdateDue, UpdateStaged


class Waiting:
    """A controller with one pending update, and a clock that a test turns."""

    def __init__(self) -> None:
        self.story: Story = one_node()
        self.unix_s = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.told: list[Any] = []
        self.staging = Staging(self.story.state, lambda *_: None, self.told.append, self._later, lambda: self.unix_s)
        self.story.happens(CodeCaptured(version=CodeVersion(number=1, tree="a" * 64)))

    def _later(self, after_s: float, then: Callable[[], None]) -> None:
        self.timers.append((self.unix_s + after_s, then))

    def wants(self, due_unix_s: float) -> None:
        event = UpdateStaged(version=CodeVersion(number=2, tree="b" * 64, parents=(1,)), due_unix_s=due_unix_s)
        self.story.happens(event)
        self.staging.after(event)

    def is_due_at(self, unix_s: float) -> bool:
        self.unix_s = unix_s
        ready = [each for each in self.timers if each[0] <= unix_s]
        self.timers = [each for each in self.timers if each[0] > unix_s]
        for _, then in ready:
            then()
        return self.told == [UpdateDue(number=2)]


def test_an_update_is_due_when_its_time_has_come_and_once() -> None:
    waiting = Waiting()
    waiting.wants(100.0)
    assert not waiting.is_due_at(99.0)
    assert waiting.is_due_at(100.0)
    assert waiting.is_due_at(5000.0)


def test_an_earlier_time_counts_at_once_and_a_later_one_too() -> None:
    waiting = Waiting()
    waiting.wants(2000.0)
    waiting.wants(100.0)
    assert waiting.is_due_at(100.0)
    other = Waiting()
    other.wants(100.0)
    other.wants(2000.0)
    assert not other.is_due_at(1999.0)
    assert other.is_due_at(2000.0)


def test_one_that_is_to_wait_for_a_failure_is_never_due() -> None:
    waiting = Waiting()
    waiting.wants(100.0)
    waiting.wants(0.0)
    assert not waiting.is_due_at(1e9)
    assert waiting.told == []
