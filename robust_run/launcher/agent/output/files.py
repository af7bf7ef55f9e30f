"""The log files of a job: one thread writes them all, so that no full disk or hung file system stops a worker."""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable

from robust_run.launcher.agent.output.lines import missing_notice

FILES_LIMIT_BYTES = 64 * 1024 * 1024
"""What may wait to be written, over all log files of a job."""

Write = Callable[[int, memoryview], int]
"""Like `os.write`: returns how many bytes it took, raises OSError."""


class LogHandle:
    """One log file, as `FileSink.open` gives it. Its fields belong to the sink."""

    __slots__ = (
        "dropped_bytes",
        "dropped_lines",
        "ends_mid_line",
        "fd",
        "is_closed",
        "missing_bytes",
        "missing_lines",
        "path",
        "reason",
    )

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1
        self.is_closed = False
        self.ends_mid_line = False
        # Refused at the door and not yet in the queue (guarded by the sink's lock).
        self.dropped_lines = 0
        self.dropped_bytes = 0
        # Not in the file, to be said there as soon as it can be (the sink's thread only).
        self.missing_lines = 0
        self.missing_bytes = 0
        self.reason = ""


class FileSink:
    """Writes the log files of a job from one thread. No method but `flush` and `stop` waits for a disk.

    What cannot be written is left out, and a line in its place says how much once the file takes data again. `on_error`
    is called for the first failure of the job and for the first overflow, from any thread; it must not wait.
    """

    def __init__(
        self,
        on_error: Callable[[str, OSError], None],
        *,
        limit_bytes: int = FILES_LIMIT_BYTES,
        write: Write = os.write,
    ) -> None:
        self._on_error = on_error
        self._limit_bytes = limit_bytes
        self._write = write
        self._changed = threading.Condition()
        self._queue: deque[tuple[LogHandle, bytes] | Callable[[], object]] = deque()
        self._waiting_bytes = 0
        self._is_overloaded = False
        self._overload_was_said = False
        self._error_was_said = False
        self._is_stopped = False
        self._thread: threading.Thread | None = None
        self._handles: set[LogHandle] = set()

    def open(self, path: str) -> LogHandle:
        """Return a handle for appending to `path`; the file, and folders it needs, are made once the thread runs."""
        handle = LogHandle(path)
        with self._changed:
            self._queue.append(lambda: self._open(handle))
            self._changed.notify()
        return handle

    def start(self) -> None:
        """Start the thread; the first `write` would do it too. Separate so that workers can be spawned first."""
        with self._changed:
            self._start_locked()

    def write(self, handle: LogHandle, data: bytes) -> bool:
        """Hand over `data`; False if it was dropped because too much is waiting already."""
        with self._changed:
            if not self._has_room_locked(len(data)):
                handle.dropped_lines += data.count(b"\n")
                handle.dropped_bytes += len(data)
                is_first = not self._overload_was_said
                self._overload_was_said = True
            else:
                self._hand_over_gap_locked(handle)
                self._queue.append((handle, data))
                self._waiting_bytes += len(data)
                self._start_locked()
                self._changed.notify()
                return True
        if is_first:
            self._on_error(
                handle.path, OSError(errno.ENOBUFS, "workers print faster than their log files can be written")
            )
        return False

    def close(self, handle: LogHandle) -> None:
        """Close the file after what was handed over so far is written. Later writes to it are ignored."""
        with self._changed:
            self._hand_over_gap_locked(handle)
            self._queue.append(lambda: self._close(handle))
            self._start_locked()
            self._changed.notify()

    def when_flushed(self, callback: Callable[[], None]) -> None:
        """Call `callback` from the thread once all that was handed over is written or given up. It must not raise."""
        with self._changed:
            self._queue.append(callback)
            self._start_locked()
            self._changed.notify()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was handed over is written or given up; False if that takes longer than `timeout_s`."""
        is_flushed = threading.Event()
        self.when_flushed(is_flushed.set)
        return is_flushed.wait(timeout_s)

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Write what is waiting, close all files, end the thread; False if a disk did not let it end in time."""
        with self._changed:
            self._is_stopped = True
            if self._queue:
                self._start_locked()
            self._changed.notify()
            thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    # --- under the lock ---------------------------------------------------------------------------------------------

    def _has_room_locked(self, byte_count: int) -> bool:
        if self._waiting_bytes + byte_count > self._limit_bytes:
            self._is_overloaded = True
        # Once full, stay closed until half is written: few long gaps can be read around, many short ones cannot.
        return not self._is_overloaded

    def _hand_over_gap_locked(self, handle: LogHandle) -> None:
        if handle.dropped_bytes:
            lines, size = handle.dropped_lines, handle.dropped_bytes
            reason = "the disk was too slow for what was printed"
            self._queue.append(lambda: self._add_missing(handle, lines, size, reason))
            handle.dropped_lines = handle.dropped_bytes = 0

    def _start_locked(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="robust-run-log-files", daemon=True)
            self._thread.start()

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_stopped)
                if not self._queue:
                    break
                item = self._queue.popleft()
            if not isinstance(item, tuple):
                item()
                continue
            handle, data = item
            self._write_block(handle, data)
            with self._changed:
                self._waiting_bytes -= len(data)
                if self._waiting_bytes <= self._limit_bytes // 2:
                    self._is_overloaded = False
        for handle in list(self._handles):
            self._close(handle)

    def _open(self, handle: LogHandle) -> bool:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            try:
                handle.fd = os.open(handle.path, flags, 0o644)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(handle.path), exist_ok=True)
                handle.fd = os.open(handle.path, flags, 0o644)
        except OSError as error:
            self._fail(handle, error)
            return False
        self._handles.add(handle)
        return True

    def _close(self, handle: LogHandle) -> None:
        if handle.fd >= 0:
            self._write_notice(handle)
            try:
                os.close(handle.fd)
            except OSError as error:  # Network file systems may say only now that the disk is full.
                self._fail(handle, error)
        handle.fd = -1
        handle.is_closed = True
        self._handles.discard(handle)

    def _write_block(self, handle: LogHandle, data: bytes) -> None:
        if handle.is_closed:
            return
        # A file that could not be opened is tried again each time: space and permissions come back.
        is_ready = (handle.fd >= 0 or self._open(handle)) and self._write_notice(handle)
        written = self._write_all(handle, data) if is_ready else 0
        if written < len(data):
            self._add_missing(handle, data.count(b"\n", written), len(data) - written, handle.reason)

    def _write_notice(self, handle: LogHandle) -> bool:
        """Say in the file what is missing from it. False if even that cannot be written."""
        if not handle.missing_bytes:
            return True
        notice = missing_notice(handle.missing_lines, handle.missing_bytes, handle.reason)
        if handle.ends_mid_line:
            notice = b"\n" + notice
        if self._write_all(handle, notice) < len(notice):
            return False
        handle.missing_lines = handle.missing_bytes = 0
        return True

    def _write_all(self, handle: LogHandle, data: bytes) -> int:
        """Return how many bytes the file took."""
        view = memoryview(data)
        position = 0
        try:
            while position < len(data):
                position += self._write(handle.fd, view[position:])
        except OSError as error:
            self._fail(handle, error)
        if position:
            handle.ends_mid_line = data[position - 1] != ord("\n")
        return position

    def _fail(self, handle: LogHandle, error: OSError) -> None:
        handle.reason = f"they could not be written: {error.strerror}"
        if not self._error_was_said:
            self._error_was_said = True
            self._on_error(handle.path, error)

    @staticmethod
    def _add_missing(handle: LogHandle, line_count: int, byte_count: int, reason: str) -> None:
        handle.missing_lines += line_count
        handle.missing_bytes += byte_count
        handle.reason = reason
