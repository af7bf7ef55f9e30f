"""Which units of a copy are done: a file beside it, to which a record is appended when a unit's bytes have been written.

A record says what the bytes should be, so nothing that it names is believed: who goes on reads the bytes again, which
is far cheaper than to fetch them.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from types import TracebackType

_RECORD = struct.Struct("<IQ16sI")
_HEAD_BYTES = 64 << 10
_LIMIT_BYTES = 1 << 30
Unit = tuple[int, int]
"""File and unit."""


class Journal:
    """The journal of one copy. Safe to use from threads."""

    def __init__(self, path: str, identity: str) -> None:
        """Open it, or begin it anew if it is of another source (or damaged). `identity`: what is copied, as one line."""
        self.path = path
        self.done: dict[Unit, bytes] = {}
        """Digests of the units that were written, as they were when it was opened."""
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        head = identity.replace("\n", " ").encode()[: _HEAD_BYTES - 1] + b"\n"
        found = _read(self._file)
        if found.startswith(head):
            end = self._take(found, len(head))
            os.ftruncate(self._file, end)
            os.lseek(self._file, end, os.SEEK_SET)
        else:
            os.ftruncate(self._file, 0)
            os.lseek(self._file, 0, os.SEEK_SET)
            os.write(self._file, head)

    def note(self, file: int, unit: int, digest: bytes) -> None:
        """A unit's bytes have been written."""
        fields = struct.pack("<IQ16s", file, unit, digest)
        with self._lock:
            os.write(self._file, fields + struct.pack("<I", zlib.crc32(fields)))

    def close(self) -> None:
        """Close it, for the next time."""
        os.close(self._file)

    def remove(self) -> None:
        """The copy is whole."""
        os.unlink(self.path)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, found: bytes, at: int) -> int:
        """Read records up to the first that is torn; return where it begins."""
        while at + _RECORD.size <= len(found):
            file, unit, digest, crc = _RECORD.unpack_from(found, at)
            if zlib.crc32(found[at : at + _RECORD.size - 4]) != crc:
                break
            self.done[file, unit] = digest
            at += _RECORD.size
        return at


def _read(file: int) -> bytes:
    size = min(os.fstat(file).st_size, _LIMIT_BYTES)
    found = b""
    while len(found) < size:
        data = os.pread(file, size - len(found), len(found))
        if not data:
            break
        found += data
    return found
