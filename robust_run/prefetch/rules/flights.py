"""Requests under way, by the blocks that they fetch, and the blocks that others fetch. Pure: time comes in."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from robust_run.prefetch.rules.types import Priority


class FetchJob(msgspec.Struct, frozen=True, eq=False):
    """One request that is to be made now."""

    start: int
    count: int
    priority: Priority
    source: int
    began_s: float
    tries: int = 0
    """How often this run failed before (not for demands)."""
    alone: bool = True
    """Whether to leave it to another server on this node that fetches the same blocks."""


class Flights:
    """The requests under way for one image. Not safe for threads: its owner holds a lock."""

    def __init__(self, present: bytearray, run_blocks: int, *, aligned: bool) -> None:
        """`present`: see `FetchQueue`. `run_blocks`: most blocks of a request; `aligned`: none goes over a multiple of it."""
        self._present, self._run_blocks, self._aligned = present, run_blocks, aligned
        self._by_block: dict[int, list[FetchJob]] = {}
        self._active = {Priority.DEMAND: 0, Priority.HOT: 0, Priority.BACKGROUND: 0}
        self._busy_until: dict[int, float] = {}

    def of(self, block: int) -> Sequence[FetchJob]:
        """Return the requests that fetch a block, in the order in which they were made."""
        return self._by_block.get(block, ())

    def active(self, *priorities: Priority) -> int:
        """Return how many requests of these kinds are under way."""
        return sum(self._active[priority] for priority in priorities)

    def hot_blocks(self) -> int:
        """Return how many blocks are being prefetched."""
        jobs = {id(job): job for jobs in self._by_block.values() for job in jobs if job.priority == Priority.HOT}
        return sum(job.count for job in jobs.values())

    def begun(self, job: FetchJob) -> None:
        """Note that a request is made."""
        self._active[job.priority] += 1
        for block in range(job.start, job.start + job.count):
            self._by_block.setdefault(block, []).append(job)

    def landed(self, job: FetchJob) -> None:
        """Note that a request is over."""
        self._active[job.priority] -= 1
        for block in range(job.start, job.start + job.count):
            flights = self._by_block.get(block, [])
            left = [flight for flight in flights if flight is not job]
            if left:
                self._by_block[block] = left
            else:
                self._by_block.pop(block, None)

    def leave(self, job: FetchJob, until_s: float) -> None:
        """Leave the blocks of a request to another server on this node for a while."""
        for block in range(job.start, job.start + job.count):
            self._busy_until[block] = until_s

    def left_until_s(self, block: int, now_s: float) -> float:
        """Return until when a block is left to another server; a time that is over: it is not."""
        until_s = self._busy_until.get(block, 0.0)
        if until_s <= now_s:
            self._busy_until.pop(block, None)
        return until_s

    def pieces(self, start: int, end: int, most: int) -> list[tuple[int, int]]:
        """Cut a stretch of blocks into runs of what is neither there nor under way."""
        pieces: list[tuple[int, int]] = []
        for block in range(max(0, start), min(end, len(self._present))):
            if self._present[block] or block in self._by_block:
                continue
            begins = self._aligned and block % self._run_blocks == 0
            if pieces and sum(pieces[-1]) == block and pieces[-1][1] < most and not begins:
                pieces[-1] = (pieces[-1][0], pieces[-1][1] + 1)
            else:
                pieces.append((block, 1))
        return pieces
