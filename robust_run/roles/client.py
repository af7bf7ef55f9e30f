"""A worker's connection to the orchestrator of its job. One thread reads; any thread may ask.

An orchestrator that is started again is found again: requests wait meanwhile, and are sent once more. That is safe: items carry
keys, readiness is said anew, and what this worker holds is told when it comes back.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from robust_run.errors import PlatformError, RobustRunError, UserError
from robust_run.launcher.control.errors import ProtocolError
from robust_run.roles.queue_words import Done, GiveBack, Keep, Restore
from robust_run.roles.wire import Frames, WorkerHalf
from robust_run.roles.words import (
    Answer,
    Challenge,
    Holds,
    Me,
    Member,
    PositionCall,
    QueueCall,
    ReadyCall,
    Refused,
    Tls,
    Told,
    ToWorker,
    Welcome,
)
from robust_run.version import __version__

if TYPE_CHECKING:
    from robust_run.roles.hidden import HiddenSocket

#: How long an orchestrator that is gone is looked for.
GIVE_UP_S = 600.0
#: And how long one that does not prove that it is the job's: another's may have the port of one that is being started again.
STRANGER_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 2.0
CONNECT_S = 10.0
#: Where another node may lead the job later, it is looked so often who does: a link that is cut says nothing.
MOVED_S = 1.0
MOVED_CONNECT_S = 4.0

Connection: TypeAlias = "socket.socket | HiddenSocket"
Request = ReadyCall | QueueCall | PositionCall


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the orchestrator is, and the job's secret: a file that only its user can read."""

    address: str
    port: int
    secret: bytes
    roles: tuple[str, ...]
    moves: bool = False
    """Another node may lead the job later; this file says then which."""
    tls: Tls | None = None
    """None: connections are sealed, not hidden."""


