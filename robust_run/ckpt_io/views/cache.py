"""Units in memory: verified once, shared by all readers of all views, bounded; some fetched before they are asked for.

Buffers are kept and used again: writing to fresh memory is slower than most disks are (the kernel has to clear each page first).
"""

from __future__ import annotations

import mmap
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

DEFAULT_LIMIT_BYTES = 256 << 20


class UnitKey(NamedTuple):
    """Which unit: of which save (uuid), of which logical file."""

    uuid: str
    file: int
    unit: int


Load = Callable[[memoryview], None]
"""Fills a buffer of exactly the unit's size with its verified bytes, or raises."""


class _Slot:
    """A unit that is in memory, or on its way there."""

    def __init__(self, buffer: mmap.mmap, size_bytes: int) -> None:
        self.buffer = buffer
        self.view = memoryview(buffer)[:size_bytes]
        self.pins = 1
        self.ready = threading.Event()
        self.error: Exception | None = None


class UnitCache:
    """At most so many bytes of units. Safe to use from threads."""

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES, threads: int = 4) -> None:
        self.limit_bytes = limit_bytes
        self.loads = 0
        """How many units were fetched."""
        self._lock = threading.Lock()
        self._slots: OrderedDict[UnitKey, _Slot] = OrderedDict()
        self._free: list[mmap.mmap] = []
        self.held_bytes = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="read-ahead")

    @contextmanager
    def pinned(self, key: UnitKey, size_bytes: int, load: Load) -> Iterator[memoryview]:
        """Lend a unit: fetched now if it is not there. Its bytes stay as they are until the block ends.

        Raises what `load` raises; the next who asks tries again.
        """
        slot, is_ours = self._take(key, size_bytes)
        try:
            if is_ours:
                self._fill(key, slot, load)
            slot.ready.wait()
            if slot.error is not None:
                if is_ours:
                    raise slot.error
                with self.pinned(key, size_bytes, load) as view:  # a read-ahead failed: this one says why
                    yield view
                    return
            yield slot.view
        finally:
            self._unpin(slot)

    def fetch_ahead(self, wanted: Iterable[tuple[UnitKey, int, Load]]) -> None:
        """Begin to fetch units that will be asked for, as far as there is room; failures are left to who asks."""
        for key, size_bytes, load in wanted:
            with self._lock:
                if key in self._slots:
                    continue
                slot = self._new_slot(key, size_bytes, beyond_limit=False)
            if slot is None:
                return
            try:
                self._pool.submit(self._fill_ahead, key, slot, load)
            except RuntimeError:  # closed
                self._forget(key, slot, RuntimeError("closed"))
                self._unpin(slot)
                return

    def close(self) -> None:
        """End the threads and let go of everything that is not lent."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            self._slots.clear()
            self._free.clear()

    def _take(self, key: UnitKey, size_bytes: int) -> tuple[_Slot, bool]:
        """Return the slot of a unit with a pin on it, and whether the caller has to fill it."""
        with self._lock:
            slot = self._slots.get(key)
            if slot is not None:
                slot.pins += 1
                self._slots.move_to_end(key)
                return slot, False
            made = self._new_slot(key, size_bytes, beyond_limit=True)
            assert made is not None
            return made, True

    def _new_slot(self, key: UnitKey, size_bytes: int, *, beyond_limit: bool) -> _Slot | None:
        """Make a slot; where all the room is lent, None or, for one who cannot wait, a buffer more."""
        # A power of two: buffers are of few sizes, so that one that is free fits the next unit.
        buffer = self._buffer(1 << max(size_bytes - 1, 4095).bit_length(), beyond_limit)
        if buffer is None:
            return None
        slot = _Slot(buffer, size_bytes)
        self._slots[key] = slot
        return slot

    def _buffer(self, size_bytes: int, beyond_limit: bool) -> mmap.mmap | None:
        buffer = self._reused(size_bytes)
        while buffer is None and self.held_bytes + size_bytes > self.limit_bytes:
            if not self._evict():
                if not self._free:
                    break
                self.held_bytes -= len(self._free.pop())
            buffer = self._reused(size_bytes)
        if buffer is None and (beyond_limit or self.held_bytes + size_bytes <= self.limit_bytes):
            self.held_bytes += size_bytes
            buffer = mmap.mmap(-1, size_bytes)
        return buffer

    def _reused(self, size_bytes: int) -> mmap.mmap | None:
        for index, buffer in enumerate(self._free):
            if len(buffer) == size_bytes:
                return self._free.pop(index)
        return None

    def _evict(self) -> bool:
        """Give up the unit that was not used for longest. False: all are lent."""
        for key, slot in self._slots.items():
            if not slot.pins:
                del self._slots[key]
                self._free.append(slot.buffer)
                return True
        return False

    def _fill(self, key: UnitKey, slot: _Slot, load: Load) -> None:
        try:
            load(slot.view)
            self.loads += 1
        except Exception as error:  # of any kind: the readers that wait must learn of it
            self._forget(key, slot, error)
        finally:
            slot.ready.set()

    def _fill_ahead(self, key: UnitKey, slot: _Slot, load: Load) -> None:
        self._fill(key, slot, load)
        self._unpin(slot)

    def _forget(self, key: UnitKey, slot: _Slot, error: Exception) -> None:
        slot.error = error
        slot.ready.set()
        with self._lock:
            if self._slots.get(key) is slot:
                del self._slots[key]

    def _unpin(self, slot: _Slot) -> None:
        with self._lock:
            slot.pins -= 1
            if not slot.pins and slot.error is not None:
                self._free.append(slot.buffer)
