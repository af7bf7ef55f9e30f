"""Pages of a journal by line number, while it grows. Used for live jobs by the server and for dead ones by the commands."""

from __future__ import annotations

import os

import msgspec

from robust_run.launcher.operator.views.status_types import EventLine, EventsView

#: Most lines, and most bytes (plus one line), of a page.
MOST_LINES = 1000
MOST_BYTES = 1 << 20

#: The place of every so-many-th line is remembered.
STRIDE = 64

_CHUNK_BYTES = 1 << 20


class JournalPages:
    """Reads a journal by line number. A line that is no JSON (cut short by a full disk) keeps its number and is left out."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._marks = [0]
        """Where each STRIDE-th line begins."""
        self._lines = 0
        """Whole lines known so far."""
        self._known_bytes = 0
        """Where the next line begins."""

    def catch_up(self, most_bytes: int = 1 << 62) -> bool:
        """Count lines that were appended, at most about so many bytes of them; return whether that was all.

        Raises OSError. A journal that has shrunk is another file: counting starts anew.
        """
        with open(self._path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < self._known_bytes:
                self._marks, self._lines, self._known_bytes = [0], 0, 0
            file.seek(self._known_bytes)
            position = self._known_bytes
            stop_at = position + most_bytes
            while position < stop_at:
                chunk = file.read(_CHUNK_BYTES)
                if not chunk:
                    return True
                self._count(chunk, position)
                position += len(chunk)
            return position >= size

    def _count(self, chunk: bytes, position: int) -> None:
        end = chunk.find(b"\n")
        while end >= 0:
            self._lines += 1
            self._known_bytes = position + end + 1
            if self._lines % STRIDE == 0:
                self._marks.append(self._known_bytes)
            end = chunk.find(b"\n", end + 1)

    @property
    def lines(self) -> int:
        """Whole lines known so far, the header among them."""
        return self._lines

    def page(self, first: int, limit: int = MOST_LINES) -> EventsView:
        """Return lines from number `first` on, at most `limit`; negative counts from the end; 0 is the header, left out.

        Knows only what `catch_up` has seen. Raises OSError.
        """
        first = max(self._lines + first, 1) if first < 0 else max(first, 1)
        limit = max(min(limit, MOST_LINES), 1)
        found: list[EventLine] = []
        index = first
        if first < self._lines:
            with open(self._path, "rb") as file:
                file.seek(self._marks[first // STRIDE])
                for _ in range(first % STRIDE):
                    file.readline()
                room = MOST_BYTES
                while index < self._lines and index - first < limit and room > 0:
                    line = file.readline().rstrip(b"\n")
                    room -= len(line)
                    if _is_entry(line):
                        found.append(EventLine(index=index, line=msgspec.Raw(line)))
                    index += 1
        return EventsView(events=tuple(found), next=index)


def _is_entry(line: bytes) -> bool:
    try:
        return line.startswith(b"{") and bool(msgspec.json.decode(line, type=msgspec.Raw))
    except (msgspec.MsgspecError, RecursionError):
        return False
