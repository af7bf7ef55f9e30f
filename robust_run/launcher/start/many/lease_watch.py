"""Watchdog of an agent's lease: it ends the workers when the lease is over, and says for how long the controller is silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from robust_run.clock import Clock
from robust_run.launcher.agent.agent import Agent
from robust_run.launcher.control.client import Connection
from robust_run.launcher.core.lateness import Lateness
from robust_run.launcher.start.many.fence import Lease

#: How often the lease is looked at.
LOOK_S = 0.05
#: Looks further apart than this mean that this process was held up, so that silence proves nothing.
HELD_UP_S = 0.5


class LeaseWatch:
    """Looks at the lease, from `start` on and as long as the event loop runs."""

    def __init__(
        self,
        agent: Agent,
        lease: Lease,
        clock: Clock,
        connection: Callable[[], Connection | None],
        on_silence: Callable[[str, float], None],
    ) -> None:
        """`connection`: the one that there is now. `on_silence`: told where the controller is, and for how long it is silent."""
        self.looks_elsewhere = False
        """Whether another node may take the controller over."""
        self._agent = agent
        self._lease = lease
        self._clock = clock
        self._connection = connection
        self._on_silence = on_silence
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looked_at_s: float | None = None
        self._awake_since_s = 0.0
        self._lateness = Lateness()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look now, and again and again."""
        self._loop = loop
        self._look()

    def late_s(self, now_s: float) -> float:
        """Return by how much this process's looks were late at worst in the last minute."""
        return self._lateness.worst_s(now_s)

    def fence(self) -> None:
        """The controller may give this node's place to another from now on."""
        silent_s = self._lease.silent_s(self._clock.monotonic_s())
        self._agent.fence(silent_s)
        self._hang_up(silent_s)

    def _look(self) -> None:
        assert self._loop is not None
        now_s = self._clock.monotonic_s()
        if self._lease.is_over(now_s):
            self.fence()
            self._lease.fenced(now_s)
        self._mind_silence(now_s)
        self._loop.call_later(LOOK_S, self._look)

    def _mind_silence(self, now_s: float) -> None:
        """Say for how long the controller has been silent, as far as it is not this process that was held up."""
        if self._looked_at_s is not None:
            self._lateness.note(now_s - self._looked_at_s - LOOK_S, now_s)
        if self._looked_at_s is None or now_s - self._looked_at_s > HELD_UP_S:
            self._awake_since_s = now_s
        self._looked_at_s = now_s
        silent_s = min(self._lease.silent_s(now_s), now_s - self._awake_since_s)
        connection = self._connection()
        self._on_silence(connection.where if connection is not None else "", silent_s)
        if self.looks_elsewhere and silent_s > self._lease.times.look_elsewhere_s:
            self._hang_up(silent_s)

    def _hang_up(self, silent_s: float) -> None:
        connection = self._connection()
        if connection is not None:
            connection.abort(f"the controller did not answer for {silent_s:.1f} s")
