"""A connection of a worker, as the orchestrator has it: the handshake, then messages. One event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from robust_run.launcher.control.errors import ProtocolError
from robust_run.launcher.control.handshake import printable
from robust_run.orchestrator.nodes.words import FromNode, ToNode
from robust_run.roles.wire import Frames, OrchestratorHalf
from robust_run.roles.words import FromWorker, Hello, Holds, Me, Proof, Refused, ToWorker

if TYPE_CHECKING:
    from robust_run.orchestrator.server import RoleServer

MOST_BACKLOG_BYTES = 96 << 20
"""Who has read none of so much is given up."""


class Worker(asyncio.Protocol):
    """A connection of one worker."""

    def __init__(self, server: RoleServer) -> None:
        self._server = server
        self._half: OrchestratorHalf | None = OrchestratorHalf(server.secret)
        self._frames = Frames(FromWorker | FromNode)
        self._transport: asyncio.Transport | None = None
        self._proven: Me | None = None
        """Who it is, and has proven to be; nothing is known yet of what it holds."""
        self.me: Me | None = None
        """The same, once it is let in, and until another takes its place."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.came(self)

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

    def send(self, message: ToWorker | ToNode) -> None:
        """Send a message; a worker that reads none is given up."""
        if self._transport is None:
            return
        try:
            self._transport.write(self._frames.frame(message))
        except ProtocolError as error:
            self.end(str(error))
            return
        if self._transport.get_write_buffer_size() > MOST_BACKLOG_BYTES:
            self._transport.abort()

    def end(self, why: str = "") -> None:
        """Hang up, with a word where it may be read."""
        if self._transport is not None:
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
