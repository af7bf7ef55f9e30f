"""Writes the course of a job down while it runs. Whatever goes wrong here is said once, and the job goes on without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from robust_run.clock import Clock
from robust_run.harmless import Harmless
from robust_run.orchestrator.course import files
from robust_run.orchestrator.queue.book import QueueBook
from robust_run.orchestrator.rules.course_points import Course, CoursePoint, added, fill_of, point_of
from robust_run.orchestrator.rules.idle import IdleBook

#: The file is written so often at most, and when the job ends.
WRITE_S = 5.0
#: Looking takes at most this share of the leader's time.
MOST_SHARE = 0.02


class CourseRecorder:
    """Of one job, in its leader's event loop. `folder`: its run directory."""

    def __init__(
        self, folder: str, clock: Clock, queues: QueueBook, idle: IdleBook, say: Callable[[str], None]
    ) -> None:
        self._folder, self._clock, self._queues, self._idle = folder, clock, queues, idle
        self._course = Course()
        self._before: CoursePoint | None = None
        self._written_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._harmless = Harmless("keeping how full queues are", say)

    def start(self) -> None:
        """Begin, or go on where an earlier leader was killed."""
        self._course = files.read(self._folder)
        self._before = self._course.points[-1] if self._course.points else None
        self._written_s = self._clock.monotonic_s()
        self._later(self._course.apart_s)

    def close(self) -> None:
        """Take a last look, and write what is not written."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._harmless.run(self._add)
            self._harmless.run(self._write)

    def _later(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        began_s = self._clock.monotonic_s()
        is_well = self._harmless.run(self._add)
        if self._clock.monotonic_s() - self._written_s >= WRITE_S:
            is_well = self._harmless.run(self._write)
        took_s = self._clock.monotonic_s() - began_s
        if is_well:
            self._later(max(self._course.apart_s, took_s / MOST_SHARE))

    def _add(self) -> None:
        queues = {name: fill_of(queue.state) for name, queue in self._queues.queues.items()}
        members = self._idle.totals(self._clock.monotonic_s())
        self._course = added(self._course, point_of(self._clock.unix_s(), queues, members, self._before))

    def _write(self) -> None:
        self._written_s = self._clock.monotonic_s()
        with suppress(OSError):  # the page has less to show
            files.write(self._folder, self._course)
