"""TLS of the connections between keepers, with the certificate, key and CA of the job's agents. Imported where a job has them.

What binds a connection to the job is the key that both sides prove (`link`), over the channel that was agreed on here. What this
adds is that nobody on the way can read or change the bytes of a state.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
from collections.abc import Callable, Iterator

from robust_run import tls
from robust_run.ckpt_io.memory.agent_protocol import TlsFiles
from robust_run.ckpt_io.memory.copies.link import LinkLost, LinkRefused
from robust_run.errors import UserError

#: A record of TLS that says "internal error": to one who did not begin to speak it, before it is hung up on.
ALERT = b"\x15\x03\x03\x00\x02\x02\x50"
_SAME = "all nodes need the same --tls options"


class LinkTls:
    """Both ends: keepers call each other."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises UserError for files that cannot be used, and where there is no certificate."""
        if not files.cert:
            raise UserError("keepers call each other, so each shows a certificate; give --tls-cert and --tls-key, too")
        called = tls.server_context(files.cert, files.key, files.ca)
        calls = tls.client_context(files.cert, files.key, files.ca)
        assert called is not None and calls is not None, "there is a certificate"
        self._called, self._calls = called, calls

    def call(self, connection: socket.socket, made: Callable[[socket.socket], None]) -> tuple[ssl.SSLSocket, bytes]:
        """Agree on TLS, as the one who calls; return the socket of it, and what names the channel. Raises LinkLost.

        `made` gets that socket before it is waited on.
        """
        with self.agreeing():
            wire = self._calls.wrap_socket(connection, do_handshake_on_connect=False)
        try:
            made(wire)
            with self.agreeing():
                wire.do_handshake()
                return wire, _channel_of(wire)
        except BaseException:
            wire.close()
            raise

    @contextlib.contextmanager
    def agreeing(self) -> Iterator[None]:
        """Have what goes wrong said as what it means before the first word has come: a certificate that the other side does
        not take may show as late as that. Raises LinkLost.
        """
        try:
            yield
        except TimeoutError as error:
            raise LinkLost("it does not answer") from error
        except (LinkLost, OSError) as error:
            raise _told(error) from error

    def answer(self, connection: socket.socket) -> ssl.SSLSocket:
        """Begin, as the one who is called, on a socket that does not block. Raises OSError."""
        return self._called.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def go_on(self, connection: socket.socket) -> bytes | int:
        """Go on with what has come; return what names the channel, or the event to wait for. Raises OSError."""
        assert isinstance(connection, ssl.SSLSocket)
        try:
            connection.do_handshake()
        except ssl.SSLWantReadError:
            return selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            return selectors.EVENT_WRITE
        return _channel_of(connection)

    def waits(self, error: Exception) -> bool:
        """Whether this only says that more has to come."""
        return isinstance(error, ssl.SSLWantReadError | ssl.SSLWantWriteError)

    def refuse(self, connection: socket.socket) -> None:
        """Tell one who has said nothing that TLS is spoken here: without TLS it waits for a word of ours."""
        with contextlib.suppress(OSError):
            socket.socket.send(connection, ALERT)


def _channel_of(wire: ssl.SSLSocket) -> bytes:
    """Return what both ends know of a channel, and no other channel has. Raises OSError."""
    name = wire.get_channel_binding("tls-unique")
    if not name:
        raise OSError("TLS gives the channel no name, so no proof can cover it")
    return name


def _told(error: LinkLost | OSError) -> LinkLost:
    """Return what failed before the first word as a clause about the other end."""
    reason = str(getattr(error, "reason", "") or "")
    if isinstance(error, ssl.SSLCertVerificationError):
        return LinkRefused(f"its certificate is not of this job's CA ({error.verify_message}); check --tls-ca")
    if isinstance(error, LinkLost | ConnectionError | ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return LinkLost(f"it hung up while TLS was agreed on; {_SAME}")
    if not isinstance(error, ssl.SSLError):
        return LinkLost(f"the connection failed: {error.strerror or error}")
    if "CERT" in reason or "UNKNOWN_CA" in reason:
        return LinkRefused(f"it does not take this node's certificate ({reason}); {_SAME}, of one CA")
    if "ALERT" in reason:
        return LinkLost(f"it gave TLS up ({reason})")
    return LinkRefused(f"it does not answer in TLS ({reason or error}); {_SAME}")
