"""A connection to another node of the job, from the first word to who is let in: both ends prove that they know the secret."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from robust_run.errors import PlatformError
from robust_run.harmless import cut
from robust_run.launcher.control.errors import ProtocolError
from robust_run.roles.wire import Frames, WorkerHalf
from robust_run.roles.words import Challenge, Holds, Me, Refused, Tls, Welcome
from robust_run.version import __version__

if TYPE_CHECKING:
    import ssl

CONNECT_S = 10.0


class Line:
    """One connection. `await` nothing of it but `next`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: Frames) -> None:
        self._reader, self._writer, self._frames = reader, writer, frames
        self.here: str = writer.get_extra_info("sockname")[0]
        """Our own address on it."""
        self.there: str = writer.get_extra_info("peername")[0]

    def send(self, message: Any) -> None:
        """Send a message, some time."""
        self._writer.write(self._frames.frame(message))

    async def next(self) -> object:
        """Return the next message. Raises ConnectionResetError, other OSError, ProtocolError."""
        while (message := self._frames.next()) is None:
            data = await self._reader.read(1 << 18)
            if not data:
                raise ConnectionResetError("the other node hung up")
            self._frames.feed(data)
        return message

    def hang_up(self) -> None:
        """End it, once what was said is sent."""
        self._writer.close()

    def abort(self) -> None:
        """End it at once."""
        cut(self._writer.transport)


class Call:
    """What a node needs to call another. Raises UserError for files that cannot be used."""

    def __init__(self, secret: bytes, tls: Tls | None) -> None:
        self.secret = secret
        self.context: ssl.SSLContext | None = None
        if tls is not None:
            from robust_run.tls import client_context

            self.context = client_context(tls.cert, tls.key, tls.ca)


async def dial(where: tuple[str, int], call: Call, me: Me, receives: object, connect_s: float = CONNECT_S) -> Line:
    """Connect, and be let in. Raises OSError, TimeoutError, PlatformError: it refuses, ProtocolError: it is none of the job's."""
    host, port = where
    name = host if call.context is not None else None
    opening = asyncio.open_connection(host, port, ssl=call.context, server_hostname=name)
    reader, writer = await asyncio.wait_for(opening, connect_s)
    tls = writer.get_extra_info("ssl_object")
    channel = (tls.get_channel_binding("tls-unique") or b"") if tls is not None else b""
    line = Line(reader, writer, Frames(receives))
    try:
        await asyncio.wait_for(_shake_hands(line, call.secret, me, channel), connect_s)
    except BaseException:
        line.abort()
        raise
    return line


async def _shake_hands(line: Line, secret: bytes, me: Me, channel: bytes) -> None:
    half = WorkerHalf(secret, me, __version__, channel=channel)
    line.send(half.hello)
    challenge = await line.next()
    if not isinstance(challenge, Challenge):
        raise _unexpected(challenge)
    proof, key_in, key_out = half.answer(challenge)
    line.send(proof)
    line._frames.trust(key_in, key_out)
    line.send(Holds())
    welcome = await line.next()
    if not isinstance(welcome, Welcome):
        raise _unexpected(welcome)


def _unexpected(message: object) -> Exception:
    if isinstance(message, Refused):
        return PlatformError(f"the leader refuses this node: {message.why}")
    return ProtocolError(f"a {type(message).__name__} in the middle of the handshake")
