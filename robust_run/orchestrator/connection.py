"""A connection of a worker, as the orchestrator has it: the handshake, then messages. One event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from robust_run.harmless import cut
from robust_run.launcher.control.errors import ProtocolError
from robust_run.launcher.control.handshake import printable
from robust_run.orchestrator.model.node_words import FromNode, ToNode
from robust_run.orchestrator.model.succession_words import FromPeer, InRun
from robust_run.roles.wire import Frames, OrchestratorHalf
from robust_run.roles.words import FromWorker, Hello, Holds, Me, Proof, Refused, Tls, ToWorker

if TYPE_CHECKING:
    import ssl

MOST_BACKLOG_BYTES = 96 << 20
"""Who has read none of so much is given up."""


def context_of(tls: Tls | None) -> ssl.SSLContext | None:
    """Return what a port needs where connections are hidden. Raises UserError for files that cannot be used."""
    if tls is None:
        return None
    from robust_run.tls import server_context

    return server_context(tls.cert, tls.key, tls.ca)


class Server(Protocol):
    """Who takes in what a connection brings."""

    secret: bytes

    @property
    def gate(self) -> Callable[[Callable[[], None]], None] | None:
        """Does what others see once it may be seen; None: at once."""

    def came(self, worker: Worker) -> None:
        """Somebody has connected."""

    def let_in(self, worker: Worker, me: Me, holds: Mapping[str, tuple[int, ...]]) -> None:
        """It has proven that it knows the secret."""

    def hear(self, worker: Worker, message: object) -> None:
        """It says something."""

    def went(self, worker: Worker) -> None:
        """It is gone."""


class Worker(asyncio.Protocol):
    """A connection of one worker."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._half: OrchestratorHalf | None = OrchestratorHalf(server.secret)
        self._frames = Frames(FromWorker | FromNode | FromPeer)
        self._transport: asyncio.Transport | None = None
        self._proven: Me | None = None
        """Who it is, and has proven to be; nothing is known yet of what it holds."""
        self.me: Me | None = None
        """The same, once it is let in, and until another takes its place."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        tls = transport.get_extra_info("ssl_object")
        channel = (tls.get_channel_binding("tls-unique") or b"") if tls is not None else b""
        self._half = OrchestratorHalf(self._server.secret, channel=channel)
        self._server.came(self)

    @property
    def host(self) -> str:
        """Address of the other end."""
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return str(peer[0]) if peer else ""

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._frames.feed(data)
        try:
            while self._transport is not None and (message := self._frames.next()) is not None:
                self._take(message)
        except ProtocolError as error:
            self.end(str(error))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """See `asyncio.Protocol`."""
        self._transport = None
        self._server.went(self)

    def goes_to(self, server: Server) -> None:
        """Another takes in what it brings from now on."""
        self._server = server

    def send(self, message: ToWorker | ToNode | FromPeer | InRun) -> None:
        """Send a message, once it may be seen; a worker that reads none is given up."""
        gate = self._server.gate
        if gate is None or self._half is not None:
            self._send(message)
        else:
            gate(lambda: self._send(message))

    def _send(self, message: ToWorker | ToNode | FromPeer | InRun) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        try:
            self._transport.write(self._frames.frame(message))
        except ProtocolError as error:
            self._end(str(error))
            return
        if self._transport.get_write_buffer_size() > MOST_BACKLOG_BYTES:
            cut(self._transport)

    def end(self, why: str = "") -> None:
        """Hang up, behind what was said, with a word where it may be read."""
        gate = self._server.gate
        if gate is None or self._half is not None:
            self._end(why)
        else:
            gate(lambda: self._end(why))

    def _end(self, why: str) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if why:
                self._transport.write(self._frames.frame(Refused(why=printable(why))))
            self._transport.close()

    def _take(self, message: object) -> None:
        if self._half is None:
            self._server.hear(self, message)
        elif isinstance(message, Hello):
            self.send(self._half.challenge(message))
        elif isinstance(message, Proof) and self._proven is None:
            keys = self._half.check(message)
            self._frames.trust(*keys)
            self._proven = message.me
        elif isinstance(message, Holds) and self._proven is not None:
            self._half = None
            self._server.let_in(self, self._proven, message.numbers)
        else:
            raise ProtocolError(f"a {type(message).__name__} in the middle of the handshake")
