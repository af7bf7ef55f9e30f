"""The pipes and pseudo-terminals between workers and the agent: made here, and read without waiting."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

PIPE_BYTES = 1024 * 1024
"""What a pipe can hold while the agent is busy; also the kernel's limit for unprivileged users."""


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

    The worker sees a terminal as large as the one behind `window_size_of_fd`. It is nobody's controlling terminal (the
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
