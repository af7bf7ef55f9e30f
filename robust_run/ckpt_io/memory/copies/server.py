"""Where keepers of other nodes call: a thread that lets in those who know the job's key, and one for each of them after that.

One who has not proved it yet costs a socket and 48 bytes. There are few such at a time; where one more comes, the oldest goes:
the proof takes no longer than a round trip, so one of ours is through before many strangers can push it out.

With TLS, which comes first, it costs a handshake as well, and a round trip or two more: they take half of this one thread's
time at most, however many call.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from robust_run.ckpt_io.memory import buffers
from robust_run.ckpt_io.memory.copies.greeting import NONCE_BYTES, PROOF_BYTES, Credentials, proof, set_up
from robust_run.ckpt_io.memory.copies.guest_desk import GuestDesk, Room
from robust_run.ckpt_io.memory.copies.guests import Needed
from robust_run.ckpt_io.memory.copies.link import Link, LinkLost
from robust_run.ckpt_io.memory.copies.words import Go, Kept, Later, NoRoom, NotHere, Pull, Push, Stale

MOST_UNPROVEN = 8
#: With TLS: it takes three times as many round trips.
MOST_AGREEING = 24
PROOF_S = 5.0
#: Connections that are proven: one sends to us, and after a loss each rank of the job might fetch a part.
MOST_PROVEN = 256
_AGAIN_S = 0.2
#: After a step of a TLS handshake, so long as that took, this at most: a machine that stood still meanwhile did not work.
_MOST_REST_S = 0.01
_Result = TypeVar("_Result")


class Calls(Protocol):
    """Does something in the keeper's thread, and returns what it returned."""

    def __call__(self, job: Callable[[], _Result]) -> _Result:
        """Wait until it is done."""
        ...


@dataclass
class _Unproven:
    connection: socket.socket
    until_s: float
    is_agreeing: bool
    """On TLS."""
    has_spoken: bool = False
    channel: bytes = b""
    nonce: bytes = b""
    came: bytearray = field(default_factory=bytearray)


class CopyServer:
    """Lets keepers in. `run` is for a thread of its own."""

    def __init__(self, listening: socket.socket, ours: Credentials, serve: Callable[[Link, int], None]) -> None:
        """`serve` is called in a thread for each proven connection, with its number."""
        listening.setblocking(False)
        self._listening, self._key, self._tls, self._serve = listening, ours.key, ours.tls, serve
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ)
        self._unproven: dict[socket.socket, _Unproven] = {}
        self._proven, self._next_number = 0, 1
        self._lock = threading.Lock()

    def run(self) -> None:
        """Let them in, as long as the process runs."""
        while True:
            self.turn()

    def close(self) -> None:
        """Let nobody in any more."""
        for each in list(self._unproven.values()):
            self._drop(each)
        self._selector.close()
        self._listening.close()

    def turn(self) -> None:
        """Wait for the next, and let in who has come."""
        now_s = time.monotonic()
        wait_s = min((each.until_s - now_s for each in self._unproven.values()), default=None)
        for key, _ in self._selector.select(None if wait_s is None else max(0.0, wait_s)):
            if key.fileobj is self._listening:
                self._accept()
            elif (found := self._unproven.get(key.fileobj)) is not None:  # type: ignore[call-overload]
                self._hear(found)
        now_s = time.monotonic()
        for late in [each for each in self._unproven.values() if each.until_s <= now_s]:
            if late.is_agreeing and not late.has_spoken and self._tls is not None:
                self._tls.refuse(late.connection)
            self._drop(late)

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError:  # no descriptors left
            time.sleep(_AGAIN_S)
            return
        if len(self._unproven) >= (MOST_UNPROVEN if self._tls is None else MOST_AGREEING):
            oldest = next(iter(self._unproven.values()))
            self._hear(oldest)  # it may have proved it meanwhile
            if oldest.connection in self._unproven:
                self._drop(oldest)
        try:
            connection.setblocking(False)
            set_up(connection)
            if self._tls is not None:
                connection = self._tls.answer(connection)
            one = _Unproven(connection, time.monotonic() + PROOF_S, is_agreeing=self._tls is not None)
            if not one.is_agreeing:
                _ask(one)
        except (OSError, ValueError):
            connection.close()
            return
        self._unproven[connection] = one
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, one: _Unproven) -> None:
        try:
            if one.is_agreeing:
                self._agree(one)
            while not one.is_agreeing and one.connection in self._unproven:
                content = one.connection.recv(NONCE_BYTES + PROOF_BYTES - len(one.came))
                if not content:
                    self._drop(one)
                    return
                one.came.extend(content)
                if len(one.came) == NONCE_BYTES + PROOF_BYTES:
                    self._judge(one)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, ValueError) as error:
            if self._tls is None or not self._tls.waits(error):
                self._drop(one)

    def _agree(self, one: _Unproven) -> None:
        """Go on agreeing on TLS with one that has said something. Raises OSError."""
        assert self._tls is not None, "it is agreed on"
        one.has_spoken, began_s = True, time.monotonic()
        try:
            found = self._tls.go_on(one.connection)
        finally:
            time.sleep(min(time.monotonic() - began_s, _MOST_REST_S))
        if isinstance(found, int):
            self._selector.modify(one.connection, found)
            return
        one.channel, one.is_agreeing = found, False
        self._selector.modify(one.connection, selectors.EVENT_READ)
        _ask(one)

    def _judge(self, one: _Unproven) -> None:
        """Let in who knows the key; others go. Raises OSError."""
        theirs, said = bytes(one.came[:NONCE_BYTES]), bytes(one.came[NONCE_BYTES:])
        with self._lock:
            is_welcome = self._proven < MOST_PROVEN
        if not hmac.compare_digest(said, self._proof(b"client", one, theirs)) or not is_welcome:
            self._drop(one)
            return
        one.connection.send(self._proof(b"server", one, theirs))
        self._selector.unregister(one.connection)
        del self._unproven[one.connection]
        session_key = self._proof(b"session", one, theirs)
        link = Link(one.connection, session_key, is_client=False, is_encrypted=bool(one.channel))
        with self._lock:
            self._proven += 1
        number, self._next_number = self._next_number, self._next_number + 1
        threading.Thread(target=self._attend, args=(link, number), daemon=True).start()

    def _proof(self, label: bytes, one: _Unproven, theirs: bytes) -> bytes:
        return proof(self._key, label, one.nonce, theirs, one.channel)

    def _attend(self, link: Link, number: int) -> None:
        try:
            self._serve(link, number)
        finally:
            link.close()
            with self._lock:
                self._proven -= 1

    def _drop(self, one: _Unproven) -> None:
        del self._unproven[one.connection]
        self._selector.unregister(one.connection)
        one.connection.close()


