"""Startup profile of a node's ranks: reads what they noted, and tells the controller, few times and little.

While ranks start it tells what is known after 10 s and then ever more rarely; at last when all have made their first step, or
the attempt ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.start_notes import Starts
from robust_run.report.startup.types import MOST_RANKS, Fetch, NodeStart, RankMarks
from robust_run.tracer.files import marks
from robust_run.tracer.files.steps import MARKS_SUFFIX
from robust_run.tracer.files.steps import read as read_steps

if TYPE_CHECKING:
    import asyncio

    from robust_run.launcher.agent.node import Node
    from robust_run.launcher.agent.workers.workers import Worker

#: How often the ranks' files are looked at.
LOOK_S = 0.25
#: When it is first told of ranks that still start, and the longest time until that is told again.
FIRST_TELL_S, RAREST_TELL_S = 10.0, 120.0
#: Of /proc/PID/stat, counted after the command's name: when the process was started, in ticks since boot.
_STARTED_FIELD = 19


def started_s(pid: int, ticks_per_s: int = 0) -> float | None:
    """Return when a process was started, as time of the monotonic clock to 10 ms; None if that cannot be known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read(4096).rpartition(b")")[2].split()
        since_boot_s = int(fields[_STARTED_FIELD]) / (ticks_per_s or os.sysconf("SC_CLK_TCK"))
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot_s
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return time.monotonic() - max(age_s, 0.0)


class StartedRank(Protocol):
    """An attempt of which the ranks have been started."""

    number: int
    started_at_s: float
    workers: list[Worker]


class StartWatch:
    """The start of one attempt's ranks on this node."""

    def __init__(self, attempt: StartedRank, node: Node, how: Sequence[str], deliver: Callable[[Any], None]) -> None:
        """`how`: by local rank, how the workers were started."""
        self._node = node
        self._deliver = deliver
        self._ranks = tuple(worker.rank for worker in attempt.workers[:MOST_RANKS])
        self._how = dict(zip(self._ranks, how, strict=False))
        self._pids = {worker.rank: worker.pid for worker in attempt.workers}
        self._attempt, self._began_s = attempt.number, attempt.started_at_s
        place = node.workplace
        self._opening, place.opening = place.opening, None  # it is part of the first start alone
        self._kind = place.place.kind if place.place is not None else ""
        self._launched_s = None if place.has_begun else started_s(node.run_directory.guard)
        self._ready_s = place.ready_s
        self._came_before = place.came_before
        place.has_begun = True
        self._uses = (
            *uses_of(node.spec),
            *(place.place.uses if place.place is not None else ()),
            *(("warm-process",) if node.daemon_pid else ()),
        )
        self._first_steps: dict[int, float] = {}
        self._tell_at_s, self._again_s = self._began_s + FIRST_TELL_S, FIRST_TELL_S
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look from now on."""
        self._loop = loop
        self._timer = loop.call_later(LOOK_S, self._look)

    def stop(self) -> None:
        """The attempt is being ended: tell what is known, if it has not been told."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_over:
            self._is_over = True
            self._node.looking.run(lambda: self._tell(is_last=True))

    def _look(self) -> None:
        if self._node.looking.run(self._look_now) and not self._is_over and self._loop is not None:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look_now(self) -> None:
        self._count_steps()
        now_s = self._node.clock.monotonic_s()
        if len(self._first_steps) == len(self._ranks):
            self._is_over = True
            self._tell(is_last=True)
        elif now_s >= self._tell_at_s:
            self._again_s = min(2.0 * self._again_s, RAREST_TELL_S)
            self._tell_at_s = now_s + self._again_s
            self._tell(is_last=False)

    def _count_steps(self) -> None:
        for rank in self._ranks:
            if rank not in self._first_steps:
                count = read_steps(self._file(rank))
                if count is not None and count.first_step_monotonic_s is not None:
                    self._first_steps[rank] = count.first_step_monotonic_s

    def _file(self, rank: int) -> str:
        return self._node.run_directory.steps_file(self._attempt, rank)

    def _tell(self, *, is_last: bool) -> None:
        self._count_steps()
        opening = self._opening
        self._deliver(
            Starts(
                start=NodeStart(
                    attempt=self._attempt,
                    seen_s=self._node.clock.monotonic_s(),
                    began_s=self._began_s,
                    launched_s=self._launched_s,
                    place="image" if self._kind == "image" else "snapshot" if self._kind == "setup" else "",
                    place_began_s=opening.began_s if opening is not None else 0.0,
                    place_ended_s=opening.ended_s if opening is not None else 0.0,
                    fetches=self._fetches(),
                    ready_s=self._ready_s,
                    uses=self._uses,
                    ranks=tuple(map(self._rank, self._ranks)),
                    is_last=is_last,
                )
            )
        )

    def _fetches(self) -> tuple[Fetch, ...]:
        since_s = self._began_s if self._came_before is not None else 0.0
        from robust_run.launcher.agent.fetch_rows import rows

        return rows(self._node.fetches_of_checkpoint, self._came_before, since_s)

    def _rank(self, rank: int) -> RankMarks:
        noted = marks.read(f"{self._file(rank)}{MARKS_SUFFIX}")
        first_step_s, how, count = self._first_steps.get(rank), self._how.get(rank, ""), read_bytes(self._pids[rank])
        if noted is None:
            return RankMarks(rank, how, first_step_s=first_step_s, read_bytes=count)
        return RankMarks(rank, how, noted.armed_s, noted.spans, noted.open_kind, noted.opened_s, first_step_s, count)


def read_bytes(pid: int) -> int:
    """Return what a process has read from disks since its start; -1 if that cannot be known."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii", errors="replace") as file:
            fields = dict(line.partition(":")[::2] for line in file.read(4096).splitlines())
        return int(fields["read_bytes"])
    except (OSError, ValueError, KeyError):
        return -1


def watch_start(
    attempt: StartedRank, node: Node, how: Sequence[str], deliver: Callable[[Any], None]
) -> StartWatch | None:
    """Return what looks at an attempt's start; None where nothing is noted."""
    if not attempt.workers:
        return None
    if not os.path.exists(f"{node.run_directory.steps_file(attempt.number, attempt.workers[0].rank)}{MARKS_SUFFIX}"):
        return None  # ROBUST_TRACE=0, ROBUST_STARTUP=0, or no Python
    return StartWatch(attempt, node, how, deliver)


def uses_of(spec: JobSpec) -> tuple[str, ...]:
    """Return the names of what is in use that makes starts shorter or longer; of a place only it knows. Pure."""
    given = {
        "prefetch-env": spec.prefetch_env,
        "no-warm": not spec.warm,
        "preload-auto": spec.preload_auto,
        "ckpt-dir": spec.ckpt_dir is not None,
    }
    return tuple(name for name, is_given in given.items() if is_given)
