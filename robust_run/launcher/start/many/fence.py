"""Fencing: the lease of an agent, and the two fences that end its workers when it runs out.

The controller counts a node as lost `LeaseTimes.lost_s` after its last sign of life, and starts a replacement then. How long the
lease is it says with each answer; the longest that it granted and that may still hold counts, on both sides. So the
workers here must be dead by that time, whatever happened:

1. The agent ends them when its lease is over (`Lease`). It is renewed from the moment a heartbeat was sent that the controller
   answered, so no clock of another machine and no travel time is involved.
2. The agent may be stopped or stuck itself. The guard, which does nothing else, looks at the same time in shared memory and
   kills the workers a moment later (`second_fence`). An agent that is awake and kills them is given the time it takes until
   they are gone: all machines of a job may have stood still and go on at once (`scontrol suspend`), busy as never.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterable

from robust_run.launcher.model.lease_times import GUARD_AFTER_S, LeaseTimes

#: How long after its fence an agent may take until its workers are gone: those with memory of a device do not go at once.
ENDING_S = 5.0

#: Processes that the guard must spare: there are two or three.
MOST_SPARED = 16


class Cell:
    """A time in memory that guard and agent share; 0 is never. Made before the agent is forked.

    Each number is read and written as one word of the machine, so none is ever seen half written.
    """

    def __init__(self) -> None:
        memory = memoryview(mmap.mmap(-1, mmap.PAGESIZE))
        self._at_s = memory[:8].cast("d")
        self._spared = memory[8 : 8 * (MOST_SPARED + 1)].cast("q")

    def set(self, at_s: float) -> None:
        """Note when the agent must have ended its workers (monotonic clock)."""
        self._at_s[0] = at_s

    def is_over(self, now_s: float) -> bool:
        """Whether the agent has missed that time."""
        return 0.0 < self._at_s[0] < now_s - GUARD_AFTER_S

    def spare(self, pids: Iterable[int]) -> None:
        """Note which children of the agent are no part of an attempt: the guard kills all others when that time is over."""
        for place, pid in enumerate((*pids, *[0] * MOST_SPARED)[:MOST_SPARED]):
            self._spared[place] = pid

    def spared(self) -> Collection[int]:
        """Return them."""
        return {pid for pid in self._spared if pid}


class Lease:
    """Until when this agent may let workers run. Pure but for the cell it keeps up to date."""

    def __init__(self, cell: Cell) -> None:
        self.renewed_s: float | None = None
        """The moment from which the newest renewal counts; None: never renewed."""
        self.until_s: float | None = None
        """When workers must not run any more, by the longest that was granted; None: never granted."""
        self.times = LeaseTimes(0.0)
        """As granted last."""
        self._cell = cell
        self._sent: dict[int, float] = {}
        self._guarded = False
        self._fenced_for_s: float | None = None

    def sent(self, number: int, now_s: float) -> None:
        """Note when a heartbeat was sent."""
        self._sent[number] = now_s

    def answered(self, number: int, lease_s: float = 0.0) -> None:
        """Renew the lease from when that heartbeat was sent. `lease_s`: its length from now on; 0: as before."""
        at_s = self._sent.get(number)
        if at_s is not None:
            if lease_s > 0:
                self.times = LeaseTimes(lease_s)
            self._sent = {key: value for key, value in self._sent.items() if key > number}
            self.renew(at_s)

    def renew(self, at_s: float) -> None:
        """Renew from a moment at which no controller can have given this node up."""
        if self.renewed_s is None or at_s > self.renewed_s:
            self.renewed_s = at_s
        until_s = at_s + self.times.lease_s
        if self.until_s is None or until_s > self.until_s:
            self.until_s = until_s
            self._note()

    def fenced(self, now_s: float) -> None:
        """Note that the agent is awake and kills its workers, at each look; the first counts."""
        if self._guarded and self.until_s is not None and self._fenced_for_s != self.until_s:
            self._fenced_for_s = self.until_s
            self._cell.set(now_s + ENDING_S)

    def guard(self, running: bool) -> None:
        """Have the guard watch, as long as workers may run."""
        self._guarded = running
        self._note()

    def forget(self) -> None:
        """The connection is over: heartbeats on their way are not answered any more."""
        self._sent.clear()

    def silent_s(self, now_s: float) -> float:
        """Return how long ago the newest renewal counts from; 0 if there was none."""
        return 0.0 if self.renewed_s is None else now_s - self.renewed_s

    def is_over(self, now_s: float) -> bool:
        """Whether workers must not run any more."""
        return self.until_s is not None and now_s >= self.until_s

    def _note(self) -> None:
        self._cell.set(self.until_s if self._guarded and self.until_s is not None else 0.0)
