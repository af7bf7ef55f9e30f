"""Connections between the keepers of two nodes, made and proven: whoever calls, and is answered, knows the job's key.

**Greeting.** Each side shows that it knows the job's key, over nonces of both. Before the one who calls has, nothing is kept
for it but 48 bytes.

**With TLS** (`link_tls`) that is agreed on first, and the proofs cover its channel: nobody can stand between who has no key,
whatever certificates it holds. What is said is the same, and all of it is hidden and guarded.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from robust_run.ckpt_io.memory.copies.link import HungUp, Link, LinkLost, LinkRefused, exactly, told

PROOF_BYTES = KEY_BYTES = 32
NONCE_BYTES = 16
_TLS_ALERT = b"\x15"


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


def dial(
    host: str, port: int, to_show: Credentials, wait_s: float, made: Callable[[socket.socket], None] = lambda _: None
) -> Link:
    """Return a proven connection to another keeper. Raises LinkLost.

    `made` gets each socket before it is waited on: see `shut`.
    """
    if to_show.trouble:
        raise LinkRefused(to_show.trouble)
    with told():
        connection = _connected(host, port, wait_s, made)
    try:
        with told():
            set_up(connection)
        if to_show.tls is None:
            return greet(connection, to_show.key)
        connection, channel = to_show.tls.call(connection, made)
        return greet(connection, to_show.key, channel, to_show.tls.agreeing)
    except BaseException:
        connection.close()
        raise


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
    with told():
        ours = secrets.token_bytes(NONCE_BYTES)
        connection.sendall(ours + proof(key, b"client", theirs, ours, channel))
        said = exactly(connection, PROOF_BYTES)
    if not hmac.compare_digest(said, proof(key, b"server", theirs, ours, channel)):
        raise LinkLost("it does not know the job's key")
    session_key = proof(key, b"session", theirs, ours, channel)
    return Link(connection, session_key, is_client=True, is_encrypted=bool(channel))


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


def set_up(connection: socket.socket) -> None:
    """Have words leave at once, and the end of the other machine be noticed within half a minute. Raises OSError."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """Have it said where one without TLS has called one with TLS, who sends an alert and hangs up."""
    try:
        with told():
            yield
    except HungUp as error:
        if error.came.startswith(_TLS_ALERT):
            raise LinkRefused("it speaks TLS, this node does not; all nodes need the same --tls options") from error
        raise