def _ask(one: _Unproven) -> None:
    """Have it show that it knows the key. Raises OSError."""
    one.nonce = secrets.token_bytes(NONCE_BYTES)
    one.connection.send(one.nonce)


class Host:
    """Does what a keeper of another node asks for, in the thread of its connection."""

    def __init__(self, desk: GuestDesk, ledger: buffers.Ledger, call: Calls) -> None:
        self._desk, self._ledger, self._call = desk, ledger, call

    def serve(self, link: Link, number: int) -> None:
        """Serve one connection until it ends. What came in part then does not count."""
        with contextlib.suppress(LinkLost):
            while True:
                word = link.receive(None)
                if isinstance(word, Push):
                    self._take(link, word, number)
                else:
                    self._give(link, word)

    def _take(self, link: Link, push: Push, number: int) -> None:
        answer = self._room_for(push, number)
        if not isinstance(answer, Room):
            link.send(answer)
            return
        is_right = False
        try:
            link.send(Go())
            is_right = link.receive_part(answer.descriptor, push)
        finally:
            buffer = answer.buffer
            counts = self._call(lambda: self._desk.has_come(buffer, number, is_right=is_right))
        if not is_right:
            raise LinkLost("what came is not what was sent")
        link.send(Kept(stride=self._desk.stride) if counts else Stale(reason="another attempt has begun"))

    def _room_for(self, push: Push, number: int) -> Room | Kept | Stale | Later | NoRoom:
        answer = self._call(lambda: self._desk.asks(push, number))
        if not isinstance(answer, Needed):
            return answer
        size_bytes = answer.size_bytes
        try:
            made = self._reserved(push.rank, answer)
        except buffers.NoRoom as error:
            self._call(lambda: self._desk.has_no_room(push))
            return NoRoom(reason=str(error)[:1000])
        self._call(lambda: self._desk.reserved(push, made, size_bytes))
        answer = self._call(lambda: self._desk.asks(push, number))
        return Later(reason="its buffers are being written or read") if isinstance(answer, Needed) else answer

    def _reserved(self, rank: int, needed: Needed) -> list[int]:
        """Reserve buffers, in the place of what nobody is to start from any more if need be. Raises buffers.NoRoom."""
        try:
            return buffers.reserve(self._ledger, rank, needed.size_bytes, needed.wanted, needed.least)
        except buffers.NoRoom:
            if not self._call(self._desk.makes_room):
                raise
        return buffers.reserve(self._ledger, rank, needed.size_bytes, needed.wanted, needed.least)

    def _give(self, link: Link, pull: Pull) -> None:
        lent = self._call(lambda: self._desk.lend(pull))
        if isinstance(lent, NotHere):
            link.send(lent)
            return
        try:
            link.send(lent.said)
            link.send_part(lent.descriptor, lent.said.used_bytes)
        finally:
            os.close(lent.descriptor)
            buffer = lent.buffer
            self._call(lambda: self._desk.returned(buffer))
