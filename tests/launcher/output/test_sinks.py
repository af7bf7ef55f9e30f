"""The console: nobody waits for its reader, and what the reader misses is said where it is missing."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterator

import pytest

from robust_run.launcher.agent.output.sinks import BoundedWriter, open_console


class Gate:
    """A descriptor that takes nothing until it is opened."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_tried = threading.Event()
        self.taken = b""

    def write(self, fd: int, data: memoryview) -> int:
        self.is_tried.set()
        self.is_open.wait()
        self.taken += bytes(data)
        return len(data)


class Pipe:
    """A real pipe, closed at the end of the test."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        self.received = b""
        self._thread = threading.Thread(target=self._read)

    def start_reading(self) -> None:
        self._thread.start()

    def finish(self) -> bytes:
        """Close the writing end; return all that was read."""
        os.close(self.write_fd)
        self.write_fd = -1
        self._thread.join()
        return self.received

    def _read(self) -> None:
        while data := os.read(self.read_fd, 65536):
            self.received += data

    def close(self) -> None:
        for fd in (self.read_fd, self.write_fd):
            if fd >= 0:
                os.close(fd)
        self.read_fd = self.write_fd = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def name_gap(lines: int, size: int) -> bytes:
    return b"<%d lines, %d bytes missing>\n" % (lines, size)


def test_blocks_arrive_whole_and_in_order(pipe: Pipe) -> None:
    writer = BoundedWriter(pipe.write_fd)
    pipe.start_reading()
    blocks = [b"line %d\n" % number * (1 + number % 50) for number in range(2000)]
    assert all(writer.offer(block) for block in blocks)
    assert writer.drain(30) == 0
    writer.close()
    assert pipe.finish() == b"".join(blocks)


def test_a_reader_who_does_not_read_stops_nobody_and_learns_what_is_missing(pipe: Pipe) -> None:
    writer = BoundedWriter(pipe.write_fd, on_dropped=name_gap, limit_bytes=200_000)
    lines = [b"%06d" % number + b"." * 93 + b"\n" for number in range(5000)]
    taken = [writer.offer(line) for line in lines]  # Would wait for ever if it waited at all.
    assert not all(taken)
    assert writer.drain(0.01) > 0
    pipe.start_reading()
    assert writer.drain(30) == 0
    assert writer.offer(b"the end\n")
    assert writer.drain(30) == 0
    writer.close()
    shown = pipe.finish().splitlines(keepends=True)
    assert shown[-1] == b"the end\n"

    position = dropped = 0
    for line in shown[:-1]:
        if gap := re.match(rb"<(\d+) lines, (\d+) bytes missing>", line):
            assert int(gap[2]) == int(gap[1]) * 100
            position += int(gap[1])
            dropped += int(gap[1])
        else:
            assert line == lines[position], "a line stands in the wrong place or a gap was counted wrongly"
            position += 1
    assert position == len(lines)
    assert dropped == taken.count(False)


def test_a_gap_stays_open_until_half_of_the_buffer_is_free() -> None:
    gate = Gate()
    writer = BoundedWriter(-1, on_dropped=name_gap, limit_bytes=40_000, write=gate.write)
    assert writer.offer(b"a" * 29_999 + b"\n")
    assert not writer.offer(b"b" * 19_999 + b"\n")
    assert not writer.offer(b"small, would fit\n"), "one long gap, not many short ones"
    gate.is_open.set()
    assert writer.drain(30) == 0
    assert writer.offer(b"c\n")
    assert writer.drain(30) == 0
    writer.close()
    assert gate.taken == b"a" * 29_999 + b"\n<2 lines, 20017 bytes missing>\nc\n"


def test_a_notice_does_not_begin_inside_a_line() -> None:
    gate = Gate()
    writer = BoundedWriter(-1, on_dropped=name_gap, limit_bytes=10, write=gate.write)
    assert writer.offer(b"  50%")
    assert not writer.offer(b"too long to fit\n")
    gate.is_open.set()
    assert writer.drain(30) == 0
    writer.close()
    assert gate.taken == b"  50%\n<1 lines, 16 bytes missing>\n"


@pytest.mark.parametrize("code", [errno.EPIPE, errno.EIO, errno.EBADF])
def test_a_broken_console_is_said_once_and_left_alone(code: int) -> None:
    errors: list[OSError] = []
    is_broken = threading.Event()

    def fail(fd: int, data: memoryview) -> int:
        raise OSError(code, os.strerror(code))

    def note(error: OSError) -> None:
        errors.append(error)
        is_broken.set()

    writer = BoundedWriter(-1, on_broken=note, write=fail)
    writer.offer(b"a\n")
    assert is_broken.wait(30)
    assert not writer.offer(b"b\n")
    assert writer.is_broken
    assert writer.drain(30) == 2, "what was not delivered"
    writer.close()
    assert [error.errno for error in errors] == [code]


def test_a_real_reader_who_went_away_breaks_the_console(pipe: Pipe) -> None:
    is_broken = threading.Event()
    writer = BoundedWriter(pipe.write_fd, on_broken=lambda error: is_broken.set())
    os.close(pipe.read_fd)
    pipe.read_fd = -1
    writer.offer(b"anyone?\n")
    assert is_broken.wait(30)
    writer.close()


def test_a_console_made_non_blocking_by_its_owner_works(pipe: Pipe) -> None:
    os.set_blocking(pipe.write_fd, False)
    writer = BoundedWriter(pipe.write_fd)
    blocks = [b"%06d\n" % number * 1000 for number in range(100)]
    assert all(writer.offer(block) for block in blocks)
    assert writer.drain(0.05) > 0, "nobody reads yet: more than a pipe holds cannot be delivered"
    assert not writer.is_broken
    pipe.start_reading()
    assert writer.drain(30) == 0
    writer.close()
    assert not os.get_blocking(pipe.write_fd), "it was not ours to change"
    assert pipe.finish() == b"".join(blocks)


def test_a_full_disk_behind_the_console_is_waited_for() -> None:
    refusals = [errno.ENOSPC, errno.EDQUOT]
    taken: list[bytes] = []

    def write(fd: int, data: memoryview) -> int:
        if refusals:
            raise OSError(refusals[0], os.strerror(refusals.pop(0)))
        taken.append(bytes(data))
        return len(data)

    writer = BoundedWriter(-1, write=write, retry_s=0.001)
    assert writer.offer(b"kept\n")
    assert writer.drain(30) == 0
    writer.close()
    assert taken == [b"kept\n"]
    assert not writer.is_broken


def test_draining_goes_on_while_the_reader_takes_something() -> None:
    writer = BoundedWriter(-1, write=lambda fd, data: 1)
    assert writer.offer(b"byte by byte\n" * 100)
    assert writer.drain(30) == 0
    writer.close()


def test_closing_does_not_wait_for_a_reader_who_never_reads() -> None:
    gate = Gate()
    writer = BoundedWriter(-1, write=gate.write)
    assert writer.offer(b"stuck\n")
    assert gate.is_tried.wait(30)
    assert writer.drain(0.01) == 6
    writer.close()
    assert not writer.offer(b"late\n")
    gate.is_open.set()


def test_stdout_and_stderr_that_lead_to_one_place_share_a_writer(pipe: Pipe) -> None:
    second = os.dup(pipe.write_fd)
    try:
        out, err = open_console(pipe.write_fd, second)
        assert out is err
        out, err = open_console(pipe.write_fd, pipe.read_fd)
        assert out is err, "two ends of one pipe are one inode"
        with open(os.devnull, "wb") as elsewhere:
            out, err = open_console(pipe.write_fd, elsewhere.fileno())
            assert out is not err
    finally:
        os.close(second)


def test_a_closed_stderr_does_not_keep_stdout_from_working(pipe: Pipe) -> None:
    closed_fd = os.dup(pipe.write_fd)
    os.close(closed_fd)
    out, err = open_console(pipe.write_fd, closed_fd)
    assert out is not err
