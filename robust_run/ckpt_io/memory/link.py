"""A proven connection between the keepers of two nodes: words that nobody else can say, and bytes of parts. Blocking, with
limits.

**Greeting.** Each side shows that it knows the job's key, over nonces of both. Before the one who calls has, nothing is kept
for it but 48 bytes. **Words** are msgpack with an HMAC over a direction, a counter and the word: none can be forged, repeated,
left out or turned round. **Bytes of parts** are held against the xxh3_128 digest that stands in such a word: that guards
against accidents, not against one who changes them on the way; nor is anything hidden from who listens there.

**With TLS** (`link_tls`) that is agreed on first, and the proofs cover its channel: nobody can stand between who has no key,
whatever certificates it holds. What is said is the same, and all of it is hidden and guarded.
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
from typing import Any, NamedTuple, Protocol

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
_SENT_BLOCK_BYTES = 256 << 10
"""What is encrypted is read in such blocks: they stay in a core's cache."""
#: So much is encrypted with one key at most (AES-GCM is good for some 400 GB, RFC 8446, 5.5), then another link is made.
FRESH_KEYS_BYTES = 128 << 30
_TLS_ALERT = b"\x15"
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


class _HungUp(LinkLost):
    """The other end hung up where more was to come."""

    def __init__(self, came: bytes) -> None:
        super().__init__("it hung up")
        self.came = came
        """What came before."""


class Encrypts(Protocol):
    """Both ends of TLS: see `link_tls`."""

    def call(self, connection: socket.socket, made: Callable[[socket.socket], None]) -> tuple[socket.socket, bytes]:
        """Agree on it, as the one who calls; return what takes the socket's place, and the channel's name. Raises LinkLost.

        `made` gets that before it is waited on.
        """
        ...

    def agreeing(self) -> contextlib.AbstractContextManager[None]:
        """Have what goes wrong said as what it means before the first word has come. Raises LinkLost."""
        ...

    def answer(self, connection: socket.socket) -> socket.socket:
        """Begin, as the one who is called, on a socket that does not block; return what takes its place. Raises OSError."""
        ...

    def go_on(self, connection: socket.socket) -> bytes | int:
        """Go on with what has come; return what names the channel, or the event to wait for. Raises OSError."""
        ...

    def waits(self, error: Exception) -> bool:
        """Whether this only says that more has to come."""
        ...

    def refuse(self, connection: socket.socket) -> None:
        """Tell one who has said nothing that TLS is spoken here: without TLS it waits for a word of ours."""
        ...


class Credentials(NamedTuple):
    """What a keeper has to show, and to see, at each of its connections."""

    key: bytes = b""
    """Empty: nothing is copied between nodes."""
    tls: Encrypts | None = None
    trouble: str = ""
    """Why nobody can be called; empty: they can."""


def proof(key: bytes, label: bytes, ours: bytes, theirs: bytes, channel: bytes = b"") -> bytes:
    """Return what shows that we know the key; `ours` and `theirs` are the nonces of the server and of the client. `channel`
    names the TLS channel; empty: there is none.
    """
    return hmac.digest(key, b"robust-run copies 1\0" + label + b"\0" + ours + theirs + channel, "sha256")


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
        with _told():
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
        shut(self._socket)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def greet(
    connection: socket.socket,
    key: bytes,
    channel: bytes = b"",
    agreeing: Callable[[], contextlib.AbstractContextManager[None]] | None = None,
) -> Link:
    """Prove to each other that both know the key, as the one who calls. `channel`: of TLS, with what tells its troubles.

    Raises:
        LinkLost: The other end is none of ours.
    """
    with (agreeing or _plainly)():
        theirs = exactly(connection, NONCE_BYTES)
    with _told():
        ours = secrets.token_bytes(NONCE_BYTES)
        connection.sendall(ours + proof(key, b"client", theirs, ours, channel))
        said = exactly(connection, PROOF_BYTES)
    if not hmac.compare_digest(said, proof(key, b"server", theirs, ours, channel)):
        raise LinkLost("it does not know the job's key")
    session_key = proof(key, b"session", theirs, ours, channel)
    return Link(connection, session_key, is_client=True, is_encrypted=bool(channel))


def exactly(connection: socket.socket, size_bytes: int) -> bytes:
    """Return so many bytes. Raises LinkLost, OSError."""
    came = bytearray()
    while len(came) < size_bytes:
        content = connection.recv(size_bytes - len(came))
        if not content:
            raise _HungUp(bytes(came))
        came += content
    return bytes(came)


def dial(
    host: str, port: int, to_show: Credentials, wait_s: float, made: Callable[[socket.socket], None] = lambda _: None
) -> Link:
    """Return a proven connection to another keeper. Raises LinkLost.

    `made` gets each socket before it is waited on: see `shut`.
    """
    if to_show.trouble:
        raise LinkRefused(to_show.trouble)
    with _told():
        connection = _connected(host, port, wait_s, made)
    try:
        with _told():
            set_up(connection)
        if to_show.tls is None:
            return greet(connection, to_show.key)
        connection, channel = to_show.tls.call(connection, made)
        return greet(connection, to_show.key, channel, to_show.tls.agreeing)
    except BaseException:
        connection.close()
        raise


def _connected(host: str, port: int, wait_s: float, made: Callable[[socket.socket], None]) -> socket.socket:
    """Return a connection to one of the host's addresses. Raises OSError."""
    failure = OSError("it has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(wait_s)
            made(connection)
            connection.connect(address)
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise failure


def shut(connection: socket.socket) -> None:
    """End a connection for both sides, from any thread: whoever waits on it is told, also for it to be made.

    TLS is left alone: a socket of it that is told to shut down takes what another thread sends then unencrypted.
    """
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


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


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """Have it said where one without TLS has called one with TLS, who sends an alert and hangs up."""
    try:
        with _told():
            yield
    except _HungUp as error:
        if error.came.startswith(_TLS_ALERT):
            raise LinkRefused("it speaks TLS, this node does not; all nodes need the same --tls options") from error
        raise
