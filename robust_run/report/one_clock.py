"""One clock for the traces of several nodes: each says times of its own machine's, which counts from when that was booted. Pure.

How it is known: a call that two ranks make together ends on both at about the same moment, so the median of what the ends of
such calls differ by is what their clocks do. That is right to the milliseconds that a message takes, and below `SAME_S` it is
taken for one clock: which ranks were on one node is not known of an attempt that is over. **What looks the same:** calls on a GPU
end, for the program, when they are enqueued; one rank may be ahead of the other by as much as it may enqueue. Clocks whose ranks
have no finished call in common, with each other or by way of others, are put so that their newest events meet, if they are so far
apart that no job explains it.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from robust_run.report.nccl_tracks import NcclTracks
from robust_run.tracer.types import LIFECYCLE, Op, RankTrace

#: Calls of each rank that are compared, the newest.
COMPARED = 100
#: What clocks of one machine seem to differ by at most, and hardly any two machines.
SAME_S = 1.0
#: Newest events that are further apart are of different clocks.
FAR_S = 3600.0

Ends = dict[tuple[object, ...], float]
"""When calls ended, by what tells that they are the same."""


class _OneClock:
    """Ranks whose clocks are one."""

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.ends: Ends = {}
        self.newest_s = -math.inf

    def take(self, trace: RankTrace, ends: Ends) -> None:
        self.ranks.append(trace.rank)
        self.ends = ends | self.ends
        if math.isfinite(trace.last_at_s):
            self.newest_s = max(self.newest_s, trace.last_at_s)


def on_one_clock(
    traces: Sequence[RankTrace], inside: Sequence[NcclTracks] = ()
) -> tuple[list[RankTrace], list[NcclTracks]]:
    """Return traces with their times by the clock of the first rank."""
    shifts = {rank: shift_s for rank, shift_s in _shifts(traces).items() if shift_s}
    moved = [_moved(trace, shifts[trace.rank]) if trace.rank in shifts else trace for trace in traces]
    tracks = [
        msgspec.structs.replace(each, shift_s=each.shift_s + shifts[each.rank]) if each.rank in shifts else each
        for each in inside
    ]
    return moved, tracks


def _shifts(traces: Sequence[RankTrace]) -> dict[int, float]:
    """Return by rank what is to be added to its times."""
    clocks = _clocks(traces)
    if len(clocks) < 2:
        return {}
    found, waiting = {0: 0.0}, deque([0])
    while waiting:
        known = waiting.popleft()
        for other in range(len(clocks)):
            apart_s = _apart_s(clocks[known].ends, clocks[other].ends) if other not in found else None
            if apart_s is not None:
                found[other] = found[known] + apart_s
                waiting.append(other)
    for number, clock in enumerate(clocks):
        apart_s = clocks[0].newest_s - clock.newest_s
        found.setdefault(number, apart_s if math.isfinite(apart_s) and abs(apart_s) > FAR_S else 0.0)
    return {rank: found[number] for number, clock in enumerate(clocks) for rank in clock.ranks}


def _clocks(traces: Sequence[RankTrace]) -> list[_OneClock]:
    """Return which ranks have one clock, the first rank's first."""
    clocks: list[_OneClock] = []
    for trace in sorted(traces, key=lambda trace: trace.rank):
        ends = dict(_ends(trace))
        apart_s = ((clock, _apart_s(clock.ends, ends)) for clock in reversed(clocks))
        own = next((clock for clock, by_s in apart_s if by_s is not None and abs(by_s) < SAME_S), None)
        if own is None:
            clocks.append(own := _OneClock())
        own.take(trace, ends)
    return clocks


def _ends(trace: RankTrace) -> Iterator[tuple[tuple[object, ...], float]]:
    for op in trace.ops[-COMPARED:]:
        if op.state == "done" and op.done_at_s is not None and math.isfinite(op.done_at_s):
            key = _same(trace.rank, op)
            if key is not None:
                yield key, op.done_at_s


def _same(rank: int, op: Op) -> tuple[object, ...] | None:
    """Return what the same call has in common on all of its members; None: it has none."""
    if op.op in ("send", "recv"):
        way = (rank, op.peer) if op.op == "send" else (op.peer, rank)
        return (op.group, *way, op.tag, op.seq) if op.peer >= 0 else None
    return None if op.op in LIFECYCLE or op.op == "recv_any" else (op.group, op.op, op.seq)


def _apart_s(one: Ends, other: Ends) -> float | None:
    """Return what is to be added to the other's times; None: they have no call in common."""
    common = one.keys() & other.keys()
    return statistics.median(one[key] - other[key] for key in common) if common else None


def _moved(trace: RankTrace, by_s: float) -> RankTrace:
    def moved(at_s: float | None) -> float | None:
        return None if at_s is None else at_s + by_s

    replace = msgspec.structs.replace
    return replace(
        trace,
        last_at_s=trace.last_at_s + by_s,
        ops=tuple(
            replace(op, at_s=op.at_s + by_s, waiting_at_s=moved(op.waiting_at_s), done_at_s=moved(op.done_at_s))
            for op in trace.ops
        ),
        marks=tuple(replace(mark, at_s=mark.at_s + by_s) for mark in trace.marks),
        phases=tuple(replace(phases, at_s=phases.at_s + by_s) for phases in trace.phases),
    )
