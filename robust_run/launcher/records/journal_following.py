"""Following a journal that another process writes: whole lines, a piece at a time, and whether what was taken still is so.

Used for decisions, so that nothing is taken on trust: a network file system may show a part of a file before what comes ahead of
it. A line that makes no sense is looked at once more, and before what was taken counts, the file is compared with it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

import msgspec

from robust_run.decoders import json_decoder
from robust_run.launcher.records.journal import JournalEntry

#: So much is read at a time, and a line more: some milliseconds, in which nothing else is done.
PIECE_BYTES = 64 << 10
_COMPARED_BYTES = 1 << 20


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Lines that were read, in order."""

    entries: tuple[JournalEntry, ...] = ()
    is_last: bool = False
    """There is no more for now."""


class JournalFollower:
    """A journal as far as it was read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.first_line = b""
        """Its header; empty: there is none yet."""
        self._taken_bytes = 0
        self._digest = hashlib.blake2b()
        self._doubted_at = -1
        """Where a line stands that made no sense at the last look."""
        self._decoder = json_decoder(JournalEntry)

    @property
    def has_taken(self) -> bool:
        """Whether anything was read yet."""
        return self._taken_bytes > 0

    def read(self, *, is_final: bool = False) -> Piece | None:
        """Read on. None: this is another file now, or has been cut: all that was read is void. Raises OSError.

        `is_final`: nobody writes it any more, so that what is torn stays torn.
        """
        with open(self.path, "rb") as file:
            if os.fstat(file.fileno()).st_size < self._taken_bytes:
                return None
            file.seek(self._taken_bytes)
            lines = tuple(self._lines(iter(file.readline, b""), is_final=is_final))
            return Piece(
                entries=tuple(entry for _, entry in lines if entry is not None),
                is_last=sum(size for size, _ in lines) < PIECE_BYTES,
            )

    def _lines(self, lines: Iterator[bytes], *, is_final: bool) -> Iterator[tuple[int, JournalEntry | None]]:
        """Yield sizes of lines and what they say; None: nothing that makes sense, or it is the first."""
        read_bytes = 0
        for line in lines:
            if read_bytes >= PIECE_BYTES or not (is_final or line.endswith(b"\n")):
                return
            entry = self._entry(line)
            if entry is None and self.first_line and not is_final and self._doubted_at != self._taken_bytes:
                self._doubted_at = self._taken_bytes
                return
            self.first_line = self.first_line or line.rstrip(b"\n")
            self._digest.update(line)
            self._taken_bytes += len(line)
            read_bytes += len(line)
            yield len(line), entry

    def _entry(self, line: bytes) -> JournalEntry | None:
        if not self.first_line:
            return None
        try:
            return self._decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def is_unchanged(self) -> bool:
        """Whether what was taken is what the file has there now. Reads all of it: for a thread of its own. Raises OSError."""
        digest, left_bytes = hashlib.blake2b(), self._taken_bytes
        with open(self.path, "rb") as file:
            while left_bytes:
                content = file.read(min(left_bytes, _COMPARED_BYTES))
                if not content:
                    return False
                digest.update(content)
                left_bytes -= len(content)
        return digest.digest() == self._digest.digest()
