"""A server of roles and clients over the loopback, for tests."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from robust_run.clock import SystemClock
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.words import Event
from robust_run.orchestrator.queue.book import QueueBook
from robust_run.orchestrator.queue.serving import QueueService
from robust_run.orchestrator.server import RoleServer
from robust_run.roles.client import Client, Place
from robust_run.roles.queue_words import QueueLimits
from robust_run.roles.words import Me, Member

USUAL = QueueLimits(items=1024, lease_s=600.0)
SECRET = os.urandom(32)


def me(index: int = 0, rank: int = 0, serial: int = 1, attempt: int = 0, role: str = "rollout") -> Me:
    """Return who a worker is."""
    return Me(role=role, index=index, rank=rank, serial=serial, attempt=attempt)


class Orchestrator:
    """A server in a thread of its own."""

    def __init__(self, folder: Path, members: int, limits: QueueLimits) -> None:
        self._folder, self._limits = folder, limits
        self.members = {f"rollout/{i}": Member(role="rollout", index=i) for i in range(members)}
        self.newest: dict[str, tuple[int, int]] = {}
        self.events: list[Event] = []
        self.said: list[str] = []
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.port = 0
        self.start()

    def start(self) -> None:
        """Listen, with the queues that are on disk."""
        self.call(self._start())

    async def _start(self) -> None:
        clock = SystemClock()
        self.book = QueueBook(str(self._folder), self._limits, self.said.append)
        self.book.reopen(clock.monotonic_s())
        self.server = RoleServer(
            SECRET,
            QueueService(self.book, clock),
            self.events.append,
            lambda: self.members,
            lambda name: self.newest.get(name, (0, 0)),
        )
        self.port = await self.server.listen("127.0.0.1", 0)

    def call(self, coroutine: Any) -> Any:
        """Run something where the server runs."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def do(self, function: Callable[[], Any]) -> Any:
        """Call a function there."""

        async def run() -> Any:
            return function()

        return self.call(run())

    def stop(self) -> None:
        """End it, as a killed process does: nothing is said."""

        def end() -> None:
            self.server.close()
            for worker in [*self.server._workers.values()]:
                worker._transport.abort()  # type: ignore[union-attr]
            self.book.close()

        self.do(end)

    def ended(self, index: int, rank: int | None, serial: int = 1, attempt: int = 0) -> None:
        """A launcher says that processes have ended."""
        self.do(lambda: self.server.ended(MemberName("rollout", index), rank, (serial, attempt)))

    def hang_up(self, consumer: str) -> None:
        """A connection is lost; nobody's process has ended."""
        self.do(lambda: self.server._workers[consumer]._transport.abort())  # type: ignore[union-attr]

    def place(self) -> Place:
        """Return where it is."""
        return Place(address="127.0.0.1", port=self.port, secret=SECRET, roles=("rollout",))

    def close(self) -> None:
        """End all."""
        self.stop()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@contextmanager
def orchestrator(
    folder: Path, members: int = 4, limits: QueueLimits = USUAL
) -> Iterator[tuple[Orchestrator, Callable[..., Client]]]:
    """A server, and what connects workers to it."""
    made = Orchestrator(folder, members, limits)
    clients: list[Client] = []

    def connect(*args: Any, **more: Any) -> Client:
        clients.append(Client(me(*args, **more), made.place))
        return clients[-1]

    try:
        yield made, connect
    finally:
        for client in clients:
            client.close()
        made.close()
