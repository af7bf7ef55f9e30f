"""A connection of the keeper: what came, as messages, and what is to be sent. Nothing here waits."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence

import msgspec

from robust_run.ckpt_io.memory.frames import FrameRefused, frame, take

_CHUNK_BYTES = 1 << 16
#: One that does not read what it asked for is not served on.
_MOST_UNSENT_BYTES = 1 << 20


class Peer:
    """One connection, without blocking."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.number = number
        self.rank: int | None = None
        """Of the worker; None: it has not said who it is."""
        self.attempt = -1
        self.known: frozenset[int] = frozenset()
        """Buffers that it may be told to write to."""
        self.reading: set[int] = set()
        """Buffers that were handed out to it and are read."""
        self.is_open = True
        self._came = bytearray()
        self._unsent = bytearray()

    @property
    def has_unsent(self) -> bool:
        """Whether something waits until it can be sent."""
        return bool(self._unsent)

    def receive(self) -> Iterator[bytes]:
        """Yield the messages that have come. At its end, or where what came is no message, `is_open` is False.

        Raises:
            FrameRefused: What came is no message.
        """
        while self.is_open:
            try:
                content = self.socket.recv(_CHUNK_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                content = b""
            if not content:
                self.is_open = False
                return
            self._came += content
            while (body := self._next()) is not None:
                yield body

    def _next(self) -> bytes | None:
        try:
            return take(self._came)
        except FrameRefused:
            self.is_open = False
            raise

    def send(self, message: msgspec.Struct, descriptors: Sequence[int] = ()) -> None:
        """Send a message, and descriptors with its first byte. One who does not read is hung up on."""
        self._unsent += frame(message)
        if not descriptors:
            self.flush()
            return
        if len(self._unsent) != len(frame(message)):  # descriptors belong to the first byte of their own message
            self.is_open = False
            return
        try:
            sent = socket.send_fds(self.socket, [bytes(self._unsent)], list(descriptors))
        except OSError:
            self.is_open = False
            return
        del self._unsent[:sent]

    def flush(self) -> None:
        """Send what waits."""
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]
        except (BlockingIOError, InterruptedError):
            self.is_open = self.is_open and len(self._unsent) <= _MOST_UNSENT_BYTES
        except OSError:
            self.is_open = False

    def close(self) -> None:
        """Hang up."""
        self.is_open = False
        self.socket.close()