class _Asked:
    __slots__ = ("answer", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.answer: Answer | None = None


class Client:
    """The connection of one worker. Raises PlatformError from any call when the orchestrator is gone for good."""

    def __init__(self, me: Me, where: Callable[[], Place]) -> None:
        self.me = me
        self._where = where
        self._holds: dict[str, set[int]] = {}
        self._changed = threading.Condition()
        self._members: dict[str, Member] = {}
        self._asked: dict[int, _Asked] = {}
        self._numbers = itertools.count(1)
        self._socket: Connection | None = None
        self._frames: Frames | None = None
        self._place: Place | None = None
        """Where the one is that it is connected to, if another may take its place."""
        self._ready: ReadyCall | None = None
        self._is_in = False
        self._over = ""
        self._fault: Exception | None = None
        """What ended the thread, where nobody foresaw it."""
        self._version = 0
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="robust-run roles", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int:
        """Grows with each change of a member."""
        return self._version

    def ask(self, request: Request) -> Answer:
        """Ask, and wait for the answer."""
        self._check_process()
        asked = _Asked(request)
        with self._changed:
            self._asked[request.number] = asked
            try:
                self._send(request)
                if isinstance(request, ReadyCall):
                    self._ready = request
                self._changed.wait_for(lambda: asked.answer is not None or self._over)
            finally:
                del self._asked[request.number]
            if asked.answer is None:
                raise PlatformError(self._over) from self._fault
        if asked.answer.error:
            raise UserError(asked.answer.error)
        return asked.answer

    def number(self) -> int:
        """Return the number of a new request."""
        return next(self._numbers)

    def holds(self, queue: str) -> tuple[int, ...]:
        """Return the numbers of a queue's items that this worker works on."""
        with self._changed:
            return tuple(sorted(self._holds.get(queue, ())))

    def members(self, role: str) -> tuple[Member, ...]:
        """Return what is known of a role's members now, in order."""
        self._check_process()
        with self._changed:
            self._changed.wait_for(lambda: self._is_in or self._over)
            self._check()
            found = [each for each in self._members.values() if each.role == role]
        return tuple(sorted(found, key=lambda each: each.index))

    def wait(self, is_enough: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until something is true that members' changes may make true; False: it took too long."""
        self._check_process()
        with self._changed:
            self._changed.wait_for(lambda: self._over or (self._is_in and is_enough()), timeout_s)
            self._check()
            return is_enough()

    def known(self, role: str) -> tuple[Member, ...]:
        """Return members without a lock: for `wait`."""
        return tuple(each for each in self._members.values() if each.role == role)

    def close(self) -> None:
        """Hang up."""
        with self._changed:
            self._over = self._over or "the connection to the orchestrator was closed"
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            self._changed.notify_all()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise UserError(
                "robust_run.roles cannot be used in a process that was forked: use it in the one that was started"
            )

    def _check(self) -> None:
        if self._over:
            raise PlatformError(self._over) from self._fault

    def _send(self, request: Request) -> None:
        """Send, where there is a connection: else it is sent when there is one. With the lock held."""
        if self._socket is not None and self._frames is not None and self._is_in:
            with suppress(OSError):  # the reading thread finds out, and sends it again
                self._socket.sendall(self._frames.frame(request))

    def _run(self) -> None:
        try:
            self._stay_connected()
        except Exception as error:  # whatever it is: who asks would wait for ever
            self._fault = error
            self._end(f"the connection to the orchestrator failed: {error!r}")

    def _stay_connected(self) -> None:
        gone_at_s, pause_s = time.monotonic(), FIRST_PAUSE_S
        while not self._over:
            try:
                self._connect()
                gone_at_s = pause_s = 0.0
                self._read()
            except Refused_ as refused:
                self._end(f"the orchestrator of this job refuses this worker: {refused}")
            except RobustRunError as error:  # what is heard is none of the job's, or damaged
                if gone_at_s and time.monotonic() - gone_at_s > STRANGER_S:
                    self._end(f"the orchestrator of this job: {error}")
            except _Moved:
                pass
            except OSError as error:
                reason = error.strerror or str(error)
                if gone_at_s and time.monotonic() - gone_at_s > GIVE_UP_S:
                    self._end(f"the orchestrator of this job is gone for {GIVE_UP_S:.0f} s ({reason})")
            self._hang_up()
            gone_at_s = gone_at_s or time.monotonic()
            pause_s = min(max(pause_s * 1.5, FIRST_PAUSE_S), LONGEST_PAUSE_S)
            if not self._over:
                time.sleep(pause_s)

    def _connect(self) -> None:
        place = self._where()
        connection: Connection = connected(place, MOVED_CONNECT_S if place.moves else CONNECT_S)
        self._place = place if place.moves else None
        try:
            frames, welcome = self._shake_hands(connection, place.secret)
        except BaseException:
            connection.close()
            raise
        connection.settimeout(None)
        with self._changed:
            self._socket, self._frames, self._is_in = connection, frames, True
            self._members = {each.name: each for each in welcome.members}
            self._version += 1
            if self._ready is not None and self._ready.number not in self._asked:
                self._send(self._ready)  # said before, to an orchestrator or a connection that is gone
            for asked in list(self._asked.values()):
                if asked.answer is None:
                    self._send(asked.request)
            self._changed.notify_all()

    def _shake_hands(self, connection: Connection, secret: bytes) -> tuple[Frames, Welcome]:
        half, frames = WorkerHalf(secret, self.me, __version__, channel=channel_of(connection)), Frames(ToWorker)
        connection.sendall(frames.frame(half.hello))
        challenge = _next(connection, frames)
        if not isinstance(challenge, Challenge):
            raise ProtocolError(f"who answers refuses this worker ({_words(challenge)})")
        proof, key_in, key_out = half.answer(challenge)
        connection.sendall(frames.frame(proof))
        frames.trust(key_in, key_out)
        with self._changed:
            holds = Holds(numbers={name: tuple(sorted(held)) for name, held in self._holds.items() if held})
        connection.sendall(frames.frame(holds))
        welcome = _next(connection, frames)
        if isinstance(welcome, Refused):
            raise Refused_(welcome.why)
        if not isinstance(welcome, Welcome):
            raise ProtocolError(f"the handshake ends with {_words(welcome)}")
        return frames, welcome

    def _read(self) -> None:
        assert self._socket is not None
        assert self._frames is not None
        while True:
            message = _next(self._socket, self._frames, self._look)
            with self._changed:
                if isinstance(message, Told):
                    self._members[message.member.name] = message.member
                    self._version += 1
                elif isinstance(message, Answer):
                    asked = self._asked.get(message.number)
                    if asked is not None and asked.answer is None:
                        asked.answer = message
                        self._take_note(asked.request, message)
                elif isinstance(message, Refused):
                    raise Refused_(message.why)
                self._changed.notify_all()

    def _look(self, connection: Connection) -> None:
        """Wait until there is something to read, where another node may lead later. Raises _Moved: it does."""
        if self._place is None:
            return
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        while not poll.poll(1000 * MOVED_S):
            with suppress(OSError, RobustRunError):
                if self._where() != self._place:
                    connection.shutdown(socket.SHUT_RDWR)  # who is about to send something waits no longer
                    raise _Moved

    def _take_note(self, request: Request, answer: Answer) -> None:
        """What this worker holds changes with the answer, before anybody reads it: the connection may be lost at any moment."""
        if not isinstance(request, QueueCall) or answer.error:
            return
        held = self._holds.setdefault(request.queue, set())
        held.update(item.number for item in answer.items)
        if isinstance(request.event, (Done, Keep, GiveBack)):
            held.difference_update(request.event.numbers)
        elif isinstance(request.event, Restore):
            held.clear()

    def _hang_up(self) -> None:
        with self._changed:
            self._is_in = False
            if self._socket is not None:
                self._socket.close()
            self._socket = self._frames = None

    def _end(self, why: str) -> None:
        with self._changed:
            self._over = self._over or why
            self._changed.notify_all()


class _Moved(Exception):  # noqa: N818 (an outcome)
    """Another node leads the job."""


class Refused_(Exception):  # noqa: N801, N818 (an outcome; `Refused` is the word for it on the wire)
    """The orchestrator does not let this worker in."""


def connected(place: Place, timeout_s: float) -> Connection:
    """Return a connection to where the orchestrator is. Raises OSError, UserError for files that cannot be used."""
    plain = socket.create_connection((place.address, place.port), timeout_s)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if place.tls is None:
            return plain
        from robust_run.roles.hidden import hidden

        return hidden(plain, place.tls.cert, place.tls.key, place.tls.ca)
    except BaseException:
        plain.close()
        raise


def channel_of(connection: Connection) -> bytes:
    """Return what tells a TLS connection from any other; empty: it is none."""
    return b"" if isinstance(connection, socket.socket) else connection.channel


def _next(connection: Connection, frames: Frames, wait: Callable[[Connection], None] = lambda _: None) -> object:
    while (message := frames.next()) is None:
        wait(connection)
        data = connection.recv(1 << 18)
        if not data:
            raise ConnectionResetError("the orchestrator hung up")
        frames.feed(data)
    return message


def _words(message: object) -> str:
    return message.why if isinstance(message, Refused) else f"a {type(message).__name__}"
