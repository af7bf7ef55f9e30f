"""Hosts in virtual time: an event loop whose clock jumps, and machines that pause, lose their network and have clocks of
their own. Whatever the code under test waits for comes through `Host.sleep` or `Host.reach`, so a pause is complete."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

FATES = ("lost", "answer lost", "late", "slow", "pause")
"""It never arrives; its answer does not; it is carried out when nobody waits any more; it takes long to arrive; whoever sent it
is stopped just when the answer is there."""


class _Jump(selectors.DefaultSelector):
    """Instead of waiting, moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everything waits and nothing will ever happen"
        self.now_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs tasks as fast as they go; `time()` is what they would have taken."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now_s


def run_virtual(main: Awaitable[T]) -> T:
    """Run a coroutine in virtual time, and end all it has started."""
    loop = VirtualLoop()
    failures: list[BaseException] = []
    loop.set_exception_handler(lambda _, context: failures.append(context.get("exception") or AssertionError(context)))
    try:
        asyncio.set_event_loop(loop)
        result = loop.run_until_complete(main)
        if failures:
            raise failures[0]
        return result
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()


class Network:
    """How bad things are between hosts and the store."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.trouble = 0.0
        """Share of requests that meet a fault of their own."""
        self.slowest_s = 0.05
        """Of a request without a fault, each way."""
        self.longest_s = 15.0
        """Of a request with a fault, even if nobody waits any more."""
        self.longest_pause_s = 4.0
        self.down_until_s = 0.0
        """The store answers nobody before."""


class UnreachedError(Exception):
    """No answer in time."""


class Host:
    """One machine: its clock counts from anywhere and a little fast or slow."""

    def __init__(self, name: str, network: Network) -> None:
        self.name = name
        self.network = network
        self._offset_s = network.random.uniform(0, 1e6)
        self._rate = network.random.uniform(0.995, 1.005)
        self.paused_until_s = 0.0
        self.cut_until_s = 0.0
        self.after_each_step: Callable[[], None] = lambda: None
        """Called whenever code on this host has done something and waits again."""

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def monotonic_s(self) -> float:
        return self._offset_s + self._loop.time() * self._rate

    def unix_s(self) -> float:
        raise AssertionError("leadership must not ask for the time of day")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._rate)
        await self._thaw()

    async def reach(self, act: Callable[[], T], timeout_s: float) -> T:
        """Let the store do something. Raises UnreachedError: it did not, it did, or it will."""
        try:
            return await self._reach(act, timeout_s / self._rate)
        finally:
            await self._thaw()

    async def _reach(self, act: Callable[[], T], timeout_s: float) -> T:
        network, now_s = self.network, self._loop.time()
        draw = network.random
        fate = draw.choice(FATES) if draw.random() < network.trouble else "fine"
        before_s, after_s = (network.slowest_s * draw.random() ** 3 for _ in range(2))
        if fate == "slow":
            before_s += draw.uniform(0, network.longest_s)
        if max(self.cut_until_s, network.down_until_s) > now_s or fate == "lost":
            await asyncio.sleep(timeout_s)
            raise UnreachedError
        if fate == "late" or before_s > timeout_s:
            self._loop.call_later(max(before_s, draw.uniform(0, network.longest_s)), _quietly, act)
            await asyncio.sleep(timeout_s)
            raise UnreachedError
        await asyncio.sleep(before_s)
        result = act()
        if fate == "answer lost" or before_s + after_s > timeout_s or self.cut_until_s > self._loop.time():
            await asyncio.sleep(max(0.0, timeout_s - before_s))
            raise UnreachedError
        await asyncio.sleep(after_s)
        if fate == "pause":
            self.paused_until_s = max(self.paused_until_s, self._loop.time() + draw.uniform(0, network.longest_pause_s))
        return result

    async def _thaw(self) -> None:
        while self.paused_until_s > self._loop.time():
            await asyncio.sleep(self.paused_until_s - self._loop.time())
        self._loop.call_soon(self.after_each_step)


def _quietly(act: Callable[[], object]) -> None:
    try:
        act()
    except Exception:  # nobody hears the answer
        return
