"""The memory that a server shares with its keeper: requests not answered yet, what was touched when, what it was told.

It outlives a server that is killed. The kernel copies each request straight into a slot of it (`readv` on /dev/fuse), so there
is no moment in which a request is known to a dead process only; the next server answers what it finds. A request that was
answered twice does no harm: the kernel does not know the second and says ENOENT.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Iterable

from robust_run.prefetch.rules.types import QUANTUM_BYTES, Touch

#: Of one slot: the least that the kernel accepts as a buffer (FUSE_MIN_READ_BUFFER).
SLOT_BYTES = 8192
#: More than max_background plus our threads, so a slot is nearly always free.
SLOTS = 192
_HEAD_BYTES = 4096
_HEAD = struct.Struct(
    "<8sQQQQQ"
)  # magic, image bytes, mounted at (ns, monotonic), greeted, window closed at (ms + 1), told
_MAGIC = b"RRFUSE1\n"
_GREETED, _CLOSED, _TOLD = 24, 32, 40
#: Of each of the two places for what a server was told: members of the largest job, and some more.
MOST_TOLD_BYTES = 8 << 20


class Shared:
    """The shared memory, mapped."""

    def __init__(self, descriptor: int) -> None:
        """Map the memory that `create` has made. Raises ValueError for anything else."""
        size = os.fstat(descriptor).st_size
        self._memory = memoryview(mmap.mmap(descriptor, size)) if size >= _HEAD_BYTES else memoryview(b"")
        magic, self.image_bytes, self._mounted_ns, *_ = _HEAD.unpack(
            bytes(self._memory[: _HEAD.size]).ljust(_HEAD.size)
        )
        if magic != _MAGIC or size != _size_bytes(self.image_bytes):
            raise ValueError("this is not the shared memory of a block server")
        begin = _told_at(0) + 2 * MOST_TOLD_BYTES
        self._touches = self._memory[begin : begin + _quanta(self.image_bytes) * 4].cast("I")

    @property
    def greeted(self) -> bool:
        """Whether the kernel's INIT was answered."""
        return bool(struct.unpack_from("<Q", self._memory, _GREETED)[0])

    def greet(self) -> None:
        """Note that it was."""
        struct.pack_into("<Q", self._memory, _GREETED, 1)

    # requests

    def slot(self, index: int) -> memoryview:
        """Return a slot's memory."""
        begin = _HEAD_BYTES + index * SLOT_BYTES
        return self._memory[begin : begin + SLOT_BYTES]

    def free(self, index: int) -> None:
        """Note that a slot's request was answered."""
        begin = _HEAD_BYTES + index * SLOT_BYTES
        self._memory[begin : begin + 4] = b"\0\0\0\0"

    def unanswered(self) -> list[int]:
        """Return the slots whose request was not answered: those of a server that died."""
        return [index for index in range(SLOTS) if struct.unpack_from("<I", self.slot(index))[0]]

    # what it was told

    def tell(self, data: bytes) -> None:
        """Keep this for the next server, in place of what was kept before. Raises ValueError where it is too long.

        There are two places for it, and one number says which of them counts, and how long it is: a server that is killed in
        between leaves what was there before. For one thread at a time.
        """
        if len(data) > MOST_TOLD_BYTES:
            raise ValueError(f"{len(data)} bytes; at most {MOST_TOLD_BYTES} are kept")
        place = 1 - struct.unpack_from("<Q", self._memory, _TOLD)[0] % 2
        begin = _told_at(place)
        self._memory[begin : begin + len(data)] = data
        struct.pack_into("<Q", self._memory, _TOLD, 2 * len(data) + place)

    def told(self) -> bytes:
        """Return what was kept; b"" where nothing was."""
        length, place = divmod(struct.unpack_from("<Q", self._memory, _TOLD)[0], 2)
        begin = _told_at(place)
        return bytes(self._memory[begin : begin + min(length, MOST_TOLD_BYTES)])

    # touches

    def now_ms(self) -> int:
        """Return milliseconds since the mount."""
        return int(time.monotonic_ns() - self._mounted_ns) // 1_000_000

    def touch(self, offset_bytes: int, size_bytes: int) -> None:
        """Note a read, if the window is open and it is the first of its quanta."""
        first, last = offset_bytes // QUANTUM_BYTES, (offset_bytes + size_bytes - 1) // QUANTUM_BYTES
        for quantum in range(first, min(last + 1, len(self._touches))):
            if not self._touches[quantum] and self.window_open:
                self._touches[quantum] = min(self.now_ms(), 0xFFFFFFFE) + 1

    def touches(self) -> list[Touch]:
        """Return what was touched from the mount until the window was closed, by quantum."""
        return [Touch(quantum, stamp - 1) for quantum, stamp in _stamped(self._touches)]

    @property
    def window_open(self) -> bool:
        """Whether touches are recorded."""
        return not struct.unpack_from("<Q", self._memory, _CLOSED)[0]

    @property
    def window_s(self) -> float:
        """How long the window was open, or has been until now, in seconds."""
        closed = struct.unpack_from("<Q", self._memory, _CLOSED)[0]
        return float((closed - 1 if closed else self.now_ms()) / 1e3)

    def close_window(self) -> None:
        """Record no more touches. The first call counts."""
        if self.window_open:
            struct.pack_into("<Q", self._memory, _CLOSED, self.now_ms() + 1)


def create(image_bytes: int) -> int:
    """Make the memory for an image and return its descriptor. The time of the mount is now."""
    descriptor = os.memfd_create("robust-image", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, _size_bytes(image_bytes))
    # The slots' pages must be there before the kernel writes into them: a request must not be lost for want of memory.
    os.pwrite(descriptor, bytes(_HEAD_BYTES + SLOTS * SLOT_BYTES), 0)
    os.pwrite(descriptor, _HEAD.pack(_MAGIC, image_bytes, time.monotonic_ns(), 0, 0, 0), 0)
    return descriptor


def _quanta(image_bytes: int) -> int:
    return -(-image_bytes // QUANTUM_BYTES)


def _size_bytes(image_bytes: int) -> int:
    return _told_at(2) + _quanta(image_bytes) * 4


def _told_at(place: int) -> int:
    return _HEAD_BYTES + SLOTS * SLOT_BYTES + place * MOST_TOLD_BYTES


def _stamped(touches: memoryview) -> Iterable[tuple[int, int]]:
    return ((quantum, stamp) for quantum, stamp in enumerate(touches) if stamp)
