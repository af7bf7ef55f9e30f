"""The ways of one stream of one worker: log file, console, filtered lines, evidence. Knows no descriptor or loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from robust_run.launcher.agent.output.lines import LineSplitter, OutputTail, prefix_lines, select_lines

Append = Callable[[bytes], bool]
"""Appends to a log file, or drops and returns False; never waits."""


class TakesBlocks(Protocol):
    """A place for blocks of bytes that never makes its caller wait (`BoundedWriter`)."""

    def offer(self, data: bytes) -> bool:
        """Take a block, or drop all of it and return False."""
        ...


class SharedStream:
    """One of the launcher's own streams, shared by all workers: sees to it that lines of two of them never merge."""

    def __init__(self, writer: TakesBlocks) -> None:
        self._writer = writer
        self._unfinished_by: object | None = None
        self._is_at_first_column = True

    def put(self, owner: object, block: bytes, prefix: bytes = b"") -> None:
        """Show a block of `owner`, whose last line may be unfinished, with `prefix` before each line."""
        is_continued = self._unfinished_by is owner
        if prefix:
            # After a bare \r the prefix is about to be overwritten, so it comes again.
            is_redrawn = self._is_at_first_column and not block.startswith((b"\r", b"\n"))
            shown = prefix_lines(block, prefix, continues=is_continued and not is_redrawn)
        else:
            shown = block
        if self._unfinished_by is not None and not is_continued:
            shown = b"\n" + shown
        self._offer(owner, shown)

    def put_raw(self, owner: object, chunk: bytes) -> None:
        """Pass on what a terminal program printed, unchanged."""
        self._offer(owner, chunk)

    def say(self, line: bytes) -> None:
        """Show a line of the launcher's own, on a line of its own."""
        self.put(self, line if line.endswith(b"\n") else line + b"\n")

    def _offer(self, owner: object, data: bytes) -> None:
        if not self._writer.offer(data):
            # The notice about the gap ends a line that was begun.
            self._unfinished_by = None
            return
        self._unfinished_by = None if data.endswith(b"\n") else owner
        self._is_at_first_column = data.endswith((b"\n", b"\r"))


class FilteredLog:
    """Copies those lines of one stream that contain a needle to a log file shared by all ranks."""

    def __init__(self, log: Append, needles: tuple[bytes, ...], prefix: bytes) -> None:
        self._log = log
        self._needles = needles
        self._prefix = prefix
        self._splitter = LineSplitter()

    def take(self, chunk: bytes) -> None:
        """Take what was read."""
        self._copy(self._splitter.feed(chunk))

    def finish(self) -> None:
        """Take the last line although its newline never came."""
        self._copy(self._splitter.finish())

    def _copy(self, block: bytes) -> None:
        lines = select_lines(block, self._needles)
        if lines:
            # Other ranks write to this file too, so a cut line gets its end here.
            self._log(prefix_lines(lines if lines.endswith(b"\n") else lines + b"\n", self._prefix))


class Channel:
    """The way of one stream of one worker. What it is given at construction says where its bytes go."""

    def __init__(
        self,
        *,
        console: SharedStream | None,
        prefix: bytes = b"",
        log: Append | None = None,
        filtered: FilteredLog | None = None,
        tail: OutputTail | None = None,
    ) -> None:
        self._console = console
        self._prefix = prefix
        self._log = log
        self._filtered = filtered
        self._tail = tail
        self._splitter = LineSplitter()
        self.is_raw = False
        """Whether chunks go to the console as they come, because a terminal program printed them."""
        self.last_output_at_s: float | None = None
        """Seconds, monotonic; None: nothing came yet."""

    @property
    def has_unfinished(self) -> bool:
        """Whether the beginning of a line is being kept from the console."""
        return self._splitter.has_unfinished

    def take(self, chunk: bytes, now_s: float) -> None:
        """Send what was read at `now_s` (seconds, monotonic) on its ways."""
        self.last_output_at_s = now_s
        if self._log is not None:
            self._log(chunk)
        if self._tail is not None:
            self._tail.feed(chunk, now_s)
        if self._filtered is not None:
            self._filtered.take(chunk)
        if self._console is None:
            return
        if self.is_raw:
            self._console.put_raw(self, chunk)
        elif block := self._splitter.feed(chunk):
            self._console.put(self, block, self._prefix)

    def flush_idle(self) -> None:
        """Show the unfinished line: nothing came after it for a while."""
        if self._console is not None and (block := self._splitter.flush_idle()):
            self._console.put(self, block, self._prefix)

    def finish(self) -> None:
        """Send the rest: the stream is over."""
        if self._filtered is not None:
            self._filtered.finish()
        if self._console is not None and (block := self._splitter.finish()):
            self._console.put(self, block, self._prefix)
