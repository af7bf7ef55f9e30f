"""Control protocol, the agent's end of the connection."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable

from robust_run.errors import PlatformError, UserError
from robust_run.harmless import cut
from robust_run.launcher.control import frames
from robust_run.launcher.control.errors import NotController, ProtocolError
from robust_run.launcher.control.greeting import NEEDS_CERTIFICATE, SAME_TOKEN, AgentHalf
from robust_run.launcher.control.handshake import OURS, Speaks
from robust_run.launcher.control.messages import FromAgent, FromController, Hello, Welcome
from robust_run.launcher.control.sockets import is_connected_to_itself, spoken, tune

CONNECT_S = 2.0
"""How long a machine may take to answer at all. What is left of a dial's time is for a controller with many others to greet."""
MOST_BACKLOG_BYTES = 64 << 20
"""A controller that leaves more than this unread is given up."""


class Connection(asyncio.Protocol):
    """A connection to a controller. Made by `dial`; `listen` starts the flow of messages."""

    def __init__(self, where: str, token: bytes, speaks: Speaks, hello: Hello) -> None:
        self.where = where
        """HOST:PORT."""
        self._made_with = (token, speaks, hello)
        self._half: AgentHalf | None = None
        self._welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._on_message: Callable[[FromController], None] | None = None
        self._on_closed: Callable[[str], None] | None = None
        self._why = ""  # the connection ended, or is about to
        self._is_over = False  # this side has ended it: what still arrives is of no interest
        self._is_lost = False

    @property
    def welcome(self) -> Welcome:
        """What the controller said when it let this agent in."""
        return self._welcome.result()

    def listen(self, on_message: Callable[[FromController], None], on_closed: Callable[[str], None]) -> None:
        """Hand over messages from now on, those that arrived meanwhile first; `on_closed` is called once, with the reason."""
        self._on_message = on_message
        self._on_closed = on_closed
        self._read_messages()
        if self._is_lost:
            on_closed(self._why)

    def send(self, message: FromAgent) -> None:
        """Send a message. Does nothing once the connection has ended."""
        half = self._half
        if not self._why and self._transport is not None and half is not None and half.sealer is not None:
            frame = frames.encode(message)
            self._transport.write(frame + half.sealer.seal(frame))

    def close(self, why: str = "closed by this agent") -> None:
        """End the connection once what was sent is on its way. Nothing is handed over any more but the end."""
        self._is_over = True
        self._end(why)
        if self._transport is not None:
            self._transport.close()

    def abort(self, why: str = "closed by this agent") -> None:
        """End the connection at once."""
        self._is_over = True
        self._end(why)
        if self._transport is not None:
            cut(self._transport)

    async def joined(self) -> None:
        """Wait for the end of the handshake. Raises what `dial` raises."""
        await asyncio.shield(self._welcome)

    # --- for the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what this is."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=MOST_BACKLOG_BYTES)
        tls = transport.get_extra_info("ssl_object")
        channel = (tls.get_channel_binding("tls-unique") or b"") if tls is not None else b""
        token, speaks, hello = self._made_with
        self._half = AgentHalf(token, speaks, hello, self.where, channel)
        transport.write(self._half.opening())

    def data_received(self, data: bytes) -> None:
        """Take what was received."""
        assert self._half is not None
        if self._is_over:
            return
        if self._welcome.done():
            self._half.reader.feed(data)
            self._read_messages()
            return
        try:
            answer = self._half.take(data)
        except PlatformError as error:
            self._fail(error)
            return
        if answer and self._transport is not None:
            self._transport.write(answer)
        if self._half.welcome is not None:
            self._welcome.set_result(self._half.welcome)

    def pause_writing(self) -> None:
        """Give up a controller that does not read."""
        self.abort(f"{self.where} left more than {MOST_BACKLOG_BYTES >> 20} MiB unread")

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on."""
        assert self._transport is not None
        self._transport.close()  # or Python 3.10 calls a TLS transport unclosed that the other end closed
        if not self._welcome.done():
            self._fail(self._lost_early(exc))
        self._end(f"{self.where}: {exc}" if exc is not None else f"{self.where} closed the connection")
        self._is_lost = True
        if self._on_closed is not None:
            self._on_closed(self._why)

    # --- inside

    def _read_messages(self) -> None:
        assert self._half is not None
        try:
            while (
                self._on_message is not None and not self._is_over and (payload := self._half.reader.next()) is not None
            ):
                self._on_message(frames.decode_from_controller(payload))
        except ProtocolError as error:
            self.abort(f"{self.where} sent what is no message of robust-run: {error}")

    def _lost_early(self, exc: Exception | None) -> Exception:
        if isinstance(exc, ssl.SSLError):
            return _tls_failed(self.where, exc)
        text = self._half.unfinished() if self._half is not None else f"{self.where} closed the connection"
        return ConnectionResetError(f"{text} ({exc})" if exc is not None else text)

    def _fail(self, error: Exception) -> None:
        if not self._welcome.done():
            self._welcome.set_exception(error)
            self._welcome.exception()  # `dial` may have given up waiting already
        self.abort(str(error))

    def _end(self, why: str) -> None:
        if not self._why:
            self._why = why


async def dial(
    host: str,
    port: int,
    token: bytes,
    hello: Hello,
    *,
    ssl_context: ssl.SSLContext | None = None,
    timeout_s: float,
    speaks: Speaks = OURS,
) -> Connection:
    """Connect to a controller and be let in. The nonce and the proof of `hello` are filled in here.

    Raises Refusal (VersionMismatch, WrongToken), NotController, ConnectionRefusedError where nothing listens at any address
    of the host, TimeoutError, other OSErrors as the network has them, UserError where the token is empty.
    """
    where = spoken(host, port)
    if not token:
        raise UserError(f"the token of the job is empty; {SAME_TOKEN}")
    connection = Connection(where, token, speaks, hello)
    try:
        joining = _join(connection, host, port, ssl_context, min(timeout_s, CONNECT_S))
        await asyncio.wait_for(joining, timeout_s)
    except asyncio.TimeoutError as error:  # another class than TimeoutError in Python 3.10
        connection.abort("took too long")
        raise TimeoutError(str(error) or f"{where} did not answer within {timeout_s:g} s") from None
    except BaseException:
        connection.abort("could not join")
        raise
    return connection


async def _join(
    connection: Connection, host: str, port: int, ssl_context: ssl.SSLContext | None, connect_s: float
) -> None:
    loop = asyncio.get_running_loop()
    wire = await _connect(host, port, connect_s)
    server_name = host if ssl_context is not None else None
    try:
        await loop.create_connection(lambda: connection, sock=wire, ssl=ssl_context, server_hostname=server_name)
    except ssl.SSLError as error:
        raise _tls_failed(connection.where, error) from None
    except ConnectionError as error:
        text = f"{connection.where} closed the connection while TLS was agreed on"
        raise ConnectionResetError(f"{text}; {NEEDS_CERTIFICATE}") from error
    await connection.joined()


async def _connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """Return a connected socket to one of the host's addresses. ConnectionRefusedError means that every one refused."""
    loop = asyncio.get_running_loop()
    addresses = await _addresses(host, port)
    failures: list[OSError] = []
    for left, (family, kind, protocol, _, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        wire = socket.socket(family, kind, protocol)
        try:
            wire.setblocking(False)
            tune(wire)
            await asyncio.wait_for(loop.sock_connect(wire, address), timeout_s / left)
            if is_connected_to_itself(wire):
                raise ConnectionRefusedError(errno.ECONNREFUSED, "nothing listens there")
        except asyncio.TimeoutError:  # see `dial`
            failures.append(TimeoutError(f"{spoken(host, port)} did not answer within {timeout_s / left:g} s"))
            wire.close()
        except OSError as error:
            failures.append(error)
            wire.close()
        except BaseException:
            wire.close()
            raise
        else:
            return wire
    raise next((error for error in failures if not isinstance(error, ConnectionRefusedError)), failures[0])


_Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, "tuple[str, int] | tuple[str, int, int, int]"]


async def _addresses(host: str, port: int) -> list[_Address]:
    """Return the addresses of a host. A number needs no name service, and so no thread."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)  # type: ignore[return-value]
    except socket.gaierror:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)  # type: ignore[return-value]


def _tls_failed(where: str, error: ssl.SSLError) -> NotController:
    """Return the failure of a TLS handshake in words that say what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotController(
            f"the certificate of {where} is not of this job's CA ({error.verify_message}); check --tls-ca"
        )
    if "CERTIFICATE" in (error.reason or ""):
        advice = "give --tls-cert and --tls-key of the job's CA"
        return NotController(f"{where} does not accept this agent's certificate ({error.reason}); {advice}")
    return NotController(
        f"{where} does not answer in TLS ({error.reason or error}); all nodes need the same --tls options"
    )
