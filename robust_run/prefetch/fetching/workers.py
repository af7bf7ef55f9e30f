"""The threads that fetch: they carry out what the queue says, compare digests, keep blocks and wake the reads that wait.

A read is answered from the cache where all of it is there, and else when its blocks have come, or with a reason why they did not,
at the latest after `FetchLimits.read_limit_s`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from robust_run.prefetch.blockmap import is_good
from robust_run.prefetch.cache import Cache
from robust_run.prefetch.fetching.answering import Answering
from robust_run.prefetch.fetching.keeping import Keeping
from robust_run.prefetch.fetching.reads import Answer
from robust_run.prefetch.fetching.repairs import Repairs
from robust_run.prefetch.fetching.sources import BlockSource, may_work_later
from robust_run.prefetch.fetching.words import FetchWords, Tell, words_of
from robust_run.prefetch.rules.flights import FetchJob
from robust_run.prefetch.rules.queue import FetchQueue
from robust_run.prefetch.rules.source_health import Health
from robust_run.prefetch.rules.types import BlockMap, BlockRun, FetchCounts, FetchLimits, Priority
from robust_run.store.cancelling import Cancellation
from robust_run.store.errors import Cancelled, Unavailable
from robust_run.store.rules.turns import Urgency
from robust_run.store.turn_table import IMAGE, TurnTable

_TICK_S = 0.25


class Fetcher:
    """Serves reads of an image from its cache and its sources. Threads run from `start` to `stop`."""

    def __init__(
        self,
        block_map: BlockMap,
        cache: Cache,
        sources: Sequence[BlockSource],
        limits: FetchLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        tell: Tell = lambda _sentence, _about: None,
        note: Callable[[str], None] = lambda _sentence: None,
        takes_over: bool = False,
    ) -> None:
        """`sources`: in the order of preference, the origin usually last. `tell` hears, from a thread and before who reads
        does, that reads fail or wait for long, and why; `note` what is worth knowing and fails nothing. `takes_over`: the image
        was served before.
        """
        self._map, self._cache, self._sources = block_map, cache, tuple(sources)
        self._limits, self._clock, self._words = limits, clock, FetchWords(tell, note)
        self._present = cache.scan()
        self._here_before = self._present.count(1)
        self._health = Health(tuple(source.name for source in sources), limits)
        self._queue = FetchQueue(
            block_map.block_bytes, self._present, self._offers, self._health, limits, has_given=takes_over
        )
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._repairs = Repairs(sources[-1].name, os.path.dirname(cache.folder))
        self._answering = Answering(
            block_map, cache, self._present, self._queue, self._repairs, self._work, self._words, clock
        )
        self._keeping = Keeping(
            cache, block_map.block_bytes, limits.keep_free_bytes, self._queue, self._answering, self._work, clock
        )
        self._requests: dict[FetchJob, Cancellation] = {}
        self._hot_total = 0
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def _offers(self, source: int, start: int, count: int, priority: Priority) -> float | None:
        return self._sources[source].offers(start, count, priority)

    def start(self) -> None:
        """Start the threads."""
        self._words.keep(self._keeping.look())  # it was known before, and is said by who started us
        loops = [self._fetch] * (self._limits.width + self._limits.demand_width) + [self._watch]
        self._threads = [threading.Thread(target=loop, daemon=True) for loop in loops]
        for thread in self._threads:
            thread.start()

    def stop(self, limit_s: float = 2.0) -> None:
        """Call off all requests, answer all reads with a reason, and wait for the threads, at most so long."""
        self._stopping.set()
        with self._lock:
            cancellations = list(self._requests.values())
            self._work.notify_all()
        for cancellation in cancellations:
            cancellation.cancel()
        self._answering.stop()
        deadline_s = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    # what others ask for

    def read(self, offset_bytes: int, size_bytes: int, answer: Answer) -> None:
        """Read bytes of the image; `answer` is called when they are there, at once where they are there already.

        What lies beyond the end is left out, as by `read(2)`.
        """
        self._answering.read(offset_bytes, size_bytes, answer)

    def bring(self, offset_bytes: int, size_bytes: int, answer: Answer) -> None:
        """Have bytes of the image fetched as if they were read; `answer` is called with no bytes when they are there."""
        self._answering.read(offset_bytes, size_bytes, answer, wants_bytes=False)

    def prefetch(self, runs: Iterable[BlockRun]) -> int:
        """Fetch runs as soon as there is no demand, after those that were given before. Return how many blocks are new."""
        with self._lock:
            added = self._queue.prefetch(runs)
            self._hot_total += added
            self._work.notify()  # who takes a request wakes the next
        return added

    def wait_anew(self) -> None:
        """Give sources that failed the whole time again: other programs read from now on, and have not waited yet."""
        with self._lock:
            self._queue.wait_anew(self._clock())

    def background(self, width: int, bytes_per_s: float | None) -> None:
        """Fetch the rest of the image with so many requests at once (0: no more), at this rate (None: any)."""
        with self._lock:
            self._queue.background(min(width, self._limits.width), bytes_per_s, self._clock())
            self._work.notify()

    def take_turn(self, table: TurnTable, name: str = IMAGE, *, is_all_waited_for: bool = False) -> bool:
        """Say what is fetched, and let go first what is needed sooner. False: it was stopped.

        `name`: what people call it. `is_all_waited_for`: the whole image, although no read asks for it.
        """
        with self._lock:
            left, is_waited_for = self._queue.hot_left, self._queue.is_waited_for or is_all_waited_for
            missing = self._present.count(0)
            is_over = not (left or is_waited_for or (self._queue.in_background and missing))
            block_bytes = self._map.block_bytes
            # As soon as the hot ones are here, the rest of the image is what is to come.
            to_come = left or missing
            done_bytes = self._present.count(1) * block_bytes
            table.say(
                name,
                Urgency.HOT if left else Urgency.REST,
                done_bytes,
                done_bytes + to_come * block_bytes,
                is_waited_for=is_waited_for,
                is_over=is_over,
                here_before_bytes=self._here_before * block_bytes,
            )
            self._queue.most_prefetching = table.allowed(name, self._limits.width)
            self._work.notify()
        return not self._stopping.is_set()

    def counts(self) -> FetchCounts:
        """Return what was done so far."""
        with self._lock:
            return FetchCounts(
                reads=self._answering.reads,
                waited=self._answering.waited,
                waited_s=round(self._answering.waited_s, 3),
                failed=self._answering.failed,
                hot_total=self._hot_total,
                hot_left=self._queue.hot_left,
                given_up=self._queue.given_up,
                background=self._queue.in_background,
                passing_through=not self._keeping.is_on,
                repaired=self._repairs.count,
                sources=self._health.counts(),
                problems=self._words.problems,
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
                self._failed_at(job, words_of(error), final=False)

    def _next(self) -> FetchJob | None:
        """Wait for something to do; None: stop. The lock is held."""
        while not self._stopping.is_set():
            now_s = self._clock()
            job = self._queue.next(now_s)
            if job is not None:
                self._requests[job] = Cancellation()
                self._work.notify()  # a thread must be awake for what comes next, were it only to ask a second time
                return job
            wait_s = self._queue.wake_s - now_s
            self._work.wait(None if wait_s == float("inf") else max(0.001, wait_s))
        return None

    def _carry_out(self, job: FetchJob, scratch: memoryview) -> None:
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
        self._answering.arrived(
            [block for block in range(job.start, job.start + job.count) if self._cache.have(block)], {}
        )

    def _request(self, job: FetchJob, blocks: range, scratch: memoryview) -> None:
        sizes = [self._map.block_size_bytes(block) for block in blocks]
        starts = [index * self._map.block_bytes for index in range(len(blocks))]
        buffers = [scratch[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        source = self._sources[job.source]
        try:
            source.read_into(blocks[0] * self._map.block_bytes, buffers, self._requests[job])
        except Exception as error:  # a source may be anything; each exception it raises is its failure
            words = self._slow_words(job) if isinstance(error, Cancelled) else words_of(error)
            reason = words if words.startswith(source.name) else f"{source.name}: {words}"
            after_s = error.retry_after_s if isinstance(error, Unavailable) else 0.0
            self._failed_at(
                job, reason, final=not may_work_later(error) and not isinstance(error, Cancelled), retry_after_s=after_s
            )
            return
        good = {block: data for block, data in zip(blocks, buffers, strict=True) if is_good(self._map, block, data)}
        wrong = [block for block in blocks if block not in good]
        kept = {block for block, data in good.items() if self._is_kept(block, data)}
        # What the cache has spoilt once is given to who waits for it from here.
        held = {
            block: bytes(data) for block, data in good.items() if block not in kept or self._repairs.is_wrong(block)
        }
        self._answering.arrived(kept, held)
        problem = (
            f"{source.name}: block {wrong[0]} has the wrong digest; it is refused and asked for again" if wrong else ""
        )
        good_bytes = sum(len(data) for data in good.values())
        self._over(job, lambda now_s: self._queue.came(job, wrong, good_bytes, now_s), problem)

    def _slow_words(self, job: FetchJob) -> str:
        """Return why a request was called off; by nobody but us."""
        took_s = self._clock() - job.began_s
        is_slow = took_s > self._limits.request_limit_s and not self._stopping.is_set()
        size = f"{job.count * self._map.block_bytes / 1e6:.1f} MB"
        return (
            f"it did not send {size} in {took_s:.0f} s: it is too slow, and is asked again" if is_slow else "called off"
        )

    def _failed_at(self, job: FetchJob, reason: str, *, final: bool, retry_after_s: float = 0.0) -> None:
        self._over(job, lambda now_s: self._queue.failed(job, reason, final, now_s, retry_after_s), reason)

    def _is_kept(self, block: int, data: memoryview) -> bool:
        is_kept, said = self._keeping.put(block, data)
        self._words.say([said])
        return is_kept

    def _over(self, job: FetchJob, note: Callable[[float], list[tuple[int, str]] | None], problem: str = "") -> None:
        """Tell the queue how a job ended, and the reads that are lost by it."""
        with self._lock:
            if self._requests.pop(job, None) is None:
                return  # it was told already
            lost = note(self._clock()) or []
            self._words.keep(problem)
            self._work.notify()
        self._answering.lose(lost)

    # the watch

    def _watch(self) -> None:
        """End what takes too long, and look at the disk, four times a second."""
        while not self._stopping.wait(_TICK_S):
            now_s = self._clock()
            with self._lock:
                lost = self._queue.demands.late(now_s)
                slow = self._queue.demands.slow(now_s)
                limit_s = self._limits.request_limit_s
                old = [cancel for job, cancel in self._requests.items() if now_s - job.began_s > limit_s]
                due = self._repairs.due(now_s)
            for cancellation in old:
                cancellation.cancel()
            self._answering.lose(lost)
            if slow:
                self._words.tell(slow, "")
            self._words.say([due, self._keeping.look()])
