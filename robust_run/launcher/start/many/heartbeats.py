"""An agent's heartbeats: each says how late this process is, and its answer renews the lease from when it was sent."""

from __future__ import annotations

import asyncio

from robust_run.clock import Clock
from robust_run.launcher.agent.agent import Agent
from robust_run.launcher.control.client import Connection
from robust_run.launcher.control.messages import Heartbeat
from robust_run.launcher.start.many.fence import Lease
from robust_run.launcher.start.many.lease_watch import LeaseWatch


class Heartbeats:
    """Sends them over one connection after the other."""

    def __init__(self, agent: Agent, lease: Lease, watch: LeaseWatch, clock: Clock) -> None:
        self._agent = agent
        self._lease = lease
        self._watch = watch
        self._clock = clock
        self._number = 0
        self._connection: Connection | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, connection: Connection) -> None:
        """Send one now, and on as often as this controller wants, until `stop`."""
        self._connection = connection
        self._number += 1
        now_s = self._clock.monotonic_s()
        self._lease.sent(self._number, now_s)
        late_s = round(self._watch.late_s(now_s), 3)
        connection.send(Heartbeat(number=self._number, now_s=now_s, usage=self._agent.usage(), late_s=late_s))
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(connection.welcome.heartbeat_s, self.start, connection)

    def now(self) -> None:
        """Send the next one at once."""
        connection = self._connection
        self.stop()
        if connection is not None:
            self.start(connection)

    def stop(self) -> None:
        """Send no more over this connection."""
        self._connection = None
        if self._timer is not None:
            self._timer.cancel()
