"""Reads wake chains in threads that can be given up: memory on a file system that does not answer blocks its reader.

A rank that waits for peers in a call that its ring shows needs none: the call tells whom it waits for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from robust_run.tracer.sight.wake.reading import read
from robust_run.tracer.types import RankTrace
from robust_run.tracer.wake.proof import APART_S, lock_circle
from robust_run.tracer.wake.types import WakeReading

#: After so long a reader is given up.
LIMIT_S = 1.0
#: A circle of locks is read again after so long, and once more just before it is told.
AGAIN_S = (APART_S + 0.05, 0.1)


def needs_chain(trace: RankTrace | None) -> bool:
    """Whether the ring does not tell what the rank's main thread waits for."""
    return trace is None or not any(op.thread == 0 and op.state in ("entered", "waiting") for op in trace.ops)


async def wake_readings(
    pid: int,
    root: str,
    sleep: Callable[[float], Awaitable[None]],
    read: Callable[[int, str], WakeReading] = read,
) -> tuple[WakeReading, ...]:
    """Return what a process and those that it waits for are in, oldest first: once, but for what might be a proof three times.

    Nothing may be asked of the process meanwhile: to answer moves its main thread.
    """
    found: list[WakeReading] = []
    for pause_s in (0.0, *AGAIN_S):
        if pause_s:
            await sleep(pause_s)
        reading = await wake_reading(pid, root, read)
        if reading is None:
            break
        found.append(reading)
        if lock_circle(reading) is None:
            break
    return tuple(found)


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
