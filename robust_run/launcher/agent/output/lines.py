"""What is done to the bytes of one stream: cut after whole lines, prefixed, and kept as evidence. Pure, no clock.

A *block* is a run of bytes that ends with a newline, or that had to be given out without one (a progress bar, a line
that never ends). Lines are cut at `\\n` only: `\\r` stays inside, so that a bar redraws itself instead of scrolling.
"""

from __future__ import annotations

import re

LONGEST_LINE_BYTES = 64 * 1024
"""A line longer than this is given out before its end."""

TAIL_BYTES = 64 * 1024
"""Bytes of a stream kept as evidence."""

END_MARKERS = (b"Traceback (most recent call last)", b"Fatal Python error", b"terminate called")
"""What the last words of a failing process begin with."""

_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_REDRAWN = re.compile(rb"\r[^\r\n]")
_WHERE_TEXT_BEGINS = re.compile(rb"(?<=\n)(?!\r[^\r\n])|(?<=\r)(?=[^\r\n])")


class LineSplitter:
    """Turns chunks as they are read into blocks of whole lines. No byte is lost, added or moved."""

    def __init__(self, longest_line_bytes: int = LONGEST_LINE_BYTES) -> None:
        self._longest_line_bytes = longest_line_bytes
        self._unfinished = bytearray()

    @property
    def has_unfinished(self) -> bool:
        """Whether the beginning of a line is being held back."""
        return bool(self._unfinished)

    def feed(self, chunk: bytes) -> bytes:
        """Return the lines that are complete now as one block, empty if none is.

        An unfinished line that has grown over the limit is given out too; then the block does not end with a newline.
        """
        cut = chunk.rfind(b"\n") + 1
        if cut == len(chunk) and not self._unfinished:
            return chunk
        if cut:
            block = self._take() + chunk[:cut] if self._unfinished else chunk[:cut]
            chunk = chunk[cut:]
        else:
            block = b""
        self._unfinished += chunk
        if len(self._unfinished) > self._longest_line_bytes:
            block += self._take()
        return block

    def flush_idle(self) -> bytes:
        """Give out the unfinished line because nothing came after it for a while: it may be a prompt or a bar."""
        return self._take()

    def finish(self) -> bytes:
        """Give out what is left when the stream is over, with no newline that was not printed."""
        return self._take()

    def _take(self) -> bytes:
        unfinished = bytes(self._unfinished)
        self._unfinished.clear()
        return unfinished


def prefix_lines(block: bytes, prefix: bytes, *, continues: bool = False) -> bytes:
    """Put `prefix` before every line of `block`; not before the first if it `continues` a line already begun.

    A progress bar goes back to the first column with `\\r` and would wipe the prefix out, so it is repeated after each.
    """
    if not block:
        return block
    ends_whole = block.endswith(b"\n")
    body = block[:-1] if ends_whole else block
    begins_bare = continues or _REDRAWN.match(body) is not None
    text_begins = _WHERE_TEXT_BEGINS if b"\r" in body else None
    body = text_begins.sub(lambda _: prefix, body) if text_begins else body.replace(b"\n", b"\n" + prefix)
    return (b"" if begins_bare else prefix) + body + (b"\n" if ends_whole else b"")


def select_lines(block: bytes, needles: tuple[bytes, ...]) -> bytes:
    """Return those lines of `block` that contain any of `needles`, as a block."""
    if not any(needle in block for needle in needles):
        return b""
    return b"".join(line for line in _LINE.findall(block) if any(needle in line for needle in needles))


class OutputTail:
    """The last bytes of a stream, and when its last words began. What is known when a worker is gone."""

    def __init__(self, limit_bytes: int = TAIL_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._kept = bytearray()
        self._border = b""
        self.marker_at_s: float | None = None
        """When the first line of the last traceback (or of its like, see `END_MARKERS`) arrived; None: never."""

    def feed(self, chunk: bytes, now_s: float) -> None:
        """Take what was read at `now_s` (seconds, monotonic)."""
        if self._holds_marker(chunk):
            self.marker_at_s = now_s
        longest = max(map(len, END_MARKERS)) - 1
        self._border = (self._border + chunk)[-longest:] if len(chunk) < longest else chunk[-longest:]
        self._kept += chunk[-self._limit_bytes :]
        if len(self._kept) > 2 * self._limit_bytes:
            del self._kept[: -self._limit_bytes]

    def text(self) -> str:
        """Return what is kept; bytes that are no UTF-8 become U+FFFD."""
        return bytes(self._kept[-self._limit_bytes :]).decode("utf-8", errors="replace")

    def _holds_marker(self, chunk: bytes) -> bool:
        for marker in END_MARKERS:
            # Across the border each side gives less than the whole marker, so an old one is not found a second time.
            reach = len(marker) - 1
            if marker in chunk or marker in self._border[-reach:] + chunk[:reach]:
                return True
        return False


def missing_notice(line_count: int, byte_count: int, reason: str) -> bytes:
    """Return the line that stands in a stream where output is missing."""
    size = f"{byte_count} bytes"
    for unit, unit_bytes in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if byte_count >= unit_bytes:
            size = f"{byte_count / unit_bytes:.1f} {unit}"
            break
    lines = "1 line" if line_count == 1 else f"{line_count} lines"
    verb = "is" if line_count == 1 else "are"
    return f"robust-run: {lines} ({size}) {verb} missing here because {reason}\n".encode()
