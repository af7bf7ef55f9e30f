"""Threads with a time limit for calls that may hang: a dead file server, a name that does not resolve.

The interpreter's own pool is not used: it is joined at exit, so one hung call would keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

MOST_STUCK = 16
"""Calls that may be under way at once; when so many hang, new ones are refused instead of piling up."""


async def in_thread(function: Callable[[], T], timeout_s: float, what: str, stuck: set[object]) -> T:
    """Run `function` in a daemon thread; return or raise what it does.

    Raises TimeoutError after `timeout_s`, or at once if MOST_STUCK calls of the caller hang; the thread goes on and what it
    does may still happen, later. `stuck` belongs to the caller and holds its calls under way.
    """
    if len(stuck) >= MOST_STUCK:
        raise TimeoutError(f"{what}: {len(stuck)} earlier calls still hang")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    mark = object()
    stuck.add(mark)

    def settle(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as caught:  # handed to whoever waits
            error = caught
        stuck.discard(mark)
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=what, daemon=True).start()
    try:
        done, _ = await asyncio.wait((answer,), timeout=max(0.0, timeout_s))
        if not done:
            raise TimeoutError(f"{what}: no answer within {timeout_s:.3g} s")
        return answer.result()
    finally:
        answer.cancel()
