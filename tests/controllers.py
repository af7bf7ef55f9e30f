"""A controller's port on loopback and agents that dial it, for tests: real sockets, nobody who decides."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from robust_run.clock import SystemClock
from robust_run.launcher.control.client import Connection, dial
from robust_run.launcher.control.handshake import OURS, Speaks
from robust_run.launcher.control.messages import FromAgent, Hello, JoinRefused, Welcome
from robust_run.launcher.control.peer import Peer
from robust_run.launcher.control.server import ControlServer
from robust_run.launcher.model.events import NodeEvent
from robust_run.launcher.model.job import NodeInfo

TOKEN = b"the secret of this job"
PATIENCE_S = 200.0
Result = TypeVar("Result")


class Recorder:
    """A handler that lets everybody in (or refuses all) and remembers what it was told."""

    def __init__(self, refusal: JoinRefused | None = None) -> None:
        self.refusal = refusal
        self.hellos: list[Hello] = []
        self.peers: list[Peer] = []
        self.messages: list[tuple[str, FromAgent]] = []
        self.left: list[tuple[str, str]] = []
        self.troubles: list[str] = []

    def joined(self, peer: Peer, hello: Hello) -> Welcome | JoinRefused:
        self.hellos.append(hello)
        if self.refusal is not None:
            return self.refusal
        self.peers.append(peer)
        return Welcome(term=7, run_id="run", rdzv_id="rdzv", heartbeat_s=1.0, lease_s=3.0, candidates=("a:1", "b:2"))

    def received(self, peer: Peer, message: FromAgent) -> None:
        self.messages.append((peer.id, message))

    def gone(self, peer: Peer, why: str) -> None:
        self.left.append((peer.id, why))

    def trouble(self, text: str) -> None:
        self.troubles.append(text)


class Port:
    """A server that listens on loopback."""

    def __init__(self, server: ControlServer, handler: Recorder, number: int) -> None:
        self.server = server
        self.handler = handler
        self.number = number

    async def dial(self, hello: Hello | None = None, token: bytes = TOKEN, **options: Any) -> Connection:
        options.setdefault("timeout_s", 30.0)
        return await dial("127.0.0.1", self.number, token, hello or hello_of("n0"), **options)

    async def raw(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.number)


@contextlib.asynccontextmanager
async def serving(
    handler: Recorder | None = None,
    *,
    ssl_context: ssl.SSLContext | None = None,
    handshake_s: float = 30.0,
    most_unproven: int = 1024,
    speaks: Speaks = OURS,
) -> AsyncIterator[Port]:
    handler = handler or Recorder()
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    server = ControlServer(
        TOKEN,
        handler,
        SystemClock(),
        ssl_context=ssl_context,
        handshake_s=handshake_s,
        most_unproven=most_unproven,
        speaks=speaks,
    )
    server.beat_term = 7
    await server.start(listener)
    try:
        yield Port(server, handler, listener.getsockname()[1])
    finally:
        await server.close()


def hello_of(name: str, *, events: tuple[NodeEvent, ...] = (), now_s: float = 0.0) -> Hello:
    return Hello(node=NodeInfo(id=f"id-{name}", name=name, nproc=8, version="0.1.0"), events=events, now_s=now_s)


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a test to its end, which must come in time, and without an exception nobody caught."""
    uncaught: list[dict[str, Any]] = []

    async def bounded() -> Result:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: uncaught.append(context))
        return await asyncio.wait_for(main, PATIENCE_S)

    result = asyncio.run(bounded())
    assert uncaught == []
    return result


@contextlib.contextmanager
def refusing() -> Iterator[int]:
    """Yield a port of loopback that refuses: it is taken, so that nobody else gets it, and nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so; `run` bounds it."""
    while not condition():
        await asyncio.sleep(0.005)
