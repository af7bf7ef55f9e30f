"""A proven connection between the keepers of two nodes: words that nobody else can say, and bytes of parts. Blocking, with
limits.

**Words** are msgpack with an HMAC over a direction, a counter and the word: none can be forged, repeated,
left out or turned round. **Bytes of parts** are held against the xxh3_128 digest that stands in such a word: that guards
against accidents, not against one who changes them on the way; nor is anything hidden from who listens there.

How it is made, and proven, is in `greeting`; with TLS (`link_tls`) all that is said is hidden and guarded, too.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from robust_run.ckpt_io.memory.copies.words import Answered, Asked, PartSent
from robust_run.store.digests import digest_of

MOST_WORD_BYTES = 64 << 10
#: Between two bytes of one word or part.
STALL_S = 20.0
CHUNK_BYTES = 8 << 20
"""Sent in one go: then there is a rest, where one was asked for."""
_BLOCK_BYTES = 1 << 20
_SENT_BLOCK_BYTES = 256 << 10
"""What is encrypted is read in such blocks: they stay in a core's cache."""
#: So much is encrypted with one key at most (AES-GCM is good for some 400 GB, RFC 8446, 5.5), then another link is made.
FRESH_KEYS_BYTES = 128 << 30
_LENGTH_BYTES, _MAC_BYTES = 4, 32
_encoder = msgspec.msgpack.Encoder()
_asked: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Asked)
_answered: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Answered)


class LinkLost(Exception):  # noqa: N818 - never leaves this package
    """The other end is gone, stands still, or is none of ours: what happened, as a clause for people."""


class LinkRefused(LinkLost):
    """To try again cannot help: nobody listens there any more (the keeper is gone, with all that it held), or the two sides
    have other options or certificates.
    """


class HungUp(LinkLost):
    """The other end hung up where more was to come."""

    def __init__(self, came: bytes) -> None:
        super().__init__("it hung up")
        self.came = came
        """What came before."""


class Link:
    """One connection. For one thread; another one may `cut` it."""

    def __init__(
        self, connection: socket.socket, session_key: bytes, *, is_client: bool, is_encrypted: bool = False
    ) -> None:
        """`is_encrypted`: the socket is one of TLS."""
        connection.settimeout(STALL_S)
        self._socket = connection
        self._block = memoryview(bytearray(_SENT_BLOCK_BYTES)) if is_encrypted else None
        """Where what is sent passes; None: the kernel sends it."""
        self._encrypted_bytes = 0
        self._key = session_key
        self._sends, self._hears = (b"c", b"s") if is_client else (b"s", b"c")
        self._decoder = _answered if is_client else _asked
        self._sent = self._heard = 0

    def send(self, word: msgspec.Struct) -> None:
        """Say a word. Raises LinkLost."""
        body = _encoder.encode(word)
        mac = self._mac(self._sends, self._sent, body)
        self._sent += 1
        with told():
            self._socket.sendall(len(body).to_bytes(_LENGTH_BYTES, "big") + body + mac)

    def receive(self, wait_s: float | None = STALL_S) -> Any:
        """Return the next word, which begins within this time.

        Raises:
            LinkLost: It does not, or it is none of the other side's.
        """
        with told():
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
            raise LinkLost(f"it sent a message that cannot be read: {error}") from error

    def receive_one(self, *kinds: type, wait_s: float | None = STALL_S) -> Any:
        """Return the next word, one of these. Raises LinkLost."""
        word = self.receive(wait_s)
        if not isinstance(word, kinds):
            raise LinkLost(f"it said {type(word).__name__} out of turn")
        return word

    def send_part(self, descriptor: int, used_bytes: int, rest: Callable[[float], None] | None = None) -> None:
        """Send the bytes of a part; after each chunk `rest` gets how many seconds it took. Raises LinkLost."""
        at = 0
        with told():
            while at < used_bytes:
                began_s, end = time.monotonic(), min(at + CHUNK_BYTES, used_bytes)
                while at < end:
                    at += self._send_some(descriptor, at, end - at)
                if rest is not None and at < used_bytes:
                    rest(time.monotonic() - began_s)

    @property
    def is_worn(self) -> bool:
        """Whether so much has been encrypted that another link should take its place."""
        return self._encrypted_bytes > FRESH_KEYS_BYTES

    def _send_some(self, descriptor: int, at: int, most_bytes: int) -> int:
        if self._block is None:
            return self._send_from_kernel(descriptor, at, most_bytes)
        sent = os.preadv(descriptor, [self._block[:most_bytes]], at)
        if not sent:
            raise LinkLost("the part is shorter than was said")
        self._socket.sendall(self._block[:sent])
        self._encrypted_bytes += sent
        return sent

    def _send_from_kernel(self, descriptor: int, at: int, most_bytes: int) -> int:
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
        with told():
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
        shut(self._socket)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def exactly(connection: socket.socket, size_bytes: int) -> bytes:
    """Return so many bytes. Raises LinkLost, OSError."""
    came = bytearray()
    while len(came) < size_bytes:
        content = connection.recv(size_bytes - len(came))
        if not content:
            raise HungUp(bytes(came))
        came += content
    return bytes(came)


def shut(connection: socket.socket) -> None:
    """End a connection for both sides, from any thread: whoever waits on it is told, also for it to be made.

    TLS is left alone: a socket of it that is told to shut down takes what another thread sends then unencrypted.
    """
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Have errors of a socket said as a clause about the other end."""
    try:
        yield
    except TimeoutError as error:
        raise LinkLost("it does not answer") from error
    except ConnectionRefusedError as error:
        raise LinkRefused(f"the connection failed: {error.strerror or error}") from error
    except OSError as error:
        raise LinkLost(f"the connection failed: {error.strerror or error}") from error
