"""One agent's connection, at the controller's end. It never decides who may join: see `Handler`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from robust_run.harmless import cut
from robust_run.launcher.control import frames, handshake
from robust_run.launcher.control.clock_offset import ClockOffset
from robust_run.launcher.control.errors import ProtocolError
from robust_run.launcher.control.greeting import ControllerHalf, TurnedAway
from robust_run.launcher.control.messages import (
    FromAgent,
    FromController,
    Heartbeat,
    HeartbeatReply,
    Hello,
    JoinRefused,
    Welcome,
)
from robust_run.launcher.control.sealing import Sealer

if TYPE_CHECKING:
    from robust_run.clock import Clock
    from robust_run.launcher.model.job import NodeInfo

MOST_BACKLOG_BYTES = 64 << 20
"""A peer that leaves more than this unread is dropped."""
LINGER_S = 1.0
"""How long a peer may take to read why it was refused, or the last messages before an orderly close."""
_EAGER_BYTES = 1 << 20  # pending messages beyond this are not kept until the loop's next turn


class Handler(Protocol):
    """Who decides. Called in the event loop; must not block."""

    def joined(self, peer: Peer, hello: Hello) -> Welcome | JoinRefused:
        """Let an agent in or not. It knows the token; a Welcome needs no proof, the server fills that in.

        The same agent may still have an older connection: closing that, and telling the two apart in `gone`, is up to
        the handler.
        """
        ...

    def received(self, peer: Peer, message: FromAgent) -> None:
        """Take a message of an agent that was let in. Hellos do not come here, and Heartbeats only with `usage`."""
        ...

    def gone(self, peer: Peer, why: str) -> None:
        """Learn that the connection of an agent that was let in has ended. Not called once the server closes."""
        ...

    def trouble(self, text: str) -> None:
        """Take a line for the journal: strangers at the port, no file descriptors. The same text comes only once."""
        ...


class ControlPort(Protocol):
    """What a connection needs of the server that made it."""

    token: bytes
    handler: Handler
    clock: Clock
    handshake_s: float
    speaks: handshake.Speaks
    loop: asyncio.AbstractEventLoop
    received: memoryview
    peers: set[Peer]
    heard: set[Peer]
    beat_term: int | None
    beat_until_s: float
    grant: Callable[[Peer, float], float]

    def flush_soon(self, peer: Peer) -> None:
        """Call the peer's `flush` before the event loop waits again."""
        ...

    def proven(self, peer: Peer) -> None:
        """Take a peer off the list of strangers."""
        ...

    def lost(self, peer: Peer) -> None:
        """Forget a peer whose connection is gone."""
        ...

    def refused(self, address: str, why: str) -> None:
        """Pass on that an agent is not let in."""
        ...

    def say_once(self, text: str) -> None:
        """Pass a line on to the handler, once."""
        ...


