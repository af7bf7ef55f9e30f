"""A file in memory without a name: it goes with the last process that has it open, whatever ends that."""

from __future__ import annotations

import ctypes
import itertools
import os
import weakref
from collections.abc import Callable
from contextlib import suppress

from robust_run.ckpt_io.memory_dir.allowance import PIECE_BYTES

_NOT_RUNNABLE = 0x8
"""MFD_NOEXEC_SEAL (Linux 6.3): without it the kernel may complain, or refuse."""
_COPY_BYTES = 8 << 20
_LEAST_BYTES = 64 << 10
_NUMBERS = itertools.count(1)


class MemoryFile:
    """Bytes that are written by one, and then read by many. Nobody maps them to write, so no write to them ends in SIGBUS.

    Its memory is given back when nobody refers to it any more.
    """

    def __init__(self, take: Callable[[int, int], int], give_back: Callable[[int], None]) -> None:
        """`take(wanted, least)` has memory be taken, and raises OSError (ENOSPC) where there is none. Raises OSError."""
        self.descriptor = _create()
        self.place = ""
        """Of a file that is not in memory, see `SpilledFile`."""
        self.number = next(_NUMBERS)
        self.size_bytes = 0
        self._take, self._give_back = take, give_back
        self._granted = [0]
        weakref.finalize(self, _close, self.descriptor, self._granted, give_back)

    def write(self, data: memoryview, offset_bytes: int) -> int:
        """Write all of it, anywhere. Raises OSError (ENOSPC)."""
        self._grow(offset_bytes + len(data))
        done = 0
        while done < len(data):
            done += os.pwrite(self.descriptor, data[done:], offset_bytes + done)
        self.size_bytes = max(self.size_bytes, offset_bytes + done)
        return done

    def truncate(self, size_bytes: int) -> None:
        """Cut it, or lengthen it with zeros. Raises OSError."""
        self._grow(size_bytes)
        os.ftruncate(self.descriptor, size_bytes)
        self.size_bytes = size_bytes

    def read(self, offset_bytes: int, size_bytes: int) -> bytes:
        """Return bytes; fewer only at the end."""
        return os.pread(self.descriptor, max(0, min(size_bytes, self.size_bytes - offset_bytes)), offset_bytes)

    def fill_from(self, descriptor: int, size_bytes: int) -> None:
        """Copy the beginning of another file into this one. Raises OSError."""
        self._grow(size_bytes)
        at = 0
        while at < size_bytes:
            data = os.pread(descriptor, min(_COPY_BYTES, size_bytes - at), at)
            if not data:
                break
            at += self.write(memoryview(data), at)

    def _grow(self, end_bytes: int) -> None:
        missing_bytes = end_bytes - self._granted[0]
        if missing_bytes > 0:
            piece_bytes = max(missing_bytes, min(PIECE_BYTES, end_bytes), _LEAST_BYTES)
            self._granted[0] += self._take(piece_bytes, missing_bytes)

    def trim(self) -> None:
        """Give back what was taken and is not needed: it is written to no more."""
        spare_bytes = self._granted[0] - self.size_bytes
        if spare_bytes > 0:
            self._granted[0] -= spare_bytes
            self._give_back(spare_bytes)


class SpilledFile(MemoryFile):
    """The same on a disk: what a program writes when there is no memory for it."""

    def __init__(self, place: str) -> None:
        """`place`: a path that nothing has yet; it is gone with the file. Raises OSError."""
        self.descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self.place = place
        self.number = next(_NUMBERS)
        self.size_bytes = 0
        weakref.finalize(self, _remove, self.descriptor, place)

    def _grow(self, end_bytes: int) -> None:
        """Nothing: a disk that is full says so."""

    def trim(self) -> None:
        """Nothing."""


def read_into(descriptor: int, address: int, size_bytes: int, offset_bytes: int) -> int:
    """Read to an address of this process, without a copy in between; return how much it was. Raises OSError."""
    return os.preadv(descriptor, [(ctypes.c_char * size_bytes).from_address(address)], offset_bytes)


def _create() -> int:
    flags = os.MFD_CLOEXEC
    try:
        return os.memfd_create("robust-ckpt-dir", flags | _NOT_RUNNABLE)
    except OSError:  # EINVAL of an older kernel
        return os.memfd_create("robust-ckpt-dir", flags)


def _remove(descriptor: int, place: str) -> None:
    os.close(descriptor)
    with suppress(OSError):
        os.unlink(place)


def _close(descriptor: int, granted: list[int], give_back: Callable[[int], None]) -> None:
    os.close(descriptor)
    give_back(granted[0])
