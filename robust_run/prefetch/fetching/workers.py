"""The threads that fetch: they carry out what the queue says, compare digests, keep blocks and wake the reads that wait.

A read is answered from the cache where all of it is there, and else when its blocks have come, or with a reason why they did not,
at the latest after `FetchLimits.read_limit_s`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from robust_run.prefetch.blockmap import is_good
from robust_run.prefetch.cache import Cache
from robust_run.prefetch.fetching.health import Health
from robust_run.prefetch.fetching.queue import Job, Queue
from robust_run.prefetch.fetching.reads import Answer, Read, Reads
from robust_run.prefetch.fetching.sources import Source, may_work_later
from robust_run.prefetch.types import BlockMap, BlockRun, FetchLimits, Priority, SourceCounts
from robust_run.store.cancelling import Cancellation

_TICK_S = 0.25
_MOST_PROBLEMS = 20
#: Gets a sentence and, for reads that failed, the reason; "": they wait.
Tell = Callable[[str, str], None]


class FetchCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a fetcher has done so far; the fields are those of `types.Status`."""

    reads: int
    waited: int
    waited_s: float
    failed: int
    hot_total: int
    hot_left: int
    given_up: int
    background: bool
    passing_through: bool
    sources: tuple[SourceCounts, ...]
    problems: tuple[str, ...]


