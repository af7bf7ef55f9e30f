"""Reads a virtual file: small reads through the cache, large ones straight into the caller's memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from robust_run.ckpt_io.reading import Wanted
from robust_run.ckpt_io.views.cache import Load, UnitCache, UnitKey
from robust_run.ckpt_io.views.types import ViewPiece, ViewSource, VirtualFile

#: Reads of at least so much do not go through the cache: the source reads their units in parallel.
LARGE_BYTES = 16 << 20
#: How far a reader that goes straight on is served ahead: it doubles with each step, up to this.
AHEAD_BYTES = 64 << 20
#: A large read is done in steps of so much.
_WINDOW_BYTES = 256 << 20
#: A kernel that reads ahead by itself asks out of order by so much.
_SLACK_BYTES = 4 << 20
#: Who has read so much without a jump reads more than a header.
_RUN_BYTES = 1 << 20


class Sink(Protocol):
    """Takes bytes at a place."""

    def put(self, at: int, data: memoryview | bytes) -> None:
        """Copy the bytes to `at`, counted from the sink's start."""
        ...


@dataclass
class BufferSink:
    """A buffer of the caller's."""

    buffer: memoryview

    def put(self, at: int, data: memoryview | bytes) -> None:
        """Copy."""
        self.buffer[at : at + len(data)] = data


@dataclass
class AddressSink:
    """Memory of a C library. The copy does not hold the GIL."""

    address: int

    def put(self, at: int, data: memoryview | bytes) -> None:
        """Copy; a memoryview must be writable, as those of the cache are."""
        if isinstance(data, bytes):
            ctypes.memmove(self.address + at, data, len(data))
        else:
            source = ctypes.c_char.from_buffer(data)
            ctypes.memmove(self.address + at, ctypes.addressof(source), len(data))


@dataclass
class Track:
    """Where one reader is, to see whether it goes straight on."""

    next_bytes: int = 0
    run_bytes: int = 0
    """How much it read without a jump."""
    window_bytes: int = 0
    fetched_to_bytes: int = 0


def read_view(source: ViewSource, file: VirtualFile, offset_bytes: int, buffer: memoryview) -> None:
    """Fill a buffer with bytes of a virtual file that has them all, in parallel. Raises CheckpointError.

    A tensor that was cut along its last axis is many small pieces; so callers go window by window.
    """
    wanted, at = [], 0
    for piece in file.pieces(offset_bytes, offset_bytes + len(buffer)):
        if isinstance(piece, bytes):
            buffer[at : at + len(piece)] = piece
            at += len(piece)
        else:
            wanted.append(Wanted(piece.file, piece.offset_bytes, buffer[at : at + piece.size_bytes]))
            at += piece.size_bytes
    source.read(wanted)


class ViewReader:
    """One virtual file of one source. Safe to use from threads; each reader has a `Track` of its own."""

    def __init__(self, source: ViewSource, file: VirtualFile, cache: UnitCache) -> None:
        self.file = file
        self.source = source
        self._cache = cache

    def read_into(self, offset_bytes: int, buffer: memoryview, track: Track) -> int:
        """Fill a buffer and return how much of it; less only at the end of the file. Raises CheckpointError and StoreError."""
        end = min(offset_bytes + len(buffer), self.file.size_bytes)
        if end <= offset_bytes:
            return 0
        if end - offset_bytes < LARGE_BYTES:
            return self.copy(offset_bytes, end - offset_bytes, BufferSink(buffer), track)
        for at in range(offset_bytes, end, _WINDOW_BYTES):
            part = buffer[at - offset_bytes : min(at + _WINDOW_BYTES, end) - offset_bytes]
            read_view(self.source, self.file, at, part)
        return end - offset_bytes

    def copy(self, offset_bytes: int, size_bytes: int, sink: Sink, track: Track) -> int:
        """Copy bytes out of the cache, and begin to fetch what will be asked for next. Returns how many; less only at the end."""
        end = min(offset_bytes + size_bytes, self.file.size_bytes)
        self._run_ahead(offset_bytes, end, track)
        at = 0
        for piece in self.file.pieces(offset_bytes, end):
            if isinstance(piece, bytes):
                sink.put(at, piece)
                at += len(piece)
                continue
            for key, size, begin, count in self._units(piece):
                with self._cache.pinned(key, size, self._load(key)) as unit:
                    sink.put(at, unit[begin : begin + count])
                at += count
        return at

    def _units(self, piece: ViewPiece) -> Iterator[tuple[UnitKey, int, int, int]]:
        """Yield of each unit in a piece: its key, its size, and what of it belongs to the piece (begin, count)."""
        file = self.source.manifest.files[piece.file]
        at, end = piece.offset_bytes, piece.offset_bytes + piece.size_bytes
        while at < end:
            unit, begin = divmod(at, file.unit_bytes)
            size = min(file.unit_bytes, file.size_bytes - unit * file.unit_bytes)
            count = min(size - begin, end - at)
            yield UnitKey(self.source.manifest.uuid, piece.file, unit), size, begin, count
            at += count

    def _load(self, key: UnitKey) -> Load:
        unit_bytes = self.source.manifest.files[key.file].unit_bytes

        def load(buffer: memoryview) -> None:
            self.source.read([Wanted(key.file, key.unit * unit_bytes, buffer)])

        return load

    def _run_ahead(self, offset_bytes: int, end: int, track: Track) -> None:
        """Fetch ahead of a reader that goes straight on; of one that jumps, nothing."""
        if abs(offset_bytes - track.next_bytes) > _SLACK_BYTES:
            track.next_bytes, track.run_bytes, track.window_bytes, track.fetched_to_bytes = (
                end,
                end - offset_bytes,
                0,
                end,
            )
            return
        track.next_bytes = max(track.next_bytes, end)
        track.run_bytes += end - offset_bytes
        if track.run_bytes < _RUN_BYTES or track.next_bytes + track.window_bytes // 2 < track.fetched_to_bytes:
            return
        limit = min(AHEAD_BYTES, self._cache.limit_bytes // 8)
        track.window_bytes = min(max(2 * track.window_bytes, LARGE_BYTES), limit)
        start = max(track.fetched_to_bytes, track.next_bytes)
        track.fetched_to_bytes = min(track.next_bytes + track.window_bytes, self.file.size_bytes)
        wanted: dict[UnitKey, int] = {}
        for piece in self.file.pieces(start, track.fetched_to_bytes):
            if not isinstance(piece, bytes):
                for key, size, _, _ in self._units(piece):
                    wanted.setdefault(key, size)
        self._cache.fetch_ahead((key, size, self._load(key)) for key, size in wanted.items())
