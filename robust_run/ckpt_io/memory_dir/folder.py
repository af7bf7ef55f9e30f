"""A folder in memory, put together: its layers, its memory, what brings it to storage."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable

from robust_run.ckpt_io.memory import node_memory
from robust_run.ckpt_io.memory.budget import MemoryFacts
from robust_run.ckpt_io.memory_dir.allowance import Allowance, NoRoom
from robust_run.ckpt_io.memory_dir.flushing import Flusher
from robust_run.ckpt_io.memory_dir.layers import Layers
from robust_run.ckpt_io.memory_dir.memory_file import MemoryFile, SpilledFile
from robust_run.ckpt_io.memory_dir.operations import MemoryOperations
from robust_run.ckpt_io.memory_dir.storage import Storage
from robust_run.ckpt_io.memory_dir.types import MemoryDirOptions, Written


class MemoryFolder:
    """One folder."""

    def __init__(
        self, options: MemoryDirOptions, say: Callable[[str], None], facts: Callable[[], MemoryFacts] = node_memory.read
    ) -> None:
        """`say`: a line for people. `facts`: asks the kernel for memory."""
        self._say = say
        self._point = options.point
        self._allowance = Allowance(facts, options.limit_bytes)
        self._storage = storage = Storage(options.storage) if options.storage else None
        self.layers = Layers(storage, time.monotonic, time.time_ns)
        self.flusher = Flusher(self.layers, storage, say) if storage is not None else None
        self._is_full = False

    def operations(self, on_ready: Callable[[], None]) -> MemoryOperations:
        """Return what answers the kernel."""
        return MemoryOperations(self.layers, self.make, self._allowance.free_bytes, self._say, on_ready)

    def start(self) -> None:
        """Begin to write to storage."""
        if self.flusher is not None:
            self.flusher.start()

    def make(self, *, in_memory: bool) -> MemoryFile:
        """Make an empty file: in memory, or, where there is no room for it, in storage. Raises OSError (ENOSPC)."""
        if in_memory:
            return MemoryFile(self._take, self._allowance.give_back)
        if self._storage is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return SpilledFile(self._storage.new_name())

    def finish(self, limit_s: float | None, tell: Callable[[int, int], None], every_s: float) -> Written:
        """Write what storage has not got; see `Flusher.finish`."""
        return Written(files=0, bytes=0) if self.flusher is None else self.flusher.finish(limit_s, tell, every_s)

    def _take(self, wanted_bytes: int, least_bytes: int) -> int:
        """Take memory: of what storage has, if there is no other; return how much. Raises OSError (ENOSPC)."""
        while True:
            try:
                return self._allowance.take(wanted_bytes, least_bytes)
            except NoRoom as full:
                if self.layers.drop_oldest():
                    continue
                self._say_full(str(full))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _say_full(self, why: str) -> None:
        if not self._is_full:
            self._is_full = True
            then = f"goes to {self._storage.root} directly" if self._storage is not None else "fails"
            self._say(f"memory for {self._point} is used up ({why}): what is saved and finds no room {then}")