class Fetcher:
    """Serves reads of an image from its cache and its sources. Threads run from `start` to `stop`."""

    def __init__(
        self,
        block_map: BlockMap,
        cache: Cache,
        sources: Sequence[Source],
        limits: FetchLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        tell: Tell = lambda _sentence, _about: None,
    ) -> None:
        """`sources`: in the order of preference, the origin usually last. `tell` hears, from a thread and before who reads
        does, that reads fail or wait for long, and why.
        """
        self._map, self._cache, self._sources = block_map, cache, tuple(sources)
        self._limits, self._clock, self._tell = limits, clock, tell
        self._present = cache.scan()
        self._health = Health(tuple(source.name for source in sources), limits)
        self._queue = Queue(block_map.block_bytes, self._present, self._offers, self._health, limits)
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._waiting = Reads()
        self._requests: dict[Job, Cancellation] = {}
        self._problems: deque[str] = deque(maxlen=_MOST_PROBLEMS)
        self._reads = self._waited = self._failed = self._hot_total = 0
        self._waited_s = 0.0
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def _offers(self, source: int, start: int, count: int, priority: Priority) -> float | None:
        return self._sources[source].offers(start, count, priority)

    def start(self) -> None:
        """Start the threads."""
        loops = [self._fetch] * (self._limits.width + self._limits.demand_width) + [self._watch]
        self._threads = [threading.Thread(target=loop, daemon=True) for loop in loops]
        for thread in self._threads:
            thread.start()

    def stop(self, limit_s: float = 2.0) -> None:
        """Call off all requests, answer all reads with a reason, and wait for the threads, at most so long."""
        self._stopping.set()
        with self._lock:
            cancellations = list(self._requests.values())
            lost = [(block, "the block server is stopping") for block in self._waiting.blocks()]
            self._work.notify_all()
        for cancellation in cancellations:
            cancellation.cancel()
        self._lose(lost)
        deadline_s = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    # what others ask for

    def read(self, offset_bytes: int, size_bytes: int, answer: Answer) -> None:
        """Read bytes of the image; `answer` is called when they are there, at once where they are there already.

        What lies beyond the end is left out, as by `read(2)`.
        """
        size_bytes = max(0, min(size_bytes, self._map.size_bytes - offset_bytes))
        read = Read(offset_bytes, size_bytes, answer, self._clock(), set(), {})
        self._begin(read)

    def _begin(self, read: Read) -> None:
        read.left.update(block for block in read.blocks(self._map.block_bytes) if not self._cache.have(block))
        if read.left:
            with self._lock:
                self._reads, self._waited = self._reads + 1, self._waited + 1
                refused = []
                for block in self._waiting.wait(read, self._cache.have):
                    self._present[block] = 0
                    refused.append((block, self._queue.demand(block, read.since_s)))
                    self._work.notify()
                waits = bool(read.left)
            self._lose((block, reason) for block, reason in refused if reason)
        else:
            self._reads += 1
            waits = False
        if not waits:
            self._finish(read)

    def prefetch(self, runs: Iterable[BlockRun]) -> int:
        """Fetch runs as soon as there is no demand, after those that were given before. Return how many blocks are new."""
        with self._lock:
            added = self._queue.prefetch(runs)
            self._hot_total += added
            self._work.notify()  # who takes a request wakes the next
        return added

    def background(self, width: int, bytes_per_s: float | None) -> None:
        """Fetch the rest of the image with so many requests at once (0: no more), at this rate (None: any)."""
        with self._lock:
            self._queue.background(min(width, self._limits.width), bytes_per_s, self._clock())
            self._work.notify()

    def counts(self) -> FetchCounts:
        """Return what was done so far."""
        with self._lock:
            return FetchCounts(
                reads=self._reads,
                waited=self._waited,
                waited_s=round(self._waited_s, 3),
                failed=self._failed,
                hot_total=self._hot_total,
                hot_left=self._queue.hot_left,
                given_up=self._queue.given_up,
                background=self._queue.in_background,
                passing_through=not self._queue.keeping,
                sources=self._health.counts(),
                problems=tuple(self._problems),
            )

    # the threads

    def _fetch(self) -> None:
        scratch = bytearray(0)
        most = max(self._limits.run_bytes, self._map.block_bytes)
        while True:
            with self._lock:
                job = self._next()
            if job is None:
                return
            if not scratch:
                scratch = bytearray(most)
            try:
                self._carry_out(job, memoryview(scratch))
            except Exception as error:  # a thread that died would be missed by every read after it
                self._failed_at(job, _words(error), final=False)

    def _next(self) -> Job | None:
        """Wait for something to do; None: stop. The lock is held."""
        while not self._stopping.is_set():
            now_s = self._clock()
            job = self._queue.next(now_s)
            if job is not None:
                self._requests[job] = Cancellation()
                self._work.notify()  # somebody must be awake for what comes next, were it only to ask a second time
                return job
            wait_s = self._queue.wake_s - now_s
            self._work.wait(None if wait_s == float("inf") else max(0.001, wait_s))
        return None

    def _carry_out(self, job: Job, scratch: memoryview) -> None:
        claimed = job.alone and self._cache.claim(job.start, job.count)
        if job.alone and not claimed:
            self._over(job, lambda now_s: self._queue.busy(job, now_s))
            return
        try:
            wanted = [block for block in range(job.start, job.start + job.count) if not self._cache.have(block)]
            if wanted:
                self._request(job, range(wanted[0], wanted[-1] + 1), scratch)
            else:
                self._over(job, lambda _now_s: self._queue.landed(job))
        finally:
            if claimed:
                self._cache.release(job.start, job.count)
        self._arrived([block for block in range(job.start, job.start + job.count) if self._cache.have(block)], {})

    def _request(self, job: Job, blocks: range, scratch: memoryview) -> None:
        sizes = [self._map.block_size_bytes(block) for block in blocks]
        starts = [index * self._map.block_bytes for index in range(len(blocks))]
        buffers = [scratch[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        source = self._sources[job.source]
        try:
            source.read_into(blocks[0] * self._map.block_bytes, buffers, self._requests[job])
        except Exception as error:  # a source may be anything; whatever it raises is its failure
            words = _words(error)
            reason = words if words.startswith(source.name) else f"{source.name}: {words}"
            self._failed_at(job, reason, final=not may_work_later(error))
            return
        good = {block: data for block, data in zip(blocks, buffers, strict=True) if is_good(self._map, block, data)}
        wrong = [block for block in blocks if block not in good]
        unkept = {block: bytes(data) for block, data in good.items() if not self._kept(block, data)}
        self._arrived([block for block in good if block not in unkept], unkept)
        problem = (
            f"{source.name}: block {wrong[0]} has the wrong digest; it is refused and asked for again" if wrong else ""
        )
        good_bytes = sum(len(data) for data in good.values())
        self._over(job, lambda now_s: self._queue.came(job, wrong, good_bytes, now_s), problem)

    def _failed_at(self, job: Job, reason: str, *, final: bool) -> None:
        self._over(job, lambda now_s: self._queue.failed(job, reason, final, now_s), reason)

    def _kept(self, block: int, data: memoryview) -> bool:
        if not self._queue.keeping:
            return False
        if self._cache.put(block, data):
            return True
        self._keep(False, "the disk is full or fails")
        return False

    def _over(self, job: Job, note: Callable[[float], list[tuple[int, str]] | None], problem: str = "") -> None:
        """Tell the queue how a job ended, and the reads that are lost by it."""
        with self._lock:
            if self._requests.pop(job, None) is None:
                return  # it was told already
            lost = note(self._clock()) or []
            if problem:
                self._problems.append(problem)
            self._work.notify()
        self._lose(lost)

    def _arrived(self, kept: Sequence[int], unkept: dict[int, bytes]) -> None:
        """Wake the reads that wait for these blocks."""
        with self._lock:
            for block in kept:
                self._present[block] = 1
                self._queue.satisfied(block)
            for block in unkept:
                self._queue.satisfied(block)
            ready = self._waiting.arrived(kept, unkept)
        for read in ready:
            self._finish(read)

    def _lose(self, lost: Iterable[tuple[int, str]]) -> None:
        """Answer the reads that wait for blocks that will not come."""
        for block, reason in lost:
            with self._lock:
                reads, free = self._waiting.lose(block)
                for other in free:
                    self._queue.satisfied(other)
                if reads:
                    self._failed += len(reads)
                    self._problems.append(f"block {block} could not be read: {reason}; {len(reads)} reads failed")
            if reads and not self._stopping.is_set():
                self._tell(f"block {block} could not be read: {reason}", reason)
            for read in reads:
                self._answer(read, None, reason)

    def _finish(self, read: Read) -> None:
        """Answer a read whose blocks are all there. Where the cache fails it, its blocks are fetched once more."""
        try:
            data = read.assembled(self._map.block_bytes, self._cache.read)
            reason = f"{self._cache.path}: it was cut short by somebody"
        except OSError as error:
            data, reason = b"", f"{self._cache.path}: {error.strerror or error}"
        if len(data) == read.size_bytes:
            self._answer(read, data, "")
            return
        with self._lock:
            self._problems.append(reason)
            self._failed += read.again
        if read.again:
            self._tell(f"block {read.offset_bytes // self._map.block_bytes} could not be read: {reason}", reason)
            self._answer(read, None, reason)
            return
        for block in read.blocks(self._map.block_bytes):
            self._cache.forget(block)
        read.again = True
        self._begin(read)

    def _answer(self, read: Read, data: bytes | None, reason: str) -> None:
        waited_s = self._clock() - read.since_s
        with self._lock:
            self._waited_s += waited_s
        read.answer(data, reason)

    # the watch

    def _watch(self) -> None:
        """End what takes too long, and look at the disk, four times a second."""
        while not self._stopping.wait(_TICK_S):
            now_s = self._clock()
            with self._lock:
                lost = self._queue.late(now_s)
                slow = self._queue.slow(now_s)
                limit_s = self._limits.request_limit_s
                old = [cancel for job, cancel in self._requests.items() if now_s - job.began_s > limit_s]
            for cancellation in old:
                cancellation.cancel()
            self._lose(lost)
            if slow:
                self._tell(slow, "")
            self._look_at_disk()

    def _look_at_disk(self) -> None:
        try:
            free_bytes = self._cache.free_bytes()
        except OSError:
            return
        limit_bytes = self._limits.keep_free_bytes
        if free_bytes < limit_bytes:
            self._keep(False, f"{free_bytes >> 20} MiB are free, {limit_bytes >> 20} MiB are left to others")
        elif free_bytes > limit_bytes + (64 << 20):
            self._keep(True, "")

    def _keep(self, keeping: bool, why: str) -> None:
        with self._lock:
            if self._queue.keeping != keeping:
                self._queue.keeping = keeping
                if keeping:
                    self._waiting.let_go()
                else:
                    self._problems.append(
                        f"{self._cache.folder}: {why}: blocks are passed through and not kept; free some space"
                    )
                self._work.notify_all()


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
