"""The threads that fetch: they carry out what the queue says, compare digests, keep blocks and wake the reads that wait.

A read is answered from the cache where all of it is there, and else when its blocks have come, or with a reason why they did not,
at the latest after `FetchLimits.read_limit_s`.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from robust_run.prefetch.blockmap import is_good
from robust_run.prefetch.cache import BlocksWrongError, Cache
from robust_run.prefetch.fetching.reads import Answer, ImageRead, Reads
from robust_run.prefetch.fetching.repairs import Repairs
from robust_run.prefetch.fetching.sources import BlockSource, may_work_later
from robust_run.prefetch.room import Room
from robust_run.prefetch.rules.flights import FetchJob
from robust_run.prefetch.rules.queue import FetchQueue
from robust_run.prefetch.rules.source_health import Health
from robust_run.prefetch.rules.types import BlockMap, BlockRun, FetchCounts, FetchLimits, Priority
from robust_run.store.cancelling import Cancellation
from robust_run.store.errors import Cancelled, Unavailable
from robust_run.store.turn_table import IMAGE, TurnTable
from robust_run.store.turns import Urgency

_TICK_S = 0.25
_MOST_PROBLEMS = 20
#: How often a read may find the cache wrong, for each of its blocks: a disk may spoil all that is written to it.
_MOST_TRIES = 4
#: Gets a sentence and, for reads that failed, the reason; "": they wait.
Tell = Callable[[str, str], None]


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
        self._limits, self._clock, self._tell, self._note = limits, clock, tell, note
        self._present = cache.scan()
        self._here_before = self._present.count(1)
        self._health = Health(tuple(source.name for source in sources), limits)
        self._queue = FetchQueue(
            block_map.block_bytes, self._present, self._offers, self._health, limits, has_given=takes_over
        )
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._waiting = Reads()
        root = os.path.dirname(cache.folder)
        self._repairs, self._room = Repairs(sources[-1].name, root), Room(root, limits.keep_free_bytes)
        self._requests: dict[FetchJob, Cancellation] = {}
        self._problems: deque[str] = deque(maxlen=_MOST_PROBLEMS)
        self._reads = self._waited = self._failed = self._hot_total = 0
        self._waited_s = 0.0
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def _offers(self, source: int, start: int, count: int, priority: Priority) -> float | None:
        return self._sources[source].offers(start, count, priority)

    def start(self) -> None:
        """Start the threads."""
        said = self._look_at_disk()  # what it finds now was known before, and is said by who started us
        self._problems.extend(filter(None, [said]))
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
        read = ImageRead(offset_bytes, size_bytes, answer, self._clock(), set(), {})
        self._begin(read)

    def _begin(self, read: ImageRead) -> None:
        wanted = (block for block in read.blocks(self._map.block_bytes) if block not in read.held)
        read.left.update(block for block in wanted if not self._cache.have(block))
        self._reads += not read.tries
        if read.left:
            with self._lock:
                self._waited += 1
                refused = []
                for block in self._waiting.wait(read, self._cache.have):
                    self._present[block] = 0
                    refused.append((block, self._queue.demand(block, read.since_s)))
                    self._work.notify()
                waits = bool(read.left)
            self._lose((block, reason) for block, reason in refused if reason)
        else:
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
                reads=self._reads,
                waited=self._waited,
                waited_s=round(self._waited_s, 3),
                failed=self._failed,
                hot_total=self._hot_total,
                hot_left=self._queue.hot_left,
                given_up=self._queue.given_up,
                background=self._queue.in_background,
                passing_through=not self._room.keeping,
                repaired=self._repairs.count,
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
        self._arrived([block for block in range(job.start, job.start + job.count) if self._cache.have(block)], {})

    def _request(self, job: FetchJob, blocks: range, scratch: memoryview) -> None:
        sizes = [self._map.block_size_bytes(block) for block in blocks]
        starts = [index * self._map.block_bytes for index in range(len(blocks))]
        buffers = [scratch[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        source = self._sources[job.source]
        try:
            source.read_into(blocks[0] * self._map.block_bytes, buffers, self._requests[job])
        except Exception as error:  # a source may be anything; each exception it raises is its failure
            words = self._slow_words(job) if isinstance(error, Cancelled) else _words(error)
            reason = words if words.startswith(source.name) else f"{source.name}: {words}"
            after_s = error.retry_after_s if isinstance(error, Unavailable) else 0.0
            self._failed_at(
                job, reason, final=not may_work_later(error) and not isinstance(error, Cancelled), retry_after_s=after_s
            )
            return
        good = {block: data for block, data in zip(blocks, buffers, strict=True) if is_good(self._map, block, data)}
        wrong = [block for block in blocks if block not in good]
        kept = {block for block, data in good.items() if self._kept(block, data)}
        # What the cache has spoilt once is given to who waits for it from here.
        held = {
            block: bytes(data) for block, data in good.items() if block not in kept or self._repairs.is_wrong(block)
        }
        self._arrived(kept, held)
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

    def _kept(self, block: int, data: memoryview) -> bool:
        if not self._room.keeping:
            return False
        if self._cache.put(block, data):
            return True
        self._say(
            [self._changed_room(lambda room, now_s: room.refused(self._cache.failure, self._missing_bytes(), now_s))]
        )
        return False

    def _over(self, job: FetchJob, note: Callable[[float], list[tuple[int, str]] | None], problem: str = "") -> None:
        """Tell the queue how a job ended, and the reads that are lost by it."""
        with self._lock:
            if self._requests.pop(job, None) is None:
                return  # it was told already
            lost = note(self._clock()) or []
            if problem:
                self._problems.append(problem)
            self._work.notify()
        self._lose(lost)

    def _arrived(self, kept: Iterable[int], held: dict[int, bytes]) -> None:
        """Wake the reads that wait for these blocks. `held`: those that they get from us, and not from the cache."""
        kept = set(kept)
        now_s = self._clock()
        with self._lock:
            for block in kept:
                self._present[block] = 1
            arrived = kept | held.keys()
            for block in arrived:
                self._queue.satisfied(block)
            wrong = sorted(filter(self._repairs.is_wrong, arrived))
            said = [self._repairs.came(block, now_s, kept=block in kept) for block in wrong]
            ready = self._waiting.arrived(kept, held)
        self._say(said)
        for read in ready:
            self._finish(read)

    def _say(self, sentences: Iterable[str]) -> None:
        """Say what is worth knowing; "": nothing."""
        for sentence in filter(None, sentences):
            with self._lock:
                self._problems.append(sentence)
            self._note(sentence)

    def _lose(self, lost: Iterable[tuple[int, str]]) -> None:
        """Answer the reads that wait for blocks that will not come."""
        for block, why in lost:
            with self._lock:
                reason = self._repairs.reason(block, why)
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

    def _finish(self, read: ImageRead) -> None:
        """Answer a read whose blocks are all there. Those that the cache has wrong are fetched once more."""
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
        with self._lock:
            for block in wrong:
                self._repairs.found(block, how)
            read.tries += 1
            is_over = read.tries > _MOST_TRIES * len(read.blocks(self._map.block_bytes))
            reason = self._repairs.reason(blocks[0], "it was fetched again and again")
            self._failed += is_over
        if not is_over:
            self._begin(read)
            return
        self._tell(f"block {blocks[0]} could not be read: {reason}", reason)
        self._answer(read, None, reason)

    def _answer(self, read: ImageRead, data: bytes | None, reason: str) -> None:
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
                due = self._repairs.due(now_s)
            for cancellation in old:
                cancellation.cancel()
            self._lose(lost)
            if slow:
                self._tell(slow, "")
            self._say([due, self._look_at_disk()])

    def _look_at_disk(self) -> str:
        """Look how much is free. Return what is to be said of it; "": nothing is."""
        try:
            free_bytes = self._cache.free_bytes()
        except OSError:
            return ""
        return self._changed_room(lambda room, now_s: room.looked(free_bytes, self._missing_bytes(), now_s))

    def _changed_room(self, change: Callable[[Room, float], str]) -> str:
        with self._lock:
            said = change(self._room, self._clock())
            if self._queue.keeping != self._room.keeping:
                self._queue.keeping = self._room.keeping
                if self._room.keeping:
                    self._waiting.let_go()
                self._work.notify_all()
        return said

    def _missing_bytes(self) -> int:
        return self._present.count(0) * self._map.block_bytes


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
