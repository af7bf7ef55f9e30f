"""Pipes and pseudo-terminals: bytes pass unchanged and reading never waits."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from collections.abc import Iterator

import pytest

from robust_run.launcher.agent.output.wiring import copy_window_size, make_pipe, make_pty, read_available


@pytest.fixture
def fds() -> Iterator[list[int]]:
    """Descriptors to close at the end of the test."""
    fds: list[int] = []
    yield fds
    for fd in fds:
        os.close(fd)


@pytest.fixture
def no_terminal(fds: list[int]) -> int:
    """A descriptor that has no window size."""
    fds.append(os.open(os.devnull, os.O_RDWR))
    return fds[-1]


def set_window_size(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def read_exactly(fd: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        os.set_blocking(fd, True)
        data += os.read(fd, count - len(data))
    return data


def test_a_pipe_is_read_without_waiting_and_its_end_is_seen(fds: list[int]) -> None:
    read_fd, write_fd = make_pipe()
    fds.append(read_fd)
    assert read_available(read_fd, 100) == b""
    os.write(write_fd, b"abcdef")
    assert read_available(read_fd, 4) == b"abcd"
    assert read_available(read_fd, 4) == b"ef"
    os.close(write_fd)
    assert read_available(read_fd, 4) is None


def test_a_pipe_waits_only_at_our_end_and_is_inherited_by_nobody(fds: list[int]) -> None:
    read_fd, write_fd = make_pipe()
    fds += [read_fd, write_fd]
    assert os.get_blocking(write_fd), "a worker does not expect EAGAIN on its stdout"
    assert not os.get_blocking(read_fd)
    assert not os.get_inheritable(read_fd)
    assert not os.get_inheritable(write_fd)


def test_a_pipe_that_may_not_be_large_is_still_a_pipe(fds: list[int]) -> None:
    read_fd, write_fd = make_pipe(capacity_bytes=2**31 - 1)
    fds += [read_fd, write_fd]
    os.write(write_fd, b"x")
    assert read_available(read_fd, 1) == b"x"


def test_every_byte_passes_a_pty_unchanged(fds: list[int], no_terminal: int) -> None:
    master_fd, slave_fd = make_pty(no_terminal)
    fds += [master_fd, slave_fd]
    every_byte = bytes(range(256)) * 3
    os.write(slave_fd, every_byte)
    assert read_exactly(master_fd, len(every_byte)) == every_byte


def test_a_pty_is_a_terminal_of_the_same_size(fds: list[int]) -> None:
    terminal_fd, other_fd = os.openpty()
    fds += [terminal_fd, other_fd]
    set_window_size(terminal_fd, 33, 77)
    master_fd, slave_fd = make_pty(terminal_fd)
    fds += [master_fd, slave_fd]
    assert os.isatty(slave_fd)
    assert os.get_terminal_size(slave_fd) == (77, 33)
    set_window_size(terminal_fd, 40, 100)
    copy_window_size(terminal_fd, master_fd)
    assert os.get_terminal_size(slave_fd) == (100, 40)


def test_copying_the_size_of_what_is_no_terminal_does_nothing(fds: list[int], no_terminal: int) -> None:
    master_fd, slave_fd = make_pty(no_terminal)
    fds += [master_fd, slave_fd]
    copy_window_size(no_terminal, master_fd)
    copy_window_size(master_fd, no_terminal)
    assert os.get_terminal_size(slave_fd) == (0, 0)


def test_a_pty_ends_like_a_pipe_and_keeps_what_was_written_before(fds: list[int], no_terminal: int) -> None:
    master_fd, slave_fd = make_pty(no_terminal)
    fds.append(master_fd)
    assert read_available(master_fd, 100) == b""
    os.write(slave_fd, b"last words")
    os.close(slave_fd)
    assert read_available(master_fd, 100) == b"last words"
    assert read_available(master_fd, 100) is None


def test_other_errors_are_not_taken_for_an_end() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        read_available(-1, 1)
