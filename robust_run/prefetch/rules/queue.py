"""What is fetched next, and from where. Pure: `next` and what happened go in with the time, a `FetchJob` or None comes out.

Demand goes before hot, hot before background. With a block that is demanded comes the stretch around it, where a source gives
that much; else the block alone. A demand for a block that is being fetched joins that request, and asks a second
time after `hedge_after_s`, or later where all requests take long: more of them would take longer still. A block
that comes wrong, or not, is asked for elsewhere; one that all who offer it failed at for good, `tries` times each, is given up.

Prefetching begins with few small requests, and makes one more at once for each that came, up to the full width: all of them
together from the first moment would share the link, and what the program reads first would come as late as what it reads last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from robust_run.prefetch.rules.demands import Demands
from robust_run.prefetch.rules.flights import FetchJob, Flights
from robust_run.prefetch.rules.source_choice import Offers, SourceChoice
from robust_run.prefetch.rules.source_health import Health, SourcePatience
from robust_run.prefetch.rules.types import BlockRun, FetchLimits, Priority

#: How soon a block that another server on this node fetches is looked at again, and how long a demand waits for that one.
_BUSY_S, _LONGEST_BUSY_S = 0.02, 2.0
#: How often a run that is prefetched may fail before it is left to demands.
_PREFETCH_TRIES = 8
_IDLE_S = 0.5
_NEVER_S = float("inf")
#: For so long after a read waited for a block, the rest of the image comes with so few requests at once, if it is more than so
#: much: a program that starts reads what nobody foresaw, and would share link and CPU with what it may never read.
_BESIDE_S, _BESIDE_WIDTH, _BESIDE_BYTES = 0.5, 2, 512 << 20
_STORE_AGAIN = (
    ": it is damaged there, was replaced, or is not what its block map was made of;"
    " store both again, or start the job anew"
)


class FetchQueue:
    """What is wanted, what is under way. Not safe for threads: its owner holds a lock."""

    def __init__(
        self,
        block_bytes: int,
        present: bytearray,
        offers: Offers,
        health: Health,
        limits: FetchLimits,
        *,
        has_given: bool = False,
    ) -> None:
        """`present`: one byte per block, shared with the owner, who sets it when a block was kept.

        `has_given`: whether some source ever gave a block; where there is one, that is known.
        """
        self._block_bytes, self._present = block_bytes, present
        self._health, self._limits = health, limits
        self._choice = SourceChoice(offers, health, limits.tries)
        self._most = max(1, limits.run_bytes // block_bytes)
        self._stretch = max(1, min(limits.stretch_bytes, limits.run_bytes) // block_bytes)
        self._hot: deque[tuple[int, int, int]] = deque()  # start, count, tries
        self._flights = Flights(present, self._most, aligned=limits.aligned)
        self._cursor = 0
        self._background_width = 0
        self._demanded_s = -_NEVER_S
        self._begun = self._came = 0
        self._patience = SourcePatience(limits, has_given=has_given or any(present))
        self.demands = Demands(self._patience, self._choice)
        """What reads wait for."""
        self._rate: float | None = None
        self._free_from_s = 0.0
        self._wake_s = 0.0
        self.most_prefetching = limits.width
        """So many requests that no read waits for are under way at once; fewer while other things are more urgent."""
        self.given_up = 0
        self.keeping = True
        """False: what is fetched cannot be kept, so nothing but demands is fetched."""

    # what is wanted

    def demand(self, block: int, now_s: float) -> str:
        """Want a block for a read. Return why it cannot be had, if that was found a moment ago."""
        self._demanded_s = now_s
        return self.demands.add(block, now_s)

    def satisfied(self, block: int) -> None:
        """No read waits for a block any more."""
        self.demands.satisfied(block)

    def prefetch(self, runs: Iterable[BlockRun]) -> int:
        """Want runs, after all others that are wanted. Return how many blocks of them are not there yet."""
        added = 0
        for run in runs:
            for start, count in self._flights.pieces(run.start, run.start + run.count, self._most):
                self._hot.append((start, count, 0))
                added += count
        return added

    def background(self, width: int, bytes_per_s: float | None, now_s: float) -> None:
        """Fetch the rest of the image too, with so many requests at once; 0: no more."""
        self._background_width, self._rate, self._free_from_s = width, bytes_per_s, now_s
        self._cursor = 0

    @property
    def in_background(self) -> bool:
        """Whether the rest may be fetched."""
        return self._background_width > 0

    @property
    def is_waited_for(self) -> bool:
        """Whether a read waits for a block."""
        return bool(self.demands)

    @property
    def missing(self) -> int:
        """Blocks of the image that are not there."""
        return self._present.count(0)

    @property
    def hot_left(self) -> int:
        """Blocks that are still to be prefetched, those under way included."""
        return sum(count for _start, count, _tries in self._hot) + self._flights.hot_blocks()

    # what is next

    def next(self, now_s: float) -> FetchJob | None:
        """Return the request to make now, and count it as under way; None where there is none. See `wake_s`."""
        self._wake_s = now_s + _IDLE_S if self.demands or self._hot or self._background_width else _NEVER_S
        job = self._next_demand(now_s)
        prefetching = self._flights.active(Priority.HOT, Priority.BACKGROUND)
        if (
            job is None
            and self.keeping
            and prefetching < min(self._limits.width, self._limits.first_width + self._came, self.most_prefetching)
        ):
            job = self._next_hot(now_s) or self._next_background(now_s)
            self._begun += job is not None
        if job is not None:
            self._flights.begun(job)
        return job

    @property
    def wake_s(self) -> float:
        """When to call `next` again at the latest, if nothing else happens."""
        return self._wake_s

    def _next_demand(self, now_s: float) -> FetchJob | None:
        for block, demand in self.demands.items():
            flights = self._flights.of(block)
            if len(flights) > 1 or (flights and not self._is_late(flights[0], now_s)):
                continue
            if self._is_busy(block, now_s):
                continue
            alone = not flights and now_s - demand.since_s < _LONGEST_BUSY_S
            for start, count in self._pieces_for(block, is_first=not flights and not demand.reason):
                source = self._choose(start, count, Priority.DEMAND, now_s, demand.refusals, flights)
                if source is not None:
                    return FetchJob(start, count, Priority.DEMAND, source, now_s, alone=alone)
        return None

    def _pieces_for(self, block: int, *, is_first: bool) -> Iterator[tuple[int, int]]:
        """What to ask for where a block is demanded, the best first. What failed before is asked for alone."""
        if is_first and self._stretch > 1:
            begin = block // self._stretch * self._stretch
            for start, count in self._flights.pieces(begin, begin + self._stretch, self._stretch):
                if start <= block < start + count and count > 1:
                    yield start, count
        yield block, 1

    def _is_late(self, job: FetchJob, now_s: float) -> bool:
        late_s = job.began_s + self._health.late_after_s(job.source)
        self._wake_s = min(self._wake_s, late_s) if late_s > now_s else self._wake_s
        return late_s <= now_s

    def _is_busy(self, block: int, now_s: float) -> bool:
        until_s = self._flights.left_until_s(block, now_s)
        if until_s <= now_s:
            return False
        self._wake_s = min(self._wake_s, until_s)
        return True

    def _choose(
        self,
        start: int,
        count: int,
        priority: Priority,
        now_s: float,
        refusals: dict[int, int] | None = None,
        flights: Sequence[FetchJob] = (),
    ) -> int | None:
        source = self._choice.choose(start, count, priority, now_s, refusals, flights)
        self._wake_s = min(self._wake_s, self._choice.later_s)
        return source

    def _next_hot(self, now_s: float) -> FetchJob | None:
        for _ in range(len(self._hot)):
            start, count, tries = self._hot.popleft()
            pieces = self._flights.pieces(start, start + count, self._most_now)
            if not pieces:
                continue
            self._hot.extendleft((piece_start, size, tries) for piece_start, size in reversed(pieces[1:]))
            start, count = pieces[0]
            if not self._is_busy(start, now_s):
                source = self._choose(start, count, Priority.HOT, now_s)
                if source is not None:
                    return FetchJob(start, count, Priority.HOT, source, now_s, tries)
                if self._choice.all_quiet(now_s):
                    self._hot.appendleft((start, count, tries))
                    return None
            self._hot.append((start, count, tries))  # others can go on meanwhile
        return None

    def _next_background(self, now_s: float) -> FetchJob | None:
        if self._flights.active(Priority.BACKGROUND) >= self._background_width:
            return None
        alone_s = self._demanded_s + _BESIDE_S
        if alone_s > now_s and self._flights.active(Priority.BACKGROUND) >= _BESIDE_WIDTH and self._is_much_left():
            self._wake_s = min(self._wake_s, alone_s)
            return None
        if self._free_from_s > now_s:
            self._wake_s = min(self._wake_s, self._free_from_s)
            return None
        at, first_busy = self._cursor, len(self._present)
        while (start := self._present.find(0, at)) >= 0:
            pieces = self._flights.pieces(start, min(len(self._present), start + self._most), self._most_now)
            start, count = pieces[0] if pieces else (start, self._most)
            at = start + count
            if pieces and self._is_busy(start, now_s):
                first_busy = min(first_busy, start)  # the other server may fetch a part of it only, or die
            elif pieces:
                source = self._choose(start, count, Priority.BACKGROUND, now_s)
                if source is None:
                    return None
                self._cursor = min(first_busy, at)
                if self._rate is not None:
                    self._free_from_s = max(self._free_from_s, now_s - 1.0) + count * self._block_bytes / self._rate
                return FetchJob(start, count, Priority.BACKGROUND, source, now_s)
        self._cursor = first_busy
        return None

    def _is_much_left(self) -> bool:
        return self.missing * self._block_bytes > _BESIDE_BYTES

    @property
    def _most_now(self) -> int:
        """How many blocks a request may ask for. Nodes that share blocks ask for whole groups always."""
        return self._stretch if self._begun < self._limits.first_small and not self._limits.aligned else self._most

    # what happened

    def came(self, job: FetchJob, wrong: Sequence[int], good_bytes: int, now_s: float) -> list[tuple[int, str]]:
        """Note that a request gave bytes, and which blocks of it were wrong. Return demands that are given up."""
        self.landed(job)
        self._came += 1
        self._patience.came(good_bytes)
        self._health.came(job.source, good_bytes, len(wrong), now_s, now_s - job.began_s)
        return self._again(
            job, wrong, f"{self._health.name(job.source)} sends wrong bytes{_STORE_AGAIN}", True, now_s, True
        )

    def failed(
        self, job: FetchJob, reason: str, final: bool, now_s: float, retry_after_s: float = 0.0
    ) -> list[tuple[int, str]]:
        """Note that a request gave nothing; `final`: and will not, `retry_after_s`: the source wants to be left alone so long.

        Return demands that are given up.
        """
        self.landed(job)
        self._health.failed(job.source, now_s, retry_after_s)
        return self._again(job, range(job.start, job.start + job.count), reason, final, now_s)

    def busy(self, job: FetchJob, now_s: float) -> None:
        """Note that another server on this node is fetching some of these blocks."""
        self.landed(job)
        self._flights.leave(job, now_s + _BUSY_S)
        if job.priority == Priority.HOT:
            self._hot.append((job.start, job.count, job.tries))
        elif job.priority == Priority.BACKGROUND:
            self._cursor = min(self._cursor, job.start)

    def landed(self, job: FetchJob) -> None:
        """Note that a request is over, and nothing more: the blocks were there already."""
        self._flights.landed(job)

    def _again(
        self, job: FetchJob, blocks: Sequence[int], reason: str, final: bool, now_s: float, is_wrong: bool = False
    ) -> list[tuple[int, str]]:
        lost = self.demands.failed(blocks, job.source, reason, now_s, final=final, is_wrong=is_wrong)
        if job.priority != Priority.DEMAND:
            if job.tries + 1 >= _PREFETCH_TRIES:
                self.given_up += len(blocks)
            else:
                self._hot.extend((block, 1, job.tries + 1) for block in blocks)
        return lost

    def wait_anew(self, now_s: float) -> None:
        """See `SourcePatience.begin_anew`. New reads join what the kernel waits for already, so that counts anew, too."""
        self._patience.begin_anew()
        self.demands.begin_anew(now_s)
