"""A reply whose body goes straight from the socket into memory, with few system calls.

A paced connection delivers a few segments at a time. Woken for each of them, 32 threads spend their time waiting for the
interpreter rather than for the network. With SO_RCVLOWAT the kernel wakes a thread for a megabyte instead: that halves the CPU
time per byte.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from contextlib import suppress
from typing import Any

_PIECE_BYTES = 1 << 20


class Reply(http.client.HTTPResponse):
    """A reply that knows its socket."""

    def __init__(self, sock: socket.socket, *arguments: Any, **more: Any) -> None:
        """As `http.client` calls it."""
        super().__init__(sock, *arguments, **more)
        self.sock = sock

    def fill(self, view: memoryview) -> int:
        """Read the next bytes of the body, as many as fit; return how many: less only where the body ended.

        Raises what sockets raise: TimeoutError when not one byte came for as long as the socket waits.
        """
        at = self._fill_directly(view) if self._is_plain() else 0
        while at < len(view):
            got = self.readinto(view[at:])
            if not got:
                break
            at += got
        return at

    def interrupt(self) -> None:
        """Wake the thread that reads it, from another one."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def _is_plain(self) -> bool:
        """Whether the body's bytes are those on the socket, and it is known how many."""
        if isinstance(self.sock, ssl.SSLSocket) or self.sock.gettimeout() is None:
            return False
        return not self.chunked and self.length is not None and not self.isclosed()

    def _fill_directly(self, view: memoryview) -> int:
        """Read all that is wanted but the body's last byte: with that one, `http.client` notes the end by itself."""
        assert self.length is not None
        end = min(len(view), self.length - 1)
        if end < _PIECE_BYTES:
            return 0
        buffered = len(self.fp.peek(1))  # what came with the headers
        at = self.readinto(view[: min(buffered, end)]) if buffered else 0
        if buffered > at:
            return at
        try:
            while at < end and (got := self._receive(view[at:end])):
                at += got
                self.length -= got
        finally:
            with suppress(OSError):
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        return at

    def _receive(self, view: memoryview) -> int:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(len(view), _PIECE_BYTES))
        try:
            return self.sock.recv_into(view)
        except TimeoutError:
            wait_s = self.sock.gettimeout()
            self.sock.setblocking(False)
            try:
                return self.sock.recv_into(view)  # a slow connection is no silent one
            except BlockingIOError:
                raise TimeoutError("silent") from None
            finally:
                self.sock.settimeout(wait_s)
