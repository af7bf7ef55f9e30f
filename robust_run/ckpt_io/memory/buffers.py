"""Buffers: memory without a name, reserved before it is used, so that no write to it can fail.

None can be made shorter or longer (seals), so nobody's mapping can lose its ground.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable

from robust_run.ckpt_io.memory.budget import MemoryFacts, Room, most_buffers, refusal, room
from robust_run.store.digests import digest

_NOT_RUNNABLE = 0x8
"""MFD_NOEXEC_SEAL (Linux 6.3): without it the kernel may complain, or refuse (vm.memfd_noexec)."""
_STEP_BYTES = 256 << 20


class NoRoom(Exception):  # noqa: N818 - never leaves this package
    """There is too little memory: why, for people."""


class Ledger:
    """What all buffers of the node take, and what is promised to those in the making. For many threads."""

    def __init__(self, facts: Callable[[], MemoryFacts], limit_bytes: int | None) -> None:
        self._facts, self._limit_bytes = facts, limit_bytes
        self._lock = threading.Lock()
        self._taken_bytes = self._promised_bytes = 0

    def promise(self, rank: int, size_bytes: int, wanted: int, least: int) -> int:
        """Promise memory for as many of so many buffers as there is room for; return how many.

        Raises:
            NoRoom: They are fewer than `least`.
        """
        with self._lock:
            found = room(self._facts(), self._limit_bytes, self._taken_bytes, self._promised_bytes)
            count = most_buffers(found, size_bytes, wanted)
            if count < least:
                raise NoRoom(refusal(found, rank, wanted, size_bytes, self._taken_bytes + self._promised_bytes))
            self._promised_bytes += count * size_bytes
            return count

    def room(self) -> Room:
        """Return how much more may be promised."""
        with self._lock:
            return room(self._facts(), self._limit_bytes, self._taken_bytes, self._promised_bytes)

    def took(self, size_bytes: int) -> None:
        """Note that a part of what was promised is taken: the kernel counts it from now on."""
        with self._lock:
            self._promised_bytes -= size_bytes
            self._taken_bytes += size_bytes

    def give_back(self, taken_bytes: int, promised_bytes: int = 0) -> None:
        """Note that memory was freed, or is not needed."""
        with self._lock:
            self._taken_bytes -= taken_bytes
            self._promised_bytes -= promised_bytes


def reserve(ledger: Ledger, rank: int, size_bytes: int, wanted: int, least: int) -> list[int]:
    """Make buffers and return their descriptors: as many as wanted, or as there is room for.

    Raises:
        NoRoom: They would be fewer than `least`.
    """
    count = ledger.promise(rank, size_bytes, wanted, least)
    made: list[int] = []
    for number in range(count):
        taken_bytes = 0
        try:
            descriptor = create(rank, size_bytes)
            made.append(descriptor)
            while taken_bytes < size_bytes:
                step_bytes = min(_STEP_BYTES, size_bytes - taken_bytes)
                os.posix_fallocate(descriptor, taken_bytes, step_bytes)
                taken_bytes += step_bytes
                ledger.took(step_bytes)
            seal(descriptor)
        except OSError as error:
            for each in made:
                os.close(each)
            ledger.give_back(number * size_bytes + taken_bytes, (count - number) * size_bytes - taken_bytes)
            raise no_memory(rank, error) from error
    return made


def no_memory(rank: int, error: OSError) -> NoRoom:
    """Return what the kernel's refusal means."""
    return NoRoom(f"no memory for checkpoints of rank {rank}: the kernel says {error.strerror or error}")


def seal(descriptor: int) -> None:
    """Have a buffer stay as long as it is. Raises OSError."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def create(rank: int, size_bytes: int) -> int:
    """Return the descriptor of a new buffer, none of whose memory is taken yet. Raises OSError."""
    descriptor = _create(rank)
    try:
        os.ftruncate(descriptor, size_bytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _create(rank: int) -> int:
    name = f"robust-ckpt-{rank}"
    with contextlib.suppress(OSError):  # EINVAL of an older kernel
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | _NOT_RUNNABLE)
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def read_only(descriptor: int) -> int:
    """Return another descriptor of a buffer, through which nothing can be written. Raises OSError."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def digest_of(descriptor: int, used_bytes: int) -> bytes:
    """Return the digest of a part. Raises OSError."""
    try:
        memory = mmap.mmap(descriptor, used_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from error
    with memory, memoryview(memory) as view:
        return digest(view)
