"""Reads of an image: answered from the cache where all of it is there, else when their blocks have come, or with a reason."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from robust_run.prefetch.cache import BlocksWrongError, Cache
from robust_run.prefetch.fetching.reads import Answer, ImageRead, Reads
from robust_run.prefetch.fetching.repairs import Repairs
from robust_run.prefetch.fetching.words import FetchWords
from robust_run.prefetch.rules.queue import FetchQueue
from robust_run.prefetch.rules.types import BlockMap

#: How often a read may find the cache wrong, for each of its blocks: a disk may spoil all that is written to it.
_MOST_TRIES = 4


class Answering:
    """The reads of one image, and the blocks that they wait for. Its owner fetches these."""

    def __init__(
        self,
        block_map: BlockMap,
        cache: Cache,
        present: bytearray,
        queue: FetchQueue,
        repairs: Repairs,
        work: threading.Condition,
        words: FetchWords,
        clock: Callable[[], float],
    ) -> None:
        """`present`: see `FetchQueue`; `work`: notified when a block is wanted, its lock is held for `present` and `queue`."""
        self._map, self._cache, self._present, self._queue = block_map, cache, present, queue
        self._repairs, self._work, self._words, self._clock = repairs, work, words, clock
        self._waiting = Reads()
        self._is_stopping = False
        self.reads = self.waited = self.failed = 0
        self.waited_s = 0.0

    def read(self, offset_bytes: int, size_bytes: int, answer: Answer, *, wants_bytes: bool = True) -> None:
        """See `Fetcher.read`; `wants_bytes`: see `ImageRead`."""
        size_bytes = max(0, min(size_bytes, self._map.size_bytes - offset_bytes))
        read = ImageRead(offset_bytes, size_bytes, answer, self._clock(), set(), {}, wants_bytes=wants_bytes)
        self._begin(read)

    def _begin(self, read: ImageRead) -> None:
        wanted = (block for block in read.blocks(self._map.block_bytes) if block not in read.held)
        read.left.update(block for block in wanted if not self._cache.have(block))
        self.reads += not read.tries
        if read.left:
            with self._work:
                self.waited += 1
                refused = []
                for block in self._waiting.wait(read, self._cache.have):
                    self._present[block] = 0
                    refused.append((block, self._queue.demand(block, read.since_s)))
                    self._work.notify()
                waits = bool(read.left)
            self.lose((block, reason) for block, reason in refused if reason)
        else:
            waits = False
        if not waits:
            self._finish(read)

    def arrived(self, kept: Iterable[int], held: dict[int, bytes]) -> None:
        """Wake the reads that wait for these blocks. `held`: those that they get from us, and not from the cache."""
        kept = set(kept)
        now_s = self._clock()
        with self._work:
            for block in kept:
                self._present[block] = 1
            arrived = kept | held.keys()
            for block in arrived:
                self._queue.satisfied(block)
            wrong = sorted(filter(self._repairs.is_wrong, arrived))
            said = [self._repairs.came(block, now_s, kept=block in kept) for block in wrong]
            ready = self._waiting.arrived(kept, held)
        self._words.say(said)
        for read in ready:
            self._finish(read)

    def lose(self, lost: Iterable[tuple[int, str]]) -> None:
        """Answer the reads that wait for blocks that will not come."""
        for block, why in lost:
            with self._work:
                reason = self._repairs.reason(block, why)
                reads, free = self._waiting.lose(block)
                for other in free:
                    self._queue.satisfied(other)
                if reads:
                    self.failed += len(reads)
                    self._words.keep(f"block {block} could not be read: {reason}; {len(reads)} reads failed")
            if reads and not self._is_stopping:
                self._words.tell(f"block {block} could not be read: {reason}", reason)
            for read in reads:
                self._answer(read, None, reason)

    def stop(self) -> None:
        """Answer all reads with a reason."""
        with self._work:
            self._is_stopping = True
            lost = [(block, "the block server is stopping") for block in self._waiting.blocks()]
        self.lose(lost)

    def let_go(self) -> None:
        """Hold no blocks in memory any more. The lock is held."""
        self._waiting.let_go()

    def _finish(self, read: ImageRead) -> None:
        """Answer a read whose blocks are all there. Those that the cache has wrong are fetched once more."""
        if not read.wants_bytes:
            self._answer(read, b"", "")
            return
        try:
            data = read.assembled(self._map.block_bytes, self._cache.read)
        except BlocksWrongError as error:
            self._fetch_again(read, error.blocks, "did not match its digest")
        except OSError as error:
            blocks = [block for block in read.blocks(self._map.block_bytes) if block not in read.held]
            self._fetch_again(read, blocks, f"could not be read ({error.strerror or error})")
        else:
            self._answer(read, data, "")

    def _fetch_again(self, read: ImageRead, blocks: Sequence[int], how: str) -> None:
        """Take cached blocks for absent, and have a read wait for them; or end it, if the cache spoils all that it is given.

        Another thread or server may have put them right since they were read: then they are read again.
        """
        wrong = [block for block in blocks if not self._cache.is_right(block)]
        for block in wrong:
            self._cache.forget(block)
        with self._work:
            for block in wrong:
                self._repairs.found(block, how)
            read.tries += 1
            is_over = read.tries > _MOST_TRIES * len(read.blocks(self._map.block_bytes))
            reason = self._repairs.reason(blocks[0], "it was fetched again and again")
            self.failed += is_over
        if not is_over:
            self._begin(read)
            return
        self._words.tell(f"block {blocks[0]} could not be read: {reason}", reason)
        self._answer(read, None, reason)

    def _answer(self, read: ImageRead, data: bytes | None, reason: str) -> None:
        waited_s = self._clock() - read.since_s
        with self._work:
            self.waited_s += waited_s
        read.answer(data, reason)
