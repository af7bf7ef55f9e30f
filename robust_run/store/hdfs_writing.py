"""Writing one file to HDFS: in order, under a name of its own, renamed at the end.

A DataNode that dies ends a write of hdfs-native for good, and the NameNode goes on offering it for minutes. While all that was
written is still at hand it is written again, elsewhere; later the error is `Unavailable`, and the caller must begin the file
again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from robust_run.store.buffers import byte_views
from robust_run.store.errors import AlreadyExists, Stalled, StoreError, Unavailable
from robust_run.store.local_writing import PART_PREFIX, PART_SUFFIX
from robust_run.store.watching import CallProgress

if TYPE_CHECKING:
    from hdfs_native import Client, FileWriter, WriteOptions

_PIECE_BYTES = 4 << 20
#: So much of a file is kept in memory, to be written again elsewhere.
_AT_HAND_BYTES = 16 << 20
#: Attempts, quick ones: on a small cluster the NameNode may offer the dead DataNode several times in a row.
_PATIENCE = 20
#: Of these attempts: a stall is no quick one, it takes `stall_s`.
_COST_OF_A_STALL = 5


class _Call(Protocol):
    def __call__(self, path: str, work: Callable[[CallProgress], Any]) -> Any: ...


class HdfsWriter:
    """A `Writer` of one file on HDFS."""

    any_order = False

    def __init__(
        self,
        client: Callable[[], Client],
        call: _Call,
        url: str,
        path: str,
        place: str,
        size_bytes: int | None,
        *,
        durable: bool,
        replace: bool,
    ) -> None:
        """Nothing is made before the first byte. `call` watches calls into hdfs-native and translates their errors."""
        self._client, self._call = client, call
        self._url, self._path, self._place = url, path, place
        self._size_bytes, self._durable, self._replace = size_bytes, durable, replace
        self._folder = place.rpartition("/")[0]
        self._at = 0
        self._writer: FileWriter | None = None
        self._close: Callable[[], None] = _nothing
        self._temporary: str | None = None
        self._at_hand: list[bytes] | None = []
        """All pieces so far; None when they are too many to keep."""
        self._is_closed = False

    def write_at(self, offset_bytes: int, buffers: Sequence[memoryview]) -> None:
        """Write the buffers; the offset must be where the last ones ended."""
        self._check_open()
        if offset_bytes != self._at:
            raise StoreError(self._url, self._path, f"HDFS files grow at their end, {self._at}, not at {offset_bytes}")
        for view in byte_views(buffers, to_fill=False):
            for at in range(0, len(view), _PIECE_BYTES):
                self._write(bytes(view[at : at + _PIECE_BYTES]))

    def _write(self, piece: bytes) -> None:
        """Write a piece: `bytes`, as hdfs-native takes anything else several times slower."""
        self._at += len(piece)
        if self._at_hand is not None:
            self._at_hand = [*self._at_hand, piece] if self._at <= _AT_HAND_BYTES else None
        self._advance([piece])

    def _advance(self, pieces: list[bytes], *, finishing: bool = False) -> None:
        """Write pieces; where that fails for a reason that may pass, write all that is at hand to a new file instead."""
        patience = _PATIENCE
        while True:
            try:
                self._send(pieces)
                if finishing:
                    self._complete()
                return
            except Unavailable as error:
                self._drop()
                patience -= _COST_OF_A_STALL if isinstance(error, Stalled) else 1
                if self._at_hand is None or patience <= 0:
                    self._is_closed = True
                    error.what += "; a broken write cannot be gone on with: begin this file again"
                    raise
                pieces = self._at_hand

    def _send(self, pieces: list[bytes]) -> None:
        if self._writer is None:
            self._begin()
        writer = self._writer
        for piece in pieces:
            self._call(self._path, lambda _, piece=piece: writer.write(piece))  # type: ignore[misc,union-attr]

    def _begin(self) -> None:
        from hdfs_native import WriteOptions

        name = f"{self._folder}/{PART_PREFIX}{uuid.uuid4().hex}{PART_SUFFIX}"
        self._temporary = name
        options = WriteOptions(overwrite=True, create_parent=True)
        self._writer, self._close = self._call(self._path, lambda _: _open(self._client(), name, options))

    def finish(self) -> None:
        """Have it on the DataNodes' disks, close it, give it its name."""
        self._check_open()
        if self._size_bytes is not None and self._at != self._size_bytes:
            raise StoreError(self._url, self._path, f"{self._at} bytes were written of {self._size_bytes}")
        self._advance([], finishing=True)
        self._publish()

    def _complete(self) -> None:
        writer = self._writer
        assert writer is not None
        if self._durable and self._at and hasattr(writer, "hsync"):
            self._call(self._path, lambda _: writer.hsync())
        self._call(self._path, lambda _: self._close())

    def _publish(self) -> None:
        name = self._temporary
        assert name is not None
        try:
            self._call(self._path, lambda _: self._client().rename(name, self._place, self._replace))
        except AlreadyExists:
            if self._replace:
                raise StoreError(self._url, self._path, "something that cannot be replaced is there") from None
            raise
        self._temporary, self._writer, self._at_hand, self._is_closed = None, None, None, True
        self._close = _nothing

    def abort(self) -> None:
        """Drop what was written."""
        self._is_closed = True
        self._drop()

    def _drop(self) -> None:
        name, self._temporary, self._writer, self._close = self._temporary, None, None, _nothing
        if name is not None:
            with suppress(StoreError):
                self._call(self._path, lambda _: self._client().delete(name, False))

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError(self._url, self._path, "is not being written any more")


def _open(client: Client, name: str, options: WriteOptions) -> tuple[FileWriter, Callable[[], None]]:
    """Return a new file and what closes it.

    A file object of Python closes itself when it is collected. Here that waits for minutes where a DataNode hangs, in whichever
    thread the collector happens to run: that may be the one that trains.
    """
    writer = client.create(name, options)
    close = writer.inner.close
    writer.close = _nothing  # type: ignore[method-assign]
    return writer, close


def _nothing() -> None:
    """Close nothing: no file is open, or it is to be closed by its writer alone."""
