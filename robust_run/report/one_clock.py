"""One clock for the traces of several nodes: each says times of its own machine's, which counts from when that was booted. Pure.

How it is known: a call that ranks of two nodes make together ends on both at about the same moment, so the median of what the
ends of such calls differ by is what the clocks do. That is right to the milliseconds that a message takes. **What looks the
same:** calls on a GPU end, for the program, when they are enqueued; one node may be ahead of the other by as much as it may
enqueue. Nodes that have no finished call in common, with each other or by way of others, are put so that their newest events
meet, if they are so far apart that no job explains it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from robust_run.report.nccl_tracks import NcclTracks
from robust_run.tracer.types import LIFECYCLE, Op, RankTrace

#: Calls of each rank that are compared, the newest.
COMPARED = 500
#: Newest events that are further apart are of different clocks.
FAR_S = 3600.0

Ends = dict[tuple[object, ...], float]
"""When calls ended on a node, by what tells that they are the same."""


def on_one_clock(
    traces: Sequence[RankTrace], nodes: Mapping[int, str], inside: Sequence[NcclTracks] = ()
) -> tuple[list[RankTrace], list[NcclTracks]]:
    """Return traces with their times by the clock of the first rank's node; ranks without a known node are all of one."""
    shifts = {rank: shift_s for rank, shift_s in _shifts(traces, nodes).items() if shift_s}
    moved = [_moved(trace, shifts[trace.rank]) if trace.rank in shifts else trace for trace in traces]
    tracks = [
        msgspec.structs.replace(each, shift_s=each.shift_s + shifts.get(each.rank, 0.0)) if shifts else each
        for each in inside
    ]
    return moved, tracks


def _shifts(traces: Sequence[RankTrace], nodes: Mapping[int, str]) -> dict[int, float]:
    """Return by rank what is to be added to its times."""
    of_nodes: dict[str, list[RankTrace]] = {}
    for trace in sorted(traces, key=lambda trace: trace.rank):
        of_nodes.setdefault(nodes.get(trace.rank, ""), []).append(trace)
    if len(of_nodes) < 2:
        return {}
    ends = {node: dict(itertools.chain.from_iterable(map(_ends, own))) for node, own in of_nodes.items()}
    first = next(iter(of_nodes))
    found, waiting = {first: 0.0}, deque([first])
    while waiting:
        known = waiting.popleft()
        for node in ends.keys() - found.keys():
            apart_s = _apart_s(ends[known], ends[node])
            if apart_s is not None:
                found[node] = found[known] + apart_s
                waiting.append(node)
    newest_s = _newest_s(of_nodes[first])
    for node, own in of_nodes.items():
        apart_s = newest_s - _newest_s(own)
        found.setdefault(node, apart_s if math.isfinite(apart_s) and abs(apart_s) > FAR_S else 0.0)
    return {trace.rank: found[node] for node, own in of_nodes.items() for trace in own}


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


def _newest_s(traces: Sequence[RankTrace]) -> float:
    return max((trace.last_at_s for trace in traces if math.isfinite(trace.last_at_s)), default=math.nan)


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
