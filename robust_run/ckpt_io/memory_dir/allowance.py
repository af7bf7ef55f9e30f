"""How much memory the files of a folder may take. The kernel is asked for each piece: a write fails, and nothing is killed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from robust_run.ckpt_io.memory.budget import MemoryFacts, room

#: Memory is asked for in pieces of this size.
PIECE_BYTES = 16 << 20


class NoRoom(Exception):  # noqa: N818 - never leaves this package
    """There is too little memory: why, for people."""


class Allowance:
    """What all files take. For many threads."""

    def __init__(self, facts: Callable[[], MemoryFacts], limit_bytes: int | None) -> None:
        """`facts`: asks the kernel. `limit_bytes`: what people allow; None: they have said nothing."""
        self._facts, self._limit_bytes = facts, limit_bytes
        self._lock = threading.RLock()  # files are closed by whoever lets go of them last, also in here
        self.taken_bytes = 0

    def take(self, wanted_bytes: int, least_bytes: int) -> int:
        """Take memory, as much as is wanted or there is; return how much. Raises NoRoom for less than the least."""
        with self._lock:
            found = room(self._facts(), self._limit_bytes, self.taken_bytes)
            size_bytes = wanted_bytes if found.bytes is None else min(wanted_bytes, found.bytes)
            if size_bytes < least_bytes:
                raise NoRoom(found.because)
            self.taken_bytes += size_bytes
            return size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Note that memory was freed."""
        with self._lock:
            self.taken_bytes -= size_bytes

    def free_bytes(self) -> int:
        """Return how much may still be taken."""
        with self._lock:
            found = room(self._facts(), self._limit_bytes, self.taken_bytes).bytes
        return 1 << 50 if found is None else found
