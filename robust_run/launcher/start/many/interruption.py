"""Interruption of a join: a signal, or the end of the guard, while this node waits to be let in."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from robust_run.launcher.agent.signals import ENDING
from robust_run.launcher.control.client import Connection
from robust_run.launcher.control.messages import Leaving
from robust_run.signals import signal_name

#: How long a node that is told to stop may take to learn that it is in.
LET_IN_S = 0.5


class Stopped(Exception):  # noqa: N818 - a signal, no error
    """A signal came before this node was in."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


async def unless_stopped(joining: asyncio.Task[Connection], lifeline: int, end_signals: tuple[int, ...]) -> Connection:
    """Wait until this node is in. Raises Stopped when a signal comes or the guard goes, else what joining raises."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()

    def on_signal(number: int) -> None:
        if not stop.done():
            stop.set_result(number)

    def on_lifeline() -> None:
        received = os.read(lifeline, 64)
        on_signal(next((n for n in received if n in ENDING or n in end_signals), 0) if received else 9)

    os.set_blocking(lifeline, False)
    loop.add_reader(lifeline, on_lifeline)
    for number in {*ENDING, *end_signals}:
        if not (number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN):
            loop.add_signal_handler(number, on_signal, number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    both: list[asyncio.Future[Any]] = [joining, stop]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(lifeline)
    if stop.done():
        await _leave(joining, stop.result())
        raise Stopped(stop.result())
    return joining.result()


async def _leave(joining: asyncio.Task[Connection], number: int) -> None:
    """Take leave of the controller if it has let this node in, or just does so: else the node would count as lost."""
    if not joining.done():
        await asyncio.wait([joining], timeout=LET_IN_S)
    if not joining.done():
        joining.cancel()
    elif not joining.cancelled() and joining.exception() is None:
        connection = joining.result()
        connection.send(Leaving(reason=f"it was told to by {signal_name(number)}"))
        connection.close()
        await asyncio.sleep(0)  # what has not gone out is sent now
