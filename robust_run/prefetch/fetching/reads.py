"""The reads that wait for blocks, and the blocks that are held in memory for them while the disk is full."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection

import msgspec

#: What a read calls when it is over: the bytes and "", or None and the reason. Called once, from any thread; must not block long.
Answer = Callable[["bytes | None", str], None]
#: Of blocks that are held while the disk is full: enough for reads that follow each other.
MOST_HELD_BYTES = 64 << 20


class ImageRead(msgspec.Struct, eq=False):
    """A read of the image."""

    offset_bytes: int
    size_bytes: int
    answer: Answer
    since_s: float
    left: set[int]
    """Blocks that it still waits for."""
    held: dict[int, bytes]
    """Blocks that came and could not be kept."""
    tries: int = 0
    """How often the cache failed it."""
    wants_bytes: bool = True
    """False: it is enough that the blocks are there; it is answered with no bytes."""

    def blocks(self, block_bytes: int) -> range:
        """Return the blocks that it touches."""
        if not self.size_bytes:
            return range(0)
        return range(self.offset_bytes // block_bytes, (self.offset_bytes + self.size_bytes - 1) // block_bytes + 1)

    def assembled(self, block_bytes: int, kept: Callable[[int, int], bytes]) -> bytes:
        """Return its bytes, from blocks that are held and from what `kept(offset, size)` reads. Raises what that raises."""
        if not self.held:
            return kept(self.offset_bytes, self.size_bytes)
        parts = []
        for block in self.blocks(block_bytes):
            begin = max(self.offset_bytes, block * block_bytes)
            end = min(self.offset_bytes + self.size_bytes, (block + 1) * block_bytes)
            data = self.held.get(block)
            if data is None:
                parts.append(kept(begin, end - begin))
            else:
                parts.append(data[begin - block * block_bytes : end - block * block_bytes])
        return b"".join(parts)


class Reads:
    """All reads that wait. Not safe for threads: its owner holds a lock."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[ImageRead]] = {}
        self._held: OrderedDict[int, bytes] = OrderedDict()
        self._held_bytes = 0

    def wait(self, read: ImageRead, have: Callable[[int], bool]) -> list[int]:
        """Have a read wait for those of `read.left` that are neither held nor, at last, there. Return these."""
        for block in sorted(read.left):
            if block in self._held:
                read.held[block] = self._held[block]
                read.left.discard(block)
            elif have(block):
                read.left.discard(block)
            else:
                self._waiting.setdefault(block, []).append(read)
        return sorted(read.left)

    def arrived(self, kept: Collection[int], held: dict[int, bytes]) -> list[ImageRead]:
        """Note blocks that came; who waits gets `held` from memory. Return the reads that wait for nothing any more."""
        ready = []
        for block, data in held.items():
            if block not in kept:
                self._held_bytes += len(data) - len(self._held.get(block, b""))
                self._held[block] = data
        while self._held_bytes > MOST_HELD_BYTES:
            _block, oldest = self._held.popitem(last=False)
            self._held_bytes -= len(oldest)
        for block in dict.fromkeys((*kept, *held)):
            for read in self._waiting.pop(block, ()):
                if block in held:
                    read.held[block] = held[block]
                read.left.discard(block)
                if not read.left:
                    ready.append(read)
        return ready

    def lose(self, block: int) -> tuple[list[ImageRead], list[int]]:
        """Forget the reads that wait for a block. Return them, and the blocks that no read waits for any more."""
        lost = self._waiting.pop(block, [])
        free = [block]
        for read in lost:
            for other in read.left - {block}:
                others = [waiting for waiting in self._waiting.get(other, ()) if waiting is not read]
                if others:
                    self._waiting[other] = others
                elif self._waiting.pop(other, None) is not None:
                    free.append(other)
        return lost, free

    def blocks(self) -> list[int]:
        """Return the blocks that are waited for."""
        return list(self._waiting)

    def let_go(self) -> None:
        """Hold no blocks any more."""
        self._held.clear()
        self._held_bytes = 0
