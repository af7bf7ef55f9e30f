"""What an agent does that lost its controller: wait until somebody newer leads."""

from __future__ import annotations

import asyncio

from robust_run.launcher.controller.leadership.coordinator import Coordinator
from robust_run.launcher.controller.leadership.tenure import Sleep
from robust_run.launcher.controller.leadership.types import CoordinatorUnreachable, LeaderRecord


async def wait_for_leader(
    coordinator: Coordinator, newer_than: int, every_s: float, sleep: Sleep = asyncio.sleep
) -> LeaderRecord:
    """Return the leader as soon as its term is above `newer_than`. Waits for ever: the caller knows when to give up.

    With N agents, the coordinator is asked N / every_s times a second. Raises JobFinished and CoordinatorRefused.
    """
    while True:
        try:
            record = await coordinator.leader()
        except CoordinatorUnreachable:
            record = None
        if record is not None and record.term > newer_than:
            return record
        await sleep(every_s)
