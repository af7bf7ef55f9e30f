"""Where each stream of each worker goes, by the user's `OutputStreams`; makes the descriptors, channels and log files."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from robust_run.errors import PlatformError
from robust_run.launcher.agent.output.channel import Append, Channel, FilteredLog, SharedStream
from robust_run.launcher.agent.output.lines import OutputTail
from robust_run.launcher.model.job import OutputStreams, Std

if TYPE_CHECKING:
    from robust_run.launcher.agent.output.sinks import BoundedWriter, FileSink, LogHandle

PIPE_BYTES = 1024 * 1024
"""What a pipe can hold while the agent is busy; also the kernel's limit for unprivileged users."""
ALL_PIPES_BYTES = 16 * 1024 * 1024
"""What all pipes of an attempt may hold: a quarter of what the kernel grants a user before it makes his pipes tiny."""

LEAST_PIPE_BYTES = 64 * 1024
"""What a pipe holds anyway."""


class ChildFds:
    """The ends that one worker gets as its stdout and stderr. Close them in this process once the worker has them."""

    __slots__ = ("stderr", "stdout")

    def __init__(self, stdout: int, stderr: int) -> None:
        self.stdout = stdout
        self.stderr = stderr

    def close(self) -> None:
        """Close both; closing again does nothing. Without it the end of the worker's output is never seen."""
        for fd in (self.stdout, self.stderr):
            if fd >= 0:
                os.close(fd)
        self.stdout = self.stderr = -1


class OutputSource:
    """The agent's end of one stream of one worker. `terminal_fd` is the terminal that it imitates; None for a pipe."""

    __slots__ = ("attempt", "channel", "fd", "is_over", "terminal_fd")

    def __init__(self, attempt: int, fd: int, channel: Channel, terminal_fd: int | None) -> None:
        self.attempt = attempt
        self.fd = fd
        self.channel = channel
        self.terminal_fd = terminal_fd
        self.is_over = False


class AttemptLogs:
    """The log files of one attempt: those of its ranks, and those that ranks share."""

    def __init__(self, files: FileSink) -> None:
        self._files = files
        self._handles: list[LogHandle] = []
        self._shared: dict[str, Append] = {}

    def open(self, path: str) -> Append:
        """Return a function that appends to the file at `path`."""
        handle = self._files.open(path)
        self._handles.append(handle)
        write = self._files.write
        return lambda data: write(handle, data)

    def open_shared(self, path: str) -> Append:
        """Return the same as `open` did, or will, for this path."""
        if path not in self._shared:
            self._shared[path] = self.open(path)
        return self._shared[path]

    def close(self) -> None:
        """Close all once what was handed over is written."""
        for handle in self._handles:
            self._files.close(handle)
        self._handles.clear()


class _Kind:
    """What tells stdout from stderr."""

    __slots__ = ("console", "console_fd", "is_terminal", "name", "needles", "redirects", "tee")

    def __init__(
        self, name: str, console: SharedStream, console_fd: int, streams: OutputStreams, console_is_terminal: Std
    ) -> None:
        def pick(std: Std) -> bool:
            return std.err if name == "stderr" else std.out

        filters = streams.stderr_filters if name == "stderr" else streams.stdout_filters
        self.name = name
        self.console = console
        self.console_fd = console_fd
        self.is_terminal = pick(console_is_terminal)
        self.redirects = tuple(map(pick, streams.redirects))
        self.tee = tuple(map(pick, streams.tee))
        self.needles = tuple(needle.encode("utf-8", errors="surrogateescape") for needle in filters)


