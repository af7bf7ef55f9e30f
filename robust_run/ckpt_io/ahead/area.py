"""The memory that units are fetched into: a file without a name, mapped by who fetches and opened by who reads.

    page 0     which checkpoint it is, and how much has come; written last, so that what can be read is complete
    states     a byte per unit: what has become of it
    wants      a byte per unit: set by readers that wait for it
    data       units as they are stored, each from a multiple of 64 on

Who fetches holds a lock on the file (flock): when the lock can be had, nobody fetches any more, however that ended.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
import threading
from array import array
from collections.abc import Sequence
from contextlib import suppress

from robust_run.ckpt_io.ahead.words import BACKLOG, SOCKET_ENDING
from robust_run.ckpt_io.rules.layout import FileLayout

#: What has become of a unit: not here yet, being fetched, here, and: it will not come.
ABSENT, COMING, HERE, OFF = 0, 1, 2, 3

_MAGIC = b"rrahead1"
_HEAD = struct.Struct("<8s64sQQ")
"""Magic, what tells the manifest, units, length of the file."""
_CAME = struct.Struct("<Q")
_ASK_S = 5.0
_CAME_AT, _PAGE_BYTES, _ALIGNED = 512, 4096, 64


class UnitTable:
    """Where each unit of a checkpoint lies in such memory: the same for all who have its manifest. Pure."""

    def __init__(self, layouts: Sequence[FileLayout]) -> None:
        self.starts: list[int] = []
        """Number of the first unit of each file."""
        self.files = array("L")
        """File of each unit."""
        self.sizes = array("Q")
        """Bytes of each unit as it is stored."""
        self.offsets = array("Q")
        at = 0
        for layout in layouts:
            self.starts.append(len(self.sizes))
            for unit in range(layout.units):
                size = layout.place(unit).stored_bytes
                self.files.append(layout.index)
                self.sizes.append(size)
                self.offsets.append(at)
                at += -(-size // _ALIGNED) * _ALIGNED
        self.units = len(self.sizes)
        self.total_bytes = sum(self.sizes)
        self.states_at = _PAGE_BYTES
        self.wants_at = self.states_at + self.units
        self.data_at = -(-(self.wants_at + self.units) // _PAGE_BYTES) * _PAGE_BYTES
        self.length = self.data_at + at

    def number(self, file: int, unit: int) -> int:
        """Return the number of a unit."""
        return self.starts[file] + unit

    def unit(self, number: int) -> tuple[int, int]:
        """Return file and unit of a number."""
        file = self.files[number]
        return file, number - self.starts[file]


def mark_of(header: bytes) -> bytes:
    """Return what tells a manifest: its first line, which has its digest."""
    return header[:64].ljust(64, b"\0")


class Area:
    """The memory as who fetches has it: all of it mapped, taken page by page as it is written."""

    def __init__(self, descriptor: int, table: UnitTable, header: bytes) -> None:
        """Raises OSError: there is no such memory."""
        self.table = table
        self._descriptor = descriptor
        os.ftruncate(descriptor, table.length)
        self._map = mmap.mmap(descriptor, table.length)
        self._view = memoryview(self._map)
        self.states = self._view[table.states_at : table.states_at + table.units]
        self.wants = self._view[table.wants_at : table.wants_at + table.units]
        self._map[0 : _HEAD.size] = _HEAD.pack(_MAGIC, mark_of(header), table.units, table.length)

    def data(self, number: int) -> memoryview:
        """Return the memory of a unit."""
        begin = self.table.data_at + self.table.offsets[number]
        return self._view[begin : begin + self.table.sizes[number]]

    def came(self, total_bytes: int) -> None:
        """Say how much has come."""
        _CAME.pack_into(self._map, _CAME_AT, total_bytes)

    def first_wanted(self, begin: int = 0) -> int:
        """Return the first unit that a reader waits for; -1: none."""
        return self._map.find(b"\1", self.table.wants_at + begin, self.table.wants_at + self.table.units) - (
            self.table.wants_at
        )

    def drop(self) -> None:
        """Give the memory of all units back: readers go to the store. Nothing may be fetching any more."""
        self.states[:] = bytes((OFF,)) * self.table.units
        os.ftruncate(self._descriptor, self.table.data_at)


class OpenArea:
    """The same as a reader has it: states are mapped, units are read. Raises OSError, ValueError: it is none, or of another."""

    def __init__(self, path: str, table: UnitTable, header: bytes) -> None:
        self.table = table
        self._descriptor = _opened(path)
        try:
            magic, mark, units, length = _HEAD.unpack(
                os.pread(self._descriptor, _HEAD.size, 0).ljust(_HEAD.size, b"\0")
            )
            self.is_begun = magic == _MAGIC
            if self.is_begun and (mark, units, length) != (mark_of(header), table.units, table.length):
                raise ValueError("it is of another checkpoint")
            self._map = mmap.mmap(self._descriptor, table.data_at) if self.is_begun else None
        except BaseException:
            os.close(self._descriptor)
            raise

    def state(self, number: int) -> int:
        """Return what has become of a unit."""
        return self._map[self.table.states_at + number] if self._map is not None else ABSENT

    def want(self, number: int) -> None:
        """Have a unit fetched before others."""
        if self._map is not None:
            self._map[self.table.wants_at + number] = 1

    def came(self) -> int:
        """Return how many bytes have come; it grows as long as something comes."""
        return int(_CAME.unpack_from(self._map, _CAME_AT)[0]) if self._map is not None else 0

    def is_alive(self) -> bool:
        """Whether there is somebody who fetches."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return False

    def read(self, number: int, buffers: Sequence[memoryview]) -> bool:
        """Fill the buffers, which are as long as the unit; whether all of it was there."""
        wanted = sum(buffer.nbytes for buffer in buffers)
        if wanted != self.table.sizes[number]:
            return False
        at = self.table.data_at + self.table.offsets[number]
        for buffer in buffers:
            view = buffer.cast("B")
            while view.nbytes:
                count = os.preadv(self._descriptor, [view], at)
                if not count:
                    return False
                at, view = at + count, view[count:]
        return True

    def close(self) -> None:
        """Let go of it."""
        if self._map is not None:
            with suppress(BufferError):
                self._map.close()
        os.close(self._descriptor)


def counter(path: str) -> socket.socket:
    """Return a socket at which memory is handed out, to be inherited by who does: who comes early waits. Raises OSError.

    For readers in namespaces of their own, who may not look into `/proc/PID/fd` of a process outside.
    """
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(path)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def hand_out(listening: socket.socket, descriptor: int) -> None:
    """Give who connects the memory, for as long as this process lives."""

    def run() -> None:
        while True:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                socket.send_fds(connection, [b"1"], [descriptor])

    threading.Thread(target=run, name="hand-out", daemon=True).start()


def _opened(path: str) -> int:
    """Return a descriptor of the memory: another one of the file than its process has, so that its lock can be seen."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
    if not path.endswith(SOCKET_ENDING):
        return os.open(path, flags)
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_ASK_S)
        asking.connect(path)
        _, received, _, _ = socket.recv_fds(asking, 1, 1)
    if not received:
        raise OSError("nothing was handed out")
    try:
        return os.open(f"/proc/self/fd/{received[0]}", flags)
    finally:
        os.close(received[0])


def make() -> int:
    """Return the descriptor of new, empty memory, locked by who has it. Raises OSError."""
    descriptor = os.memfd_create("robust-run-checkpoint", os.MFD_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor
