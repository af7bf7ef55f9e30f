"""The connections to the API: accepted here and not by asyncio's own servers, so that their number and the time each may take
are bounded, whoever connects, and nothing that goes wrong with one reaches the job.

Strangers, who have come over TCP and shown no token yet, have few places, so that the owner's socket is never full of them, and
each has its place for a moment at least: how fast they can come and go, and so what they cost the loop, is bounded too.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from robust_run.harmless import cut

if TYPE_CHECKING:
    import ssl

#: Connections at a time. At one more, the oldest that has not sent a whole request yet is cut off, or else the new one.
MOST_CONNECTIONS = 64

#: Of them, those that came over TCP and have shown no token.
MOST_STRANGERS = 32

#: How long such a one keeps its place when others want it. More than 128 a second are not served, and wait in the kernel.
FAIR_S = 0.25

#: From the connection to the end of the request's head, TLS included.
HEAD_S = 5.0

#: What a request that was let in may take: its body, a long poll, and a reader that is slow.
REQUEST_S = 60.0

#: How long nobody is accepted after the machine had no descriptor left for one.
PAUSE_S = 1.0


class ApiConnection:
    """One accepted connection."""

    def __init__(self, trusted: bool, accepted_s: float) -> None:
        self.trusted = trusted
        """It came by the Unix socket: its user owns the job."""
        self.accepted_s = accepted_s
        """Time of the event loop."""
        self.transport: asyncio.Transport | None = None
        """None until TLS has been agreed on."""
        self.opening: asyncio.Task[None] | None = None
        self.is_begun = False
        """The transport owns the socket, or will; a task that is cancelled before its first step never takes it."""
        self.timer: asyncio.TimerHandle | None = None
        self.waiting = True
        """No request has been let in yet."""

    @property
    def is_stranger(self) -> bool:
        """Whether nothing is known of who it is."""
        return self.waiting and not self.trusted

    def is_open(self) -> bool:
        """Whether it still counts."""
        if self.transport is not None:
            return not self.transport.is_closing()
        return self.opening is None or not self.opening.done()

    def cut(self) -> None:
        """End it now."""
        if self.timer is not None:
            self.timer.cancel()
        if self.transport is not None:
            cut(self.transport)
        elif self.opening is not None:
            self.opening.cancel()


class ApiConnections:
    """Accepts and bounds the connections of some listening sockets. For the thread of the event loop."""

    def __init__(
        self,
        listeners: Mapping[socket.socket, bool],
        tls: ssl.SSLContext | None,
        head_s: float = HEAD_S,
    ) -> None:
        """`listeners`: whether who comes by it is trusted. `tls`: for those who are not."""
        self._listeners = listeners
        self._tls = tls
        self._head_s = head_s
        self._loop = asyncio.get_running_loop()
        self._connections: dict[asyncio.BaseProtocol, ApiConnection] = {}
        self._new_protocol: Callable[[], asyncio.Protocol] | None = None

    def accept(self, new_protocol: Callable[[], asyncio.Protocol]) -> None:
        """Accept from now on; what this returns reads and answers one connection."""
        self._new_protocol = new_protocol
        self._accept_again()

    def stop_accepting(self) -> None:
        """Accept no more; who is connected stays so."""
        self._new_protocol = None
        for listener in self._listeners:
            self._loop.remove_reader(listener)

    async def close(self) -> None:
        """Accept no more, and cut off who is connected."""
        self.stop_accepting()
        opening = [each.opening for each in self._connections.values() if each.opening and not each.opening.done()]
        for each in self._connections.values():
            each.cut()
        self._connections.clear()
        if opening:
            await asyncio.wait(opening, timeout=1.0)

    def _accept_again(self) -> None:
        for listener in self._listeners:
            self._accept_from(listener)

    def _accept_from(self, listener: socket.socket) -> None:
        if self._new_protocol is not None:
            self._loop.add_reader(listener, self._accept, listener, self._listeners[listener])

    def _accept(self, listener: socket.socket, trusted: bool) -> None:
        if not trusted and (left_s := self._wait_for_strangers_s()) > 0:
            self._loop.remove_reader(listener)
            self._loop.call_later(left_s, self._accept_from, listener)
            return
        try:
            client, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return  # gone again
        except OSError:  # no descriptors left: others need those more than a status page
            for each in self._listeners:
                self._loop.remove_reader(each)
            self._loop.call_later(PAUSE_S, self._accept_again)
            return
        if self._new_protocol is None or (trusted and not _is_ours(client)) or not self._make_room(trusted):
            client.close()
            return
        client.setblocking(False)
        connection, protocol = ApiConnection(trusted, self._loop.time()), self._new_protocol()
        self._connections[protocol] = connection
        connection.opening = self._loop.create_task(self._open(client, connection, protocol))
        connection.opening.add_done_callback(lambda _: None if connection.is_begun else client.close())

    def _wait_for_strangers_s(self) -> float:
        """Return how long no stranger is accepted, so that those who are here have their fair time; 0: there is room."""
        self._forget_ended()
        strangers = [each for each in self._connections.values() if each.is_stranger]
        if len(strangers) < MOST_STRANGERS:
            return 0.0
        return max(strangers[0].accepted_s + FAIR_S - self._loop.time(), 0.0)

    def _make_room(self, trusted: bool) -> bool:
        """Cut the oldest off that waits where there are too many, strangers first. Return whether there is room."""
        self._forget_ended()
        strangers = [protocol for protocol, each in self._connections.items() if each.is_stranger]
        is_full = len(self._connections) >= MOST_CONNECTIONS
        if not is_full and (trusted or len(strangers) < MOST_STRANGERS):
            return True
        waiting = (protocol for protocol, each in self._connections.items() if each.waiting)
        idle = strangers[0] if strangers else next(waiting, None)
        if idle is None:
            return False
        self._connections.pop(idle).cut()
        return True

    def _forget_ended(self) -> None:
        self._connections = {protocol: each for protocol, each in self._connections.items() if each.is_open()}

    async def _open(self, client: socket.socket, connection: ApiConnection, protocol: asyncio.Protocol) -> None:
        connection.is_begun = True
        tls = None if connection.trusted else self._tls
        with suppress(Exception):  # gone again, or no TLS was spoken: nobody's concern but the peer's
            connection.transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, client, ssl=tls, ssl_handshake_timeout=self._head_s if tls else None
            )
            if connection.waiting:
                connection.timer = self._loop.call_later(self._head_s, connection.cut)

    def is_trusted(self, protocol: asyncio.BaseProtocol) -> bool:
        """Whether a connection needs no token, because of where it came from."""
        connection = self._connections.get(protocol)
        return connection is not None and connection.trusted

    def let_in(self, protocol: asyncio.BaseProtocol) -> None:
        """A request has been found to be allowed: it may take longer."""
        connection = self._connections.get(protocol)
        if connection is None:
            return
        connection.waiting = False
        if connection.timer is not None:
            connection.timer.cancel()
        connection.timer = self._loop.call_later(REQUEST_S, connection.cut)


def _is_ours(client: socket.socket) -> bool:
    """Whether the peer is this user or root, whatever the permissions of the folder became."""
    try:
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return False
    return struct.unpack("3i", credentials)[1] in (0, os.geteuid())
