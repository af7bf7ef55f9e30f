"""A signal while a node joins: it is not in, or it takes leave. A node that just goes away counts as lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator

import pytest

from robust_run.launcher.control.client import Connection
from robust_run.launcher.control.messages import FromAgent, Leaving
from robust_run.launcher.start.many.interruption import Stopped, unless_stopped


class Recorded(Connection):
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        self.did: list[object] = []

    def send(self, message: FromAgent) -> None:
        self.did.append(message)

    def close(self, why: str = "") -> None:
        self.did.append("closed")


@pytest.fixture(autouse=True)
def kept_signals() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def stop_during(join: Callable[[asyncio.Event], Awaitable[Connection]]) -> int:
    """Tell a node to stop as soon as `join` sets the event, and return the signal that it stopped for."""

    async def run() -> int:
        read, write = os.pipe()
        now = asyncio.Event()
        joining = asyncio.ensure_future(join(now))

        async def tell() -> None:
            await now.wait()
            os.write(write, bytes([signal.SIGTERM]))

        telling = asyncio.ensure_future(tell())
        try:
            with pytest.raises(Stopped) as stopped:
                await asyncio.wait_for(unless_stopped(joining, read, ()), 30)
            await telling
            return stopped.value.number
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
                asyncio.get_running_loop().remove_signal_handler(number)
            os.close(read)
            os.close(write)

    return asyncio.run(run())


def test_one_that_is_let_in_at_that_moment_takes_leave() -> None:
    connection = Recorded()

    async def join(now: asyncio.Event) -> Connection:
        now.set()
        await asyncio.sleep(0.05)
        return connection

    assert stop_during(join) == signal.SIGTERM
    assert connection.did == [Leaving(reason="it was told to by SIGTERM"), "closed"]


def test_one_that_is_not_let_in_gives_up() -> None:
    gave_up = []

    async def join(now: asyncio.Event) -> Connection:
        now.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            gave_up.append(True)
            raise
        raise AssertionError

    assert stop_during(join) == signal.SIGTERM
    assert gave_up == [True]
