"""Nodes of a job that failed in earlier jobs: people are told, in one line, with the commands that check one or take it out.

They are told, and nothing else. Suspicion in the core (`health.ladder.suspicion`) decides when nodes are checked, who of several
is taken out for a hang, and who goes that was blamed again and again. With a past as a part of it, a healthy node with a bad name
would be taken out in place of the neighbour that failed, and innocent restarts would have a job's nodes checked. So it has no
place there, and the core does not know of it; who wants a node out for its past says so (`robust evict`, `--evict-list`).

The folder is read by a thread, once the first attempt has been started: a slow file server holds up no lease and no worker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from robust_run.clock import Clock
from robust_run.fleet.found import Found
from robust_run.fleet.remembered import Remembered, remembered
from robust_run.harmless import Harmless
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.events import AttemptStarted, Event
from robust_run.report.summary import duration

#: Of the memory so many runs are read.
MOST_RUNS = 1000
MOST_TOLD = 4


class RememberedNodes:
    """Looks once, when the job has begun to run."""

    def __init__(
        self,
        read: Callable[[], Found],
        clock: Clock,
        say: Callable[[str], None],
        in_loop: Callable[[Callable[[], None]], object],
        run: str,
    ) -> None:
        """`read`: the folder's memory; raises nothing, may take long. `in_loop`: has the event loop call, from any thread; raises
        RuntimeError once that is over. `run`: as people name the run in commands.
        """
        self._read, self._clock, self._say, self._in_loop, self._run = read, clock, say, in_loop, run
        self._harmless = Harmless("looking for nodes that failed in earlier jobs", say)
        self._has_looked = False

    def after(self, event: Event, state: JobState) -> None:
        """Take note of an event: at the first start, look for the job's nodes."""
        if self._has_looked or not isinstance(event, AttemptStarted):
            return
        self._has_looked = True
        nodes = frozenset(member.info.name for member in state.members.values())
        threading.Thread(target=lambda: self._look(nodes), name="remembered nodes", daemon=True).start()

    def _look(self, nodes: frozenset[str]) -> None:
        """In a thread: find what is remembered, and have it told."""

        def look() -> None:
            found = remembered(self._read().facts, nodes, self._clock.unix_s())
            if found:
                line = words_of(found, self._run, self._clock.unix_s())
                with suppress(RuntimeError):  # the job is over by now
                    self._in_loop(lambda: self._say(line))

        self._harmless.run(look)


def words_of(found: tuple[Remembered, ...], run: str, now_s: float) -> str:
    """Return what people are told of nodes with a past."""
    first = found[0].node
    named = ", ".join(
        f"{each.node} ({each.failures} times, the last {duration(now_s - each.last_s)} ago: {each.kind})"
        for each in found[:MOST_TOLD]
    )
    more = f" and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
    return (
        f"failed in earlier jobs: {named}{more}. They are used like all others; robust evict {first} {run} takes one out, and "
        f"robust check on it, when no job trains there, says whether it is sound"
    )
