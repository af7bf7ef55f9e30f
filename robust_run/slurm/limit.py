"""The time limit of a job whose parts are not a launcher's: it is warned in time, and told to end while it can be requeued.

start ──► EndTime? ──► --warn-before seconds earlier: still so? ──► warning ──► deadline: still so? ──► the job is told to end

What `watch` does for the launcher's own jobs, for jobs of several roles. Slurm is asked in threads that nobody waits for.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from robust_run.atomic_file import write_file
from robust_run.launcher.agent.workers.environment import warning_file
from robust_run.launcher.model.job_parts import SlurmUse
from robust_run.slurm.rules import limits
from robust_run.slurm.rules.reasons import is_over
from robust_run.slurm.rules.types import Reason, SlurmJobFacts, Warned
from robust_run.slurm.scontrol import Answer, job_facts

#: After the start, which has better things to do; a question that was not answered is asked again.
FIRST_LOOK_S, ASK_AGAIN_S = 2.0, 5.0
#: Between the questions of two nodes, and at most.
SPREAD_S, LONGEST_SPREAD_S = 0.01, 10.0
#: How long members have to end after SIGTERM.
SHUTDOWN_S = 30.0
#: The calendar is looked at so often at least.
LOOK_S = 15.0


class CalendarAlarm:
    """An alarm for a time of the calendar, as Slurm's limits are: when a clock is set, it goes off by what the clock says then.

    A timer of the event loop that was set for hours while a clock was five minutes slow would go off five minutes after the
    limit, with the clock long put right. Setting an alarm again replaces what it was set for. `unix_s`: seconds since the epoch.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, unix_s: Callable[[], float] = time.time) -> None:
        self._loop, self._unix_s = loop, unix_s
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at_unix_s: float, call: Callable[[], object]) -> None:
        """Call then; at once, from the event loop, where that is over."""
        self.cancel()
        self._wait(at_unix_s, call)

    def set_in(self, delay_s: float, call: Callable[[], object]) -> None:
        """Call so much later, whatever the calendar says then."""
        self.cancel()
        self._timer = self._loop.call_later(delay_s, self._ring, call)

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
            self._ring(call)

    def _ring(self, call: Callable[[], object]) -> None:
        self._timer = None
        call()


class TimeLimit:
    """One node's view of it. `folder`: the run directory here; `end`: ends the job, None on nodes that do not lead it."""

    def __init__(
        self,
        use: SlurmUse,
        folder: str,
        env: Mapping[str, str],
        say: Callable[[str], None],
        end: Callable[[], None] | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._use, self._env, self._say, self._end, self._loop = use, env, say, end, loop
        self.path = warning_file(folder, use)
        """Where workers look for a warning."""
        self._alarm = CalendarAlarm(loop)
        self._is_warned = False
        loop.call_later(FIRST_LOOK_S, self._ask, self._learn)

    def signalled(self, name: str) -> None:
        """The user's signal came, which Slurm sends before the limit, or somebody by hand."""
        self._ask(lambda facts, _: self._warned_by(name, facts))

    def _ask(self, then: Callable[[SlurmJobFacts | None, Answer], None]) -> None:
        def within() -> None:
            found = job_facts(self._use.job, self._env)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(then, *found)

        def start() -> None:
            threading.Thread(target=within, name="slurm", daemon=True).start()

        self._loop.call_later(min(LONGEST_SPREAD_S, self._use.node_id * SPREAD_S), start)

    def _at(self, unix_s: float, then: Callable[[SlurmJobFacts | None, Answer], None]) -> None:
        """Ask then, and go on with the answer."""
        self._alarm.set(unix_s, lambda: self._ask(then))

    def _learn(self, facts: SlurmJobFacts | None, answer: Answer) -> None:
        end_unix_s = facts.end_unix_s if facts is not None else self._use.end_unix_s
        if facts is not None and is_over(facts):
            return
        if end_unix_s is not None:
            self._at(end_unix_s - self._use.warn_before_s, self._near)
        elif facts is None and not answer.is_missing:
            self._alarm.set_in(ASK_AGAIN_S, lambda: self._ask(self._learn))
        elif facts is None and self._use.node_id == 0:
            self._say(
                "there is no scontrol here (a container?): the time limit is not known and the job cannot be requeued"
            )

    def _near(self, facts: SlurmJobFacts | None, answer: Answer) -> None:
        end_unix_s = facts.end_unix_s if facts is not None else self._use.end_unix_s
        if facts is not None and is_over(facts):
            return  # its EndTime is when it was ended
        if end_unix_s is None or limits.is_far(self._use, end_unix_s, time.time()):
            self._moved(facts, answer)
            return
        self._limit(facts, end_unix_s, "")
        if facts is None and not answer.is_missing and self._end is not None:
            # whether it may be requeued, and so is ended in time, is still to be heard
            self._alarm.set_in(ASK_AGAIN_S, lambda: self._ask(self._near))

    def _warned_by(self, name: str, facts: SlurmJobFacts | None) -> None:
        end_unix_s = facts.end_unix_s if facts is not None else self._use.end_unix_s
        if facts is not None and is_over(facts):
            return
        if end_unix_s is not None and limits.is_meant(self._use, end_unix_s, time.time()):
            self._limit(facts, end_unix_s, name)
        else:
            self._warn("warned", end_unix_s, name, f"{name}: workers are warned")

    def _limit(self, facts: SlurmJobFacts | None, end_unix_s: float, by: str) -> None:
        found = limits.limit(self._use, facts, end_unix_s, SHUTDOWN_S, time.time())
        self._warn("time_limit", found.deadline_unix_s, by, found.text)
        if found.goes_on and self._end is not None:
            self._at(found.deadline_unix_s, self._deadline)

    def _deadline(self, facts: SlurmJobFacts | None, answer: Answer) -> None:
        """Time is over, unless the limit was moved."""
        if facts is not None and is_over(facts):
            return
        end_unix_s = facts.end_unix_s if facts is not None else self._use.end_unix_s
        if facts is not None and (end_unix_s is None or limits.is_far(self._use, end_unix_s, time.time())):
            self._moved(facts, answer)
        elif self._end is not None:
            self._end()

    def _moved(self, facts: SlurmJobFacts | None, answer: Answer) -> None:
        """Plan anew; take the warning back, if there was one."""
        if self._is_warned:
            self._is_warned = False
            with suppress(OSError):
                os.unlink(self.path)
            self._say("the time limit was moved, the job goes on")
        self._learn(facts, answer)

    def _warn(self, reason: Reason, deadline: float | None, by: str, text: str) -> None:
        is_first, self._is_warned = not self._is_warned, True
        warned = Warned(reason=reason, deadline=deadline, at=time.time(), signal=by, text=text)
        try:
            write_file(self.path, msgspec.json.encode(warned) + b"\n")
        except OSError as error:
            self._say(f"the warning could not be written to {self.path}: {error.strerror}")
        if is_first and self._end is not None:
            self._say(text)
