"""Startup profile of a job: gathers what all nodes tell, writes startup.json, and says one sentence for each attempt.

It is gathered in memory and written when all nodes have told their last, or a while after the first did. Nothing of it decides
anything, and a fault in it ends only this.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from robust_run.clock import Clock
from robust_run.errors import RobustRunError
from robust_run.harmless import Harmless
from robust_run.launcher.core.membership import name_of
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.links import Timer
from robust_run.launcher.records.incidents import IncidentBook
from robust_run.report.files import startup as file
from robust_run.report.startup import words
from robust_run.report.startup.advise import advise
from robust_run.report.startup.summarise import summarise, with_attempt
from robust_run.report.startup.types import AttemptStartup, NodeStart, SchedulerQueue, Startup

#: How long nodes that have not told their last are waited for.
WRITE_S = 2.0
#: How long the sentence waits for ranks that have not made their first step, once one has.
SAY_S = 15.0
#: How long all waits for what Slurm says of the queue, and how often that is looked at.
QUEUE_S, QUEUE_LOOK_S = 5.0, 0.25


class StartBook:
    """The starts of one job, as this controller sees them."""

    def __init__(
        self, state: JobState, book: IncidentBook, clock: Clock, later: Callable[[float, Callable[[], None]], Timer]
    ) -> None:
        self._state = state
        self._directory, self._complain = book.run_directory, book.complain
        self._clock = clock
        self._later = later
        self._say = book.say
        self._harmless = Harmless("startup.json", book.say)
        self._startup = self._load()
        self._first = state.attempt
        """The first attempt that this controller hears of: what launchers did before belongs to it."""
        self._attempt = -1
        self._starts: dict[str, NodeStart] = {}
        """Of that attempt, by agent."""
        self._timer: Timer | None = None
        self._first_step_at_s: float | None = None
        self._said: set[int] = {each.attempt for each in self._startup.attempts if each.stepped_ranks}
        self._queue: SchedulerQueue | None = None
        self._asking: threading.Thread | None = None
        self._asked_until_s = clock.monotonic_s() + QUEUE_S
        self._ask_queue()

    def _load(self) -> Startup:
        """Return what an earlier controller wrote."""
        name = os.path.basename(self._directory.path)
        try:
            return file.read(self._directory.startup) or Startup(run_id=name)
        except RobustRunError as error:
            self._say(f"{error}; it begins anew")
            return Startup(run_id=name)

    def _ask_queue(self) -> None:
        from robust_run.launcher.controller import queue_time as queue

        if not queue.in_slurm() or self._first > 0:
            return

        def within() -> None:
            self._queue = queue.ask(os.environ)

        self._asking = threading.Thread(target=within, daemon=True)
        self._asking.start()

    def take(self, node: str, start: NodeStart) -> None:
        """Take in what a node tells."""
        self._harmless.run(lambda: self._take(node, start))

    def _take(self, node: str, start: NodeStart) -> None:
        import msgspec

        if start.attempt != self._attempt:
            if start.attempt < self._attempt or start.attempt > max(self._state.attempt, 0):
                return
            self._write()
            self._attempt, self._starts, self._first_step_at_s = start.attempt, {}, None
        name = name_of(self._state, node) or node
        self._starts[node] = msgspec.structs.replace(start, node=name)
        if self._first_step_at_s is None and any(rank.first_step_s is not None for rank in start.ranks):
            self._first_step_at_s = self._clock.monotonic_s()
        if len(self._starts) >= len(self._state.layout) and all(each.is_last for each in self._starts.values()):
            if self._timer is not None:
                self._timer.cancel()
            self._at_last()
        elif self._timer is None:
            self._timer = self._later(WRITE_S, self._at_last)

    def _at_last(self) -> None:
        self._timer = None
        if self._asking is not None and self._asking.is_alive() and self._clock.monotonic_s() < self._asked_until_s:
            self._timer = self._later(QUEUE_LOOK_S, self._at_last)
            return
        self._harmless.run(self._write)

    def flush(self) -> None:
        """Write what is known, if that has not been done: the job is over."""
        if self._timer is not None:
            self._harmless.run(self._write)

    def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        layout = self._state.layout
        found = summarise(
            list(self._starts.values()),
            world_size=self._state.world_size,
            nodes=max(len(layout), 1),
            unix_offset_s=self._clock.unix_s() - self._clock.monotonic_s(),
            is_first=self._attempt == self._first,
            queue=self._queue,
        )
        if found is None:
            return
        self._startup = with_attempt(self._startup, found)
        try:
            file.write(self._directory.startup, self._startup)
        except OSError as error:
            self._complain(self._directory.startup, error)
        self._tell(found)

    def _tell(self, found: AttemptStartup) -> None:
        """Say where the time went, once all ranks have made a step or those that have not were waited for."""
        since_s = self._first_step_at_s
        if found.attempt in self._said or since_s is None:
            return
        left_s = SAY_S - (self._clock.monotonic_s() - since_s)
        if found.stepped_ranks < found.ranks and not found.complete and left_s > 0:
            self._timer = self._timer or self._later(left_s, self._at_last)
            return
        self._said.add(found.attempt)
        self._say(words.sentence(found))
        if found.attempt == self._first and (line := words.advice_line(advise(self._startup), found.total_s)):
            self._say(line)
