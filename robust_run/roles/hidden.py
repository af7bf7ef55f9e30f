"""A socket of a worker with TLS: any thread may send while another reads.

OpenSSL does not allow two threads in one connection at a time, and a read that waits would keep who sends from it. So the
bytes go through memory: threads are in OpenSSL by turns, and wait at the socket alone.
"""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress

_READ_BYTES = 1 << 18


class HiddenSocket:
    """What `Client` uses of a socket, over one that is connected. Raises OSError, ssl.SSLError among them, as a socket does."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext) -> None:
        """Shake hands, within the socket's timeout."""
        self._plain = plain
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out)
        self._lock = threading.Lock()
        self._is_over = False
        """The other has hung up."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                self._fill()
        self._flush()

    @property
    def channel(self) -> bytes:
        """What tells this connection from any other."""
        return self._tls.get_channel_binding("tls-unique") or b""

    def recv(self, size: int) -> bytes:
        """Wait for bytes, and return all that are here: what is left can be waited for at the socket. None: the other hung up."""
        while True:
            data = b""
            with self._lock, suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError, ssl.SSLEOFError):
                while more := self._tls.read(size):
                    data += more
                self._is_over = True
            if data or self._is_over:
                return data
            self._fill()

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        with self._lock:
            view = memoryview(data)
            while view:
                view = view[self._tls.write(view) :]
            self._flush()

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._plain.fileno()

    def settimeout(self, seconds: float | None) -> None:
        """See `socket.settimeout`."""
        self._plain.settimeout(seconds)

    def shutdown(self, how: int) -> None:
        """See `socket.shutdown`."""
        self._plain.shutdown(how)

    def close(self) -> None:
        """See `socket.close`."""
        self._plain.close()

    def _flush(self) -> None:
        data = self._out.read()
        if data:
            self._plain.sendall(data)

    def _fill(self) -> None:
        data = self._plain.recv(_READ_BYTES)
        if data:
            self._in.write(data)
        else:
            self._is_over = True
            self._in.write_eof()


def hidden(plain: socket.socket, cert: str, key: str, ca: str) -> HiddenSocket:
    """Return a connection with TLS over one without. Raises UserError for files that cannot be used, OSError."""
    from robust_run.tls import client_context

    context = client_context(cert, key, ca)
    assert context is not None
    return HiddenSocket(plain, context)
