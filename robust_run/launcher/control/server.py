"""Control server: accepts agents, keeps strangers from taking its places, answers heartbeats.

One process, one event loop, plain asyncio protocols: a heartbeat costs one read, one decode, one encode and one write.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Iterable

from robust_run.clock import Clock
from robust_run.errors import UserError
from robust_run.launcher.control import frames
from robust_run.launcher.control.handshake import OURS, Speaks
from robust_run.launcher.control.messages import FromController
from robust_run.launcher.control.peer import LINGER_S, Handler, Peer
from robust_run.launcher.control.sockets import spoken, tune
from robust_run.launcher.control.strangers import Strangers

SILENT_S = 0.25
"""A connection that has said nothing for so long has to make room for others: an agent speaks first."""
PATIENCE_S = 1.0
"""One that has begun to speak has this long. Where ten thousand dial at once it takes a third of that, on an idle core."""
ACCEPTS_AT_ONCE = 64
"""Connections accepted in one turn of the event loop: those that are in must not wait long."""
RETRY_ACCEPT_S = 0.5
"""Pause when this process has no file descriptor for another connection."""
ROOMS_AT_ONCE, ROOMS_EVERY_S = 32, 0.02
"""So many strangers at most are sent away for others at a time, and how often: each costs 0.1 ms, and those who are in must not
wait. A queue of 4096 (somaxconn) is through within 2.6 s, before the lease of an agent that waits in it is over."""
READ_BYTES = 256 << 10
"""Read from a socket at once, at most."""
MOST_SAYINGS = 200
"""Different things said about strangers in the life of a server; they choose how many there are."""
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ControlServer:
    """Serves the agents of one job on one listening socket. Raises UserError where the token is empty."""

    def __init__(
        self,
        token: bytes,
        handler: Handler,
        clock: Clock,
        *,
        ssl_context: ssl.SSLContext | None = None,
        handshake_s: float = 5.0,
        most_unproven: int = 1024,
        speaks: Speaks = OURS,
    ) -> None:
        if not token:
            raise UserError("the token of the job is empty; set ROBUST_TOKEN or --token-file to a secret, or neither")
        self.token = token
        self.handler = handler
        self.clock = clock
        self.handshake_s = handshake_s
        self.speaks = speaks
        self.loop = asyncio.get_running_loop()
        self.beat_term: int | None = None
        """What heartbeats are answered with. None: not at all, because this controller does not lead (any more)."""
        self.beat_until_s = float("inf")
        """And when, by the clock, they are answered no more: the end of this controller's leadership."""
        self.grant: Callable[[Peer, float], float] = lambda _peer, _late_s: 0.0
        """Asked with each heartbeat, and how late the agent's timers are, for the length of the lease that the answer renews;
        0: that of the Welcome."""
        self.on_refused: Callable[[str, str], None] | None = None
        """Told the address of an agent that is not let in, and why. Not of strangers that are no agents."""
        self.received = memoryview(bytearray(READ_BYTES))
        """Where peers read, one at a time."""
        self.peers: set[Peer] = set()
        """Those that the handler let in."""
        self.heard: set[Peer] = set()
        """Those that have said something since the last `take_heard`."""
        self._ssl = ssl_context
        self._most_unproven = most_unproven
        self._unproven: Strangers[Peer] = Strangers()
        self._rooms_made = 0  # in this turn
        self._listener: socket.socket | None = None
        self._paused: asyncio.TimerHandle | None = None  # not accepting until then
        self._to_flush: list[Peer] = []
        self._said: set[str] = set()
        self._all_gone = asyncio.Event()

    # --- for the controller

    async def start(self, listener: socket.socket) -> None:
        """Serve on a socket that listens already; it belongs to the server from now on."""
        listener.setblocking(False)
        tune(listener)  # connections that are accepted inherit it
        self._listener = listener
        self.loop.add_reader(listener.fileno(), self._accept)

    def send_all(self, peers: Iterable[Peer], message: FromController) -> None:
        """Send the same message to many, encoding it once."""
        frame = frames.encode(message)
        for peer in peers:
            peer.send_frame(frame)

    def take_heard(self) -> set[Peer]:
        """Return those that have said something since this was asked last."""
        heard, self.heard = self.heard, set()
        return heard

    async def close(self, why: str = "the controller ends") -> None:
        """Stop listening and end all connections, after what was sent has gone; takes `LINGER_S` at most."""
        if self._listener is not None:
            self._resume_accepting()
            self.loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
        self._flush()
        for stranger in self._unproven.all():
            stranger.drop(why)
        for peer in tuple(self.peers):
            peer.close(why)
        if self.peers or len(self._unproven):
            self._all_gone.clear()
            await asyncio.wait_for(self._all_gone.wait(), LINGER_S + self.handshake_s)

    @property
    def unproven(self) -> int:
        """How many connections have not proven themselves."""
        return len(self._unproven)

    # --- for peers

    def flush_soon(self, peer: Peer) -> None:
        """Call the peer's `flush` before the event loop waits again."""
        if not self._to_flush:
            self.loop.call_soon(self._flush)
        self._to_flush.append(peer)

    def proven(self, peer: Peer) -> None:
        """Take a peer off the list of strangers."""
        if peer in self._unproven:
            self._unproven.remove(peer)
            self._resume_accepting()

    def lost(self, peer: Peer) -> None:
        """Forget a peer whose connection is gone."""
        self.proven(peer)
        if peer in self.peers:
            self.peers.discard(peer)
            self.heard.discard(peer)
            if self._listener is not None:
                self.handler.gone(peer, peer.ended)
        if not self.peers and not len(self._unproven):
            self._all_gone.set()

    def refused(self, address: str, why: str) -> None:
        """Pass on that an agent is not let in."""
        if self.on_refused is not None:
            self.on_refused(address, why)

    def say_once(self, text: str) -> None:
        """Pass a line on to the handler, unless it was said before or strangers have made too many."""
        if text not in self._said and len(self._said) < MOST_SAYINGS:
            self._said.add(text)
            self.handler.trouble(text)

    # --- inside

    def _flush(self) -> None:
        peers = self._to_flush
        self._to_flush = []
        for peer in peers:
            peer.flush()

    def _accept(self) -> None:
        self._rooms_made = 0
        for _ in range(ACCEPTS_AT_ONCE):
            if self._listener is None or not self._has_room():
                return
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._cannot_accept(error)
                return
            if isinstance(address, tuple):
                self._take_in(connection, spoken(address[0], address[1]), str(address[0]))
            else:
                self._take_in(connection, "a local socket", "")

    def _has_room(self) -> bool:
        """Whether one more stranger may come in: one of the most crowded address goes for it, but not before its fair chance."""
        if len(self._unproven) < self._most_unproven:
            return True
        oldest = self._unproven.first_to_go()
        patience_s = PATIENCE_S if oldest.last_heard_s > 0 else SILENT_S
        left_s = oldest.accepted_s + patience_s - self.loop.time()
        if left_s > 0 or self._rooms_made == ROOMS_AT_ONCE:
            self._pause_accepting(max(left_s, ROOMS_EVERY_S))
            return False
        self._rooms_made += 1
        self._unproven.remove(oldest)
        oldest.drop("made room for others")
        return True

    def _cannot_accept(self, error: OSError) -> None:
        if error.errno in _OUT_OF_RESOURCES:
            text = f"cannot accept more connections: {error.strerror}; {len(self.peers)} agents are connected"
            self.say_once(f"{text}; raise the limit of open files (ulimit -n) where the controller runs")
            if len(self._unproven):
                self._unproven.first_to_go().drop("made room for others")
        self._pause_accepting(RETRY_ACCEPT_S)

    def _pause_accepting(self, pause_s: float) -> None:
        if self._listener is not None and self._paused is None:
            self.loop.remove_reader(self._listener.fileno())
            self._paused = self.loop.call_later(pause_s, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if self._paused is not None:
            self._paused.cancel()
            self._paused = None
            if self._listener is not None:
                self.loop.add_reader(self._listener.fileno(), self._accept)

    def _take_in(self, connection: socket.socket, address: str, host: str) -> None:
        connection.setblocking(False)
        peer = Peer(self, address, self.loop.time())
        self._unproven.add(peer, host)
        peer.opening = self.loop.create_task(self._open(peer, connection))
        peer.opening.add_done_callback(lambda _: self._opened(peer, connection))

    async def _open(self, peer: Peer, connection: socket.socket) -> None:
        timeout_s = self.handshake_s if self._ssl is not None else None
        try:
            await self.loop.connect_accepted_socket(
                lambda: peer, connection, ssl=self._ssl, ssl_handshake_timeout=timeout_s
            )
        except OSError as error:  # TLS failures are OSErrors too
            if self._ssl is not None:
                self.say_once(f"turned away: the agent at {peer.address}: TLS failed: {error}")
            peer.drop(str(error))

    def _opened(self, peer: Peer, connection: socket.socket) -> None:
        peer.opening = None
        if peer.transport is None:  # connection_lost will not come
            connection.close()
            peer.drop("")
            self.lost(peer)