class Wiring:
    """Connects workers to console, log files and evidence. Made once for a job."""

    def __init__(
        self,
        streams: OutputStreams,
        role: str,
        console_out: BoundedWriter,
        console_err: BoundedWriter,
        console_is_terminal: Std,
    ) -> None:
        self._streams = streams
        self._role = role
        self._pipe_bytes = max(LEAST_PIPE_BYTES, min(PIPE_BYTES, ALL_PIPES_BYTES // (2 * max(1, len(streams.shown)))))
        out = SharedStream(console_out)
        # One writer for both means one place: then lines of stdout and stderr must not merge either.
        self.console_err = out if console_err is console_out else SharedStream(console_err)
        self._kinds = (
            _Kind("stdout", out, console_out.fd, streams, console_is_terminal),
            _Kind("stderr", self.console_err, console_err.fd, streams, console_is_terminal),
        )

    def connect(
        self, attempt: int, rank: int, local_rank: int, folder: str | None, logs: AttemptLogs
    ) -> tuple[ChildFds, tuple[OutputSource, OutputSource], OutputTail]:
        """Return a worker's ends, ours, and where the end of its stderr is kept.

        Raises PlatformError if there are no descriptors left; then none stays open.
        """
        prefix = self._prefix(rank, local_rank)
        tail = OutputTail()
        ends: list[tuple[int | None, int, int]] = []
        try:
            for kind in self._kinds:
                ends.append(self._make_ends(kind, local_rank))  # noqa: PERF401 - those made must be closed on failure
        except OSError as error:
            for _, *fds in ends:
                for fd in fds:
                    os.close(fd)
            message = f"cannot open the output of rank {rank}: {error.strerror}; raise `ulimit -n` (open files)"
            raise PlatformError(message) from error
        sources = [
            OutputSource(
                attempt, read_fd, self._make_channel(kind, local_rank, folder, prefix, tail, logs), terminal_fd
            )
            for kind, (terminal_fd, read_fd, _) in zip(self._kinds, ends, strict=True)
        ]
        for source in sources:
            source.channel.is_raw = source.terminal_fd is not None
        return ChildFds(ends[0][2], ends[1][2]), (sources[0], sources[1]), tail

    def _make_ends(self, kind: _Kind, local_rank: int) -> tuple[int | None, int, int]:
        """Return (terminal that is imitated or None, end to read, end to write)."""
        is_plain = not (kind.redirects[local_rank] or kind.tee[local_rank]) and self._streams.shown[local_rank]
        if kind.is_terminal and is_plain:
            try:
                return kind.console_fd, *make_pty(kind.console_fd)
            except OSError:
                pass  # Containers may have no /dev/pts, or no more of them: a pipe shows the same lines.
        return None, *make_pipe(self._pipe_bytes)

    def _make_channel(
        self, kind: _Kind, local_rank: int, folder: str | None, prefix: bytes, tail: OutputTail, logs: AttemptLogs
    ) -> Channel:
        is_shown = self._streams.shown[local_rank]
        is_teed = kind.tee[local_rank]
        log = filtered = None
        if folder is not None:
            log = logs.open(os.path.join(folder, f"{kind.name}.log"))
            if kind.needles:
                shared = logs.open_shared(os.path.join(os.path.dirname(folder), f"filtered_{kind.name}.log"))
                filtered = FilteredLog(shared, kind.needles, prefix) if is_teed and is_shown else None
        return Channel(
            console=kind.console if is_shown and (is_teed or not kind.redirects[local_rank]) else None,
            prefix=prefix if is_teed else b"",
            log=log,
            filtered=filtered,
            tail=tail if kind.name == "stderr" else None,
        )

    def _prefix(self, rank: int, local_rank: int) -> bytes:
        template = self._streams.prefix_template
        if template is None:
            text = f"[{self._role}{local_rank}]:"
        else:
            from string import Template

            text = Template(template).safe_substitute(role_name=self._role, local_rank=local_rank, rank=rank)
        return text.encode("utf-8", errors="surrogateescape")


# --- pipes and pseudo-terminals between workers and the agent


def make_pipe(capacity_bytes: int = PIPE_BYTES) -> tuple[int, int]:
    """Return (read end, write end) of a pipe that no child inherits by accident; the read end never blocks.

    The capacity is a wish: the kernel limits what all pipes of a user may take. Raises OSError if none is left.
    """
    import fcntl

    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(read_fd, False)
    with suppress(OSError):  # A smaller pipe only means that a worker waits sooner while the agent is busy.
        fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, capacity_bytes)
    return read_fd, write_fd


def make_pty(window_size_of_fd: int) -> tuple[int, int]:
    """Return (master, slave) of a pseudo-terminal that passes every byte unchanged; the master never blocks.

    The worker sees a terminal as large as the one behind `window_size_of_fd`. It is no process's controlling terminal (the
    C library opens it so), hence no key and no hang-up reaches workers through it. Raises OSError if none is left.
    """
    master_fd, slave_fd = os.openpty()
    try:
        _make_raw(slave_fd)
        os.set_blocking(master_fd, False)
    except BaseException:
        os.close(master_fd)
        os.close(slave_fd)
        raise
    copy_window_size(window_size_of_fd, master_fd)
    return master_fd, slave_fd


def _make_raw(fd: int) -> None:
    import termios

    attributes = termios.tcgetattr(fd)
    # The real terminal behind the console translates and interprets once; the one in between must not do it too.
    attributes[0] &= ~(
        termios.IGNBRK
        | termios.BRKINT
        | termios.PARMRK
        | termios.ISTRIP
        | termios.INLCR
        | termios.IGNCR
        | termios.ICRNL
        | termios.IXON
    )
    attributes[1] &= ~termios.OPOST
    attributes[2] = (attributes[2] & ~(termios.CSIZE | termios.PARENB)) | termios.CS8
    attributes[3] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
    attributes[6][termios.VMIN] = 1
    attributes[6][termios.VTIME] = 0
    termios.tcsetattr(fd, termios.TCSANOW, attributes)


def copy_window_size(from_fd: int, to_fd: int) -> None:
    """Give the terminal `to_fd` the rows and columns of `from_fd`; do nothing if either is no terminal any more."""
    import fcntl
    import termios

    with suppress(OSError):  # A wrong width makes an ugly bar, nothing worse.
        size = fcntl.ioctl(from_fd, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(to_fd, termios.TIOCSWINSZ, size)


def read_available(fd: int, limit_bytes: int) -> bytes | None:
    """Return what is there, at most `limit_bytes`; b"" if nothing is there yet, None if nothing will come any more."""
    try:
        return os.read(fd, limit_bytes) or None
    except BlockingIOError:
        return b""
    except OSError as error:
        if error.errno == errno.EIO:  # How a pseudo-terminal says that its last user has closed it.
            return None
        raise
