"""Alarm for a time of the calendar, as Slurm's limits are. When a clock is set, it goes off by what the clock says then.

The event loop's own timers count seconds. One that was set for hours while a clock was five minutes slow would go off five
minutes after the limit, with the clock long put right.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

#: The clock is looked at so often at least.
LOOK_S = 15.0


class CalendarAlarm:
    """One alarm; setting it again replaces what it was set for. `unix_s`: seconds since the epoch."""

    def __init__(self, loop: asyncio.AbstractEventLoop, unix_s: Callable[[], float] = time.time) -> None:
        self._loop, self._unix_s = loop, unix_s
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at_unix_s: float, call: Callable[[], object]) -> None:
        """Call then; at once, from the event loop, where that is over."""
        self.cancel()
        self._wait(at_unix_s, call)

    def cancel(self) -> None:
        """Call nothing."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _wait(self, at_unix_s: float, call: Callable[[], object]) -> None:
        left_s = max(at_unix_s - self._unix_s(), 0.0)
        self._timer = self._loop.call_later(min(left_s, LOOK_S), self._look, at_unix_s, call)

    def _look(self, at_unix_s: float, call: Callable[[], object]) -> None:
        if self._unix_s() < at_unix_s:
            self._wait(at_unix_s, call)
        else:
            self._timer = None
            call()
