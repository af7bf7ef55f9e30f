"""Connections of which it is not known yet whether they know the job's secret: few, and none for long."""

from __future__ import annotations

import asyncio

from robust_run.launcher.control.strangers import Strangers
from robust_run.orchestrator.connection import Worker

#: Who has not proven itself after so long is sent away.
PATIENCE_S = 5.0
MOST_UNPROVEN = 256


class Entrance:
    """Of one port. One event loop."""

    def __init__(self) -> None:
        self._strangers: Strangers[Worker] = Strangers()

    def came(self, worker: Worker) -> None:
        """Somebody has connected. Where that is one too many, the oldest of the address with most has to go."""
        if len(self._strangers) >= MOST_UNPROVEN:
            self._send_away(self._strangers.first_to_go())
        self._strangers.add(worker, worker.host)
        asyncio.get_running_loop().call_later(PATIENCE_S, self._send_away, worker)

    def _send_away(self, worker: Worker) -> None:
        if worker in self._strangers:
            self._strangers.remove(worker)
            worker.end()

    def passed(self, worker: Worker) -> None:
        """It has proven itself, or hung up."""
        if worker in self._strangers:
            self._strangers.remove(worker)

    def close(self) -> None:
        """Hang up on all."""
        for worker in self._strangers.all():
            self._send_away(worker)
