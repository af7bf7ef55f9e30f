"""The console: a thread writes to it, so that a reader who is slow or gone never stops a worker. Log files: `files`."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections import deque
from collections.abc import Callable

from robust_run.launcher.agent.output.files import FileSink, LogHandle, Write
from robust_run.launcher.agent.output.lines import missing_notice

__all__ = ["BoundedWriter", "FileSink", "LogHandle", "open_console", "say_reader_too_slow"]

CONSOLE_LIMIT_BYTES = 16 * 1024 * 1024
"""What may wait for the console's reader."""

WRITE_BYTES = 16 * 1024
"""Most bytes of one write: small, so that a slow reader is seen to make progress."""

FULL_DISK_RETRY_S = 1.0
"""How long to wait before trying again where the console is a file on a full disk."""


def say_reader_too_slow(line_count: int, byte_count: int) -> bytes:
    """Return the line that stands on the console where output is missing."""
    return missing_notice(line_count, byte_count, "the reader was too slow; the log files have them")


class BoundedWriter:
    """Writes blocks of bytes to one file descriptor, from a daemon thread and through a bounded buffer.

    `on_dropped(lines, bytes)` gives the notice written in the place of a gap; it is called under the lock and must only
    format. `on_broken(error)` is called once, from the thread, when the descriptor can never be written again.
    The descriptor stays the caller's.
    """

    def __init__(
        self,
        fd: int,
        *,
        on_dropped: Callable[[int, int], bytes] = say_reader_too_slow,
        on_broken: Callable[[OSError], None] | None = None,
        limit_bytes: int = CONSOLE_LIMIT_BYTES,
        write: Write = os.write,
        retry_s: float = FULL_DISK_RETRY_S,
    ) -> None:
        self.fd = fd
        self._on_dropped = on_dropped
        self._on_broken = on_broken
        self._limit_bytes = limit_bytes
        self._write = write
        self._retry_s = retry_s
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._written_bytes = 0
        self._dropped_lines = 0
        self._dropped_bytes = 0
        self._ends_mid_line = False
        self._is_broken = False
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def is_broken(self) -> bool:
        """Whether nothing can be written any more."""
        return self._is_broken

    def offer(self, data: bytes) -> bool:
        """Hand over a block; never waits. False: it was dropped, whole, and counted (or nothing can be written any more)."""
        if not data:
            return True
        with self._changed:
            if self._is_broken or self._is_closed:
                return False
            # A gap once begun stays open until half of the buffer is read: see `_end_gap_locked`.
            if self._dropped_bytes or self._waiting_bytes + len(data) > self._limit_bytes:
                self._dropped_lines += data.count(b"\n") + (not data.endswith(b"\n"))
                self._dropped_bytes += len(data)
                self._end_gap_locked()
                return False
            self._put_locked(data)
            return True

    def drain(self, patience_s: float) -> int:
        """Wait for the reader as long as it takes something every `patience_s`; return the bytes not delivered."""
        with self._changed:
            while self._waiting_bytes and not (self._is_broken or self._is_closed):
                seen = self._written_bytes
                has_moved = self._changed.wait_for(
                    lambda seen=seen: self._written_bytes != seen or self._is_broken,  # type: ignore[misc]
                    patience_s,
                )
                if not has_moved:
                    break
            return self._waiting_bytes + self._dropped_bytes

    def close(self) -> None:
        """End the thread; what is still waiting is given up (`drain` first). Never waits for the reader."""
        with self._changed:
            self._is_closed = True
            thread = self._thread
            is_idle = not self._waiting_bytes or self._is_broken
            self._changed.notify_all()
        if thread is not None and is_idle and thread is not threading.current_thread():
            thread.join()

    # --- under the lock ---------------------------------------------------------------------------------------------

    def _put_locked(self, data: bytes) -> None:
        self._queue.append(data)
        self._waiting_bytes += len(data)
        self._ends_mid_line = not data.endswith(b"\n")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"robust-run-console-{self.fd}", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _end_gap_locked(self) -> None:
        """Put the notice behind the last block before the gap, once half of the buffer is free: few gaps, not many."""
        if self._dropped_bytes and self._waiting_bytes <= self._limit_bytes // 2:
            notice = self._on_dropped(self._dropped_lines, self._dropped_bytes)
            self._dropped_lines = self._dropped_bytes = 0
            self._put_locked(b"\n" + notice if self._ends_mid_line else notice)

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (block := self._next_block()) is not None and self._write_all(block):
            pass

    def _next_block(self) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closed)
            if self._is_closed:
                return None
            block = self._queue.popleft()
            if not self._queue or len(block) + len(self._queue[0]) > WRITE_BYTES:
                return block
            size = len(block)
            blocks = [block]
            while self._queue and size + len(self._queue[0]) <= WRITE_BYTES:
                blocks.append(self._queue.popleft())
                size += len(blocks[-1])
        return b"".join(blocks)

    def _write_all(self, block: bytes) -> bool:
        """Write all of `block`, however long that takes; False if there is no point in going on."""
        view = memoryview(block)
        position = 0
        while position < len(block):
            if self._is_closed:
                return False
            try:
                count = self._write(self.fd, view[position : position + WRITE_BYTES])
            except BlockingIOError:
                # A process that shares the descriptor with us made it non-blocking; it must stay so for that one.
                self._wait_until_writable()
                continue
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    self._break(error)
                    return False
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed, self._retry_s)
                continue
            position += count
            with self._changed:
                self._waiting_bytes -= count
                self._written_bytes += count
                self._end_gap_locked()
                self._changed.notify_all()
        return True

    def _wait_until_writable(self) -> None:
        poller = select.poll()
        poller.register(self.fd, select.POLLOUT)
        poller.poll(500)  # Not for ever, so that `close` is seen.

    def _break(self, error: OSError) -> None:
        with self._changed:
            self._is_broken = True
            self._queue.clear()
            self._changed.notify_all()
        if self._on_broken is not None:
            self._on_broken(error)


def open_console(out_fd: int, err_fd: int) -> tuple[BoundedWriter, BoundedWriter]:
    """Return the writers for the launcher's stdout and stderr: one and the same where both lead to the same place.

    Two writers to one terminal would let lines of stdout and stderr overtake and cut each other.
    """
    try:
        is_same = os.path.sameopenfile(out_fd, err_fd)
    except OSError:
        is_same = False  # One of them is closed: its writer finds out and says so.
    out = BoundedWriter(out_fd)
    return (out, out) if is_same else (out, BoundedWriter(err_fd))
