"""Reads wake chains in threads that can be given up: memory on a file system that does not answer blocks its reader.

A rank that waits for peers in a call that its ring shows needs none: the call tells whom it waits for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from robust_run.tracer.sight.wake.reading import read
from robust_run.tracer.types import RankTrace
from robust_run.tracer.wake.types import WakeReading

#: After so long a reader is given up.
LIMIT_S = 1.0


def needs_chain(trace: RankTrace | None) -> bool:
    """Whether the ring does not tell what the rank's main thread waits for."""
    return trace is None or not any(op.thread == 0 and op.state in ("entered", "waiting") for op in trace.ops)


async def wake_reading(pid: int, root: str, read: Callable[[int, str], WakeReading] = read) -> WakeReading | None:
    """Return what a process and those that it waits for are in; None where that does not come in time.

    While a reader of the same process is still stuck there is no second one.
    """
    name = f"wake-{pid}"
    if any(thread.name == name for thread in threading.enumerate()):
        return None
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[WakeReading | None] = loop.create_future()

    def deliver(reading: WakeReading | None) -> None:
        if not answer.done():
            answer.set_result(reading)

    def work() -> None:
        try:
            reading = read(pid, root)
        except Exception:
            reading = None
        try:
            loop.call_soon_threadsafe(deliver, reading)
        except RuntimeError:
            return  # the loop has ended meanwhile

    threading.Thread(target=work, name=name, daemon=True).start()
    try:
        return await asyncio.wait_for(answer, LIMIT_S)
    except asyncio.TimeoutError:
        return None