class Peer(asyncio.BufferedProtocol):
    """One connection. Made by the server; the handler meets it once its agent has proven that it knows the token.

    It reads into memory that all peers share, one after the other: without, asyncio gets and gives back 256 KiB for each message,
    and that took more of the controller's time than all else that a heartbeat costs.
    """

    def __init__(self, server: ControlPort, address: str, accepted_s: float) -> None:
        self.address = address
        """Of the other end, as HOST:PORT."""
        self.accepted_s = accepted_s
        """Time of the event loop."""
        self.id = ""
        """Of the agent; empty until it is known."""
        self.name = ""
        """Its host name."""
        self.node: NodeInfo | None = None
        self.last_heard_s = 0.0
        """When anything was received last, by the server's clock."""
        self._offset = ClockOffset()
        self.transport: asyncio.Transport | None = None
        """None until the connection is ready to use: with TLS that takes a while."""
        self.opening: asyncio.Task[None] | None = None
        self._server = server
        self._greeting: ControllerHalf | None = None
        self._opening = b""  # goes out with the first answer: a message less where thousands dial at once
        self._reader: frames.FrameReader | None = None  # None until joined
        self._sealer: Sealer | None = None  # as the reader
        self._welcome = b""  # goes out before all that is pending, and has a proof instead of a seal
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._why = ""  # not empty: nothing is received or sent any more
        self._deadline = server.loop.call_later(
            server.handshake_s, self.drop, "took too long to prove that it knows the token"
        )

    # --- for the handler

    def send(self, message: FromController) -> None:
        """Send a message; those of one turn of the event loop go in one write. Does nothing once the connection ends.

        What is sent while the handler decides on this peer follows its Welcome.
        """
        self.send_frame(frames.encode(message))

    def send_frame(self, frame: bytes) -> None:
        """Send what `frames.encode` made, which the same message for many peers needs only once; it is sealed on its way out."""
        if self._why:
            return
        if not self._pending:
            self._server.flush_soon(self)
        self._pending.append(frame)
        self._pending_bytes += len(frame)
        if self._pending_bytes > _EAGER_BYTES and self._reader is not None:
            self.flush()

    def close(self, why: str) -> None:
        """End the connection once what was sent is on its way, at most `LINGER_S` later."""
        if self._why:
            return
        if self.transport is None:
            self.drop(why)
            return
        self.flush()
        self._end(why)
        self.transport.close()
        self._deadline = self._server.loop.call_later(LINGER_S, cut, self.transport)

    def drop(self, why: str) -> None:
        """End the connection at once, whatever is still unsent."""
        self._end(why)
        if self.transport is not None:
            cut(self.transport)
        elif self.opening is not None:
            self.opening.cancel()

    @property
    def clock_ahead_s(self) -> float:
        """The server's clock minus the agent's: add it to a time of the agent's. Too large by the time a message takes."""
        return self._offset.ahead_s

    @property
    def backlog_bytes(self) -> int:
        """What was sent and has not yet left this process."""
        if self._why or self.transport is None:  # of TLS that has ended, asyncio cannot say what is left
            return self._pending_bytes
        return self._pending_bytes + self.transport.get_write_buffer_size()

    # --- for the server

    @property
    def ended(self) -> str:
        """Why the connection ended or is about to; empty while it lives."""
        return self._why

    @property
    def joined(self) -> bool:
        """Whether the handler has let it in, and so will be told that it is gone."""
        return self._reader is not None

    def flush(self) -> None:
        """Hand pending messages to the transport."""
        pending = self._pending
        if not (pending or self._welcome) or self.transport is None or self._reader is None:
            return
        assert self._sealer is not None
        self._pending = []
        self._pending_bytes = 0
        if len(pending) == 1 and not self._welcome:
            self.transport.write(pending[0] + self._sealer.seal(pending[0]))
            return
        parts, self._welcome = [self._welcome], b""
        for frame in pending:
            parts += (frame, self._sealer.seal(frame))
        self.transport.write(b"".join(parts))

    # --- for the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the agent to say what it is."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=MOST_BACKLOG_BYTES)
        tls = transport.get_extra_info("ssl_object")
        channel = (tls.get_channel_binding("tls-unique") or b"") if tls is not None else b""
        who = f"the agent at {self.address}"
        self._greeting = ControllerHalf(self._server.token, self._server.speaks, who, channel)
        self._opening = self._greeting.opening()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where to put what arrives; it is taken out before the loop does anything else."""
        return self._server.received

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was received."""
        data = bytes(self._server.received[:nbytes])
        self.last_heard_s = self._server.clock.monotonic_s()
        if self._why:
            return
        reader = self._reader
        if reader is None:
            reader = self._greet(data)
            if reader is None:
                return
            data = b""
        self._server.heard.add(self)
        try:
            payload = reader.only(data)
            if payload is not None:
                self._take(frames.decode_from_agent(payload))
                return
            if data:
                reader.feed(data)
            while not self._why and (payload := reader.next()) is not None:
                self._take(frames.decode_from_agent(payload))
        except ProtocolError as error:
            self.close(f"garbage: {error}")

    def pause_writing(self) -> None:
        """Drop a peer that does not read."""
        self.drop(f"left more than {MOST_BACKLOG_BYTES >> 20} MiB unread")

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the server."""
        assert self.transport is not None
        self.transport.close()  # or Python 3.10 calls a TLS transport unclosed that the other end closed
        self._end(str(exc) if exc is not None else "closed the connection")
        self._deadline.cancel()
        self._server.lost(self)

    # --- inside

    def _greet(self, data: bytes) -> frames.FrameReader | None:
        assert self._greeting is not None
        assert self.transport is not None
        opening, self._opening = self._opening, b""
        try:
            answer = opening + self._greeting.take(data)
        except TurnedAway as turned:
            self._server.say_once(f"turned away: {turned.why}")
            if turned.briefly:
                self._server.refused(self.address, turned.briefly)
            self._refuse(opening + turned.answer, turned.why)
            return None
        if answer:
            self.transport.write(answer)
        if self._greeting.is_proven:
            self._server.proven(self)
        if self._greeting.hello is None:
            return None
        return self._join(self._greeting, self._greeting.hello)

    def _join(self, greeting: ControllerHalf, hello: Hello) -> frames.FrameReader | None:
        """Ask the handler; return where to read from if it lets the agent in."""
        self.node = hello.node
        self.id = hello.node.id
        self.name = hello.node.name
        self._offset = ClockOffset(self.last_heard_s - hello.now_s)
        answer = self._server.handler.joined(self, hello)
        if isinstance(answer, JoinRefused):
            if answer.final:
                reason = handshake.printable(answer.reason)
                self._server.say_once(f"turned away: the agent at {self.address}: {reason}")
                self._server.refused(self.address, reason)
            self._refuse(greeting.refusal(answer), answer.reason)
            return None
        if self._why:
            return None
        self._deadline.cancel()
        self._greeting = None
        self._reader, self._sealer = greeting.reader, greeting.sealer
        self._welcome = greeting.welcome(answer)
        if not self._pending:
            self._server.flush_soon(self)
        self._server.peers.add(self)
        return self._reader

    def _take(self, message: FromAgent) -> None:
        if type(message) is Heartbeat:
            self._offset.take(message.now_s, self.last_heard_s)
            term = self._server.beat_term
            if term is not None and self.last_heard_s < self._server.beat_until_s:
                lease_s = self._server.grant(self, message.late_s)
                self.send_frame(frames.encode(HeartbeatReply(number=message.number, term=term, lease_s=lease_s)))
            if message.usage:
                self._server.handler.received(self, message)
        elif type(message) is Hello:
            raise ProtocolError("a second Hello")
        else:
            self._server.handler.received(self, message)

    def _refuse(self, answer: bytes, why: str) -> None:
        """Say no, and let the peer hang up: closing first, with bytes of it unread, would take the answer back."""
        assert self.transport is not None
        self.transport.write(answer)
        self._end(why)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._deadline = self._server.loop.call_later(LINGER_S, cut, self.transport)

    def _end(self, why: str) -> None:
        if not self._why:
            self._why = why or "closed the connection"
            self._deadline.cancel()
            self._welcome = b""
            self._pending = []
            self._pending_bytes = 0
