"""A proven connection between the keepers of two nodes: words that nobody else can say, and bytes of parts. Blocking, with
limits.

**Greeting.** Each side shows that it knows the job's key, over nonces of both. Before the one who calls has, nothing is kept
for it but 48 bytes. **Words** are msgpack with an HMAC over a direction, a counter and the word: none can be forged, repeated,
left out or turned round. **Bytes of parts** are held against the xxh3_128 digest that stands in such a word: that guards
against accidents, not against one who changes them on the way; nor is anything hidden from who listens there.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from robust_run.ckpt_io.memory.copy_words import Answered, Asked, PartSent
from robust_run.store.digests import digest_of

PROOF_BYTES = KEY_BYTES = 32
NONCE_BYTES = 16
MOST_WORD_BYTES = 64 << 10
#: Between two bytes of one word or part.
STALL_S = 20.0
CHUNK_BYTES = 8 << 20
"""Sent in one go: then there is a rest, where one was asked for."""
_BLOCK_BYTES = 1 << 20
_LENGTH_BYTES, _MAC_BYTES = 4, 32
_encoder = msgspec.msgpack.Encoder()
_asked: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Asked)
_answered: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Answered)


class LinkLost(Exception):  # noqa: N818 - never leaves this package
    """The other end is gone, stands still, or is none of ours: what happened, as a clause for people."""


class LinkRefused(LinkLost):
    """Nobody listens there any more: the keeper is gone, with all that it held."""


def proof(key: bytes, label: bytes, ours: bytes, theirs: bytes) -> bytes:
    """Return what shows that we know the key; `ours` and `theirs` are the nonces of the server and of the client."""
    return hmac.digest(key, b"robust-run copies 1\0" + label + b"\0" + ours + theirs, "sha256")


class Link:
    """One connection. For one thread; another one may `cut` it."""

    def __init__(self, connection: socket.socket, session_key: bytes, *, is_client: bool) -> None:
        connection.settimeout(STALL_S)
        self._socket = connection
        self._key = session_key
        self._sends, self._hears = (b"c", b"s") if is_client else (b"s", b"c")
        self._decoder = _answered if is_client else _asked
        self._sent = self._heard = 0

    def send(self, word: msgspec.Struct) -> None:
        """Say a word. Raises LinkLost."""
        body = _encoder.encode(word)
        mac = self._mac(self._sends, self._sent, body)
        self._sent += 1
        with _told():
            self._socket.sendall(len(body).to_bytes(_LENGTH_BYTES, "big") + body + mac)

    def receive(self, wait_s: float | None = STALL_S) -> Any:
        """Return the next word, which begins within this time.

        Raises:
            LinkLost: It does not, or it is none of the other side's.
        """
        with _told():
            self._socket.settimeout(wait_s)
            length = self._exactly(1)
            self._socket.settimeout(STALL_S)
            length += self._exactly(_LENGTH_BYTES - 1)
            size_bytes = int.from_bytes(length, "big")
            if size_bytes > MOST_WORD_BYTES:
                raise LinkLost(f"it sent a word of {size_bytes} bytes; at most {MOST_WORD_BYTES} are read")
            body, mac = self._exactly(size_bytes), self._exactly(_MAC_BYTES)
        if not hmac.compare_digest(mac, self._mac(self._hears, self._heard, body)):
            raise LinkLost("it sent a word without the job's proof")
        self._heard += 1
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise LinkLost(f"it sent a word that is not understood: {error}") from error

    def receive_one(self, *kinds: type, wait_s: float | None = STALL_S) -> Any:
        """Return the next word, one of these. Raises LinkLost."""
        word = self.receive(wait_s)
        if not isinstance(word, kinds):
            raise LinkLost(f"it said {type(word).__name__} out of turn")
        return word

    def send_part(self, descriptor: int, used_bytes: int, rest: Callable[[float], None] | None = None) -> None:
        """Send the bytes of a part; after each chunk `rest` gets how many seconds it took. Raises LinkLost."""
        at = 0
        with _told():
            while at < used_bytes:
                began_s, end = time.monotonic(), min(at + CHUNK_BYTES, used_bytes)
                while at < end:
                    at += self._send_some(descriptor, at, end - at)
                if rest is not None and at < used_bytes:
                    rest(time.monotonic() - began_s)

    def _send_some(self, descriptor: int, at: int, most_bytes: int) -> int:
        try:
            sent = os.sendfile(self._socket.fileno(), descriptor, at, most_bytes)
        except (BlockingIOError, InterruptedError):
            waits = select.poll()
            waits.register(self._socket, select.POLLOUT)
            if not waits.poll(STALL_S * 1000):
                raise LinkLost(f"it took nothing for {STALL_S:.0f} s") from None
            return 0
        if not sent:
            raise LinkLost("the part is shorter than was said")
        return sent

    def receive_part(self, descriptor: int, said: PartSent, came: Callable[[int], None] = lambda _: None) -> bool:
        """Write the bytes of a part to a buffer; `came` gets how many. Whether they are what was said. Raises LinkLost."""
        with _told():
            return digest_of(self._written(descriptor, said.used_bytes, came)) == said.digest

    def _written(self, descriptor: int, used_bytes: int, came: Callable[[int], None]) -> Iterator[memoryview]:
        at, block = 0, memoryview(bytearray(min(_BLOCK_BYTES, used_bytes)))
        while at < used_bytes:
            count = self._socket.recv_into(block[: used_bytes - at])
            if not count:
                raise LinkLost("it hung up in the middle of a part")
            yield block[:count]
            done = 0
            try:
                while done < count:
                    done += os.pwrite(descriptor, block[done:count], at + done)
            except OSError as error:
                raise LinkLost(f"there is no memory for it here: {error.strerror or error}") from error
            at += count
            came(at)

    def _exactly(self, size_bytes: int) -> bytes:
        return exactly(self._socket, size_bytes)

    def _mac(self, direction: bytes, counter: int, body: bytes) -> bytes:
        return hmac.digest(self._key, direction + counter.to_bytes(8, "big") + body, "sha256")

    def cut(self) -> None:
        """End it for both sides, from any thread: whoever waits on it is told."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def greet(connection: socket.socket, key: bytes) -> Link:
    """Prove to each other that both know the key, as the one who calls.

    Raises:
        LinkLost: The other end is none of ours.
    """
    with _told():
        theirs = exactly(connection, NONCE_BYTES)
        ours = secrets.token_bytes(NONCE_BYTES)
        connection.sendall(ours + proof(key, b"client", theirs, ours))
        said = exactly(connection, PROOF_BYTES)
    if not hmac.compare_digest(said, proof(key, b"server", theirs, ours)):
        raise LinkLost("it does not know the job's key")
    return Link(connection, proof(key, b"session", theirs, ours), is_client=True)


def exactly(connection: socket.socket, size_bytes: int) -> bytes:
    """Return so many bytes. Raises LinkLost, OSError."""
    came = bytearray()
    while len(came) < size_bytes:
        content = connection.recv(size_bytes - len(came))
        if not content:
            raise LinkLost("it hung up")
        came += content
    return bytes(came)


def dial(host: str, port: int, key: bytes, wait_s: float) -> Link:
    """Return a proven connection to another keeper. Raises LinkLost."""
    with _told():
        connection = socket.create_connection((host, port), wait_s)
    try:
        with _told():
            set_up(connection)
        return greet(connection, key)
    except BaseException:
        connection.close()
        raise


def set_up(connection: socket.socket) -> None:
    """Have words leave at once, and the end of the other machine be noticed within half a minute. Raises OSError."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Have errors of a socket said as a clause about the other end."""
    try:
        yield
    except TimeoutError as error:
        raise LinkLost("it does not answer") from error
    except ConnectionRefusedError as error:
        raise LinkRefused(f"the connection failed: {error.strerror or error}") from error
    except OSError as error:
        raise LinkLost(f"the connection failed: {error.strerror or error}") from error
