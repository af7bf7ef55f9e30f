"""NCCL's operations as tracks of a timeline: of each rank a few for each communicator, below its threads. Pure.

A span begins when the first connection is opened for an operation, which is when the GPU comes to it (where none was needed: when
it was enqueued), and ends when all have done their part; what has not lasts to the end of the picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from robust_run.report.timeline_events import Event, name_event, ns, span_event
from robust_run.tracer.nccl.types import NcclOp, NcclTrace
from robust_run.tracer.nccl.words import func_name

#: Tracks of one communicator, and the first track of NCCL's: threads of the program have the numbers below.
MOST_LANES = 4
FIRST_TRACK = 1 << 16
#: No monotonic clock shows more than this, ten years.
LATEST_S = 3e8


class NcclTracks(msgspec.Struct, frozen=True, kw_only=True):
    """What NCCL did in one rank, for a timeline."""

    rank: int
    trace: NcclTrace
    shift_s: float = 0.0
    """To be added to its times, so that they are of the clock of the timeline."""
    names: Mapping[int, str] = {}
    """What people call its communicators, by their hash; else as NCCL was told."""


def times(tracks: Sequence[NcclTracks]) -> Iterator[float]:
    """Yield all times that are drawn."""
    for of in tracks:
        for op in filter(_is_sound, of.trace.ops):
            for at_s in (op.started_s, op.stopped_s, op.proxy_first_s, op.proxy_last_s):
                if at_s is not None:
                    yield at_s + of.shift_s


def events(of: NcclTracks, begin_s: float, end_ns: int) -> Iterator[Event]:
    """Yield the tracks of one rank."""
    track = FIRST_TRACK
    for communicator in of.trace.communicators:
        ops = [op for op in of.trace.ops if op.comm == communicator.serial and _is_sound(op)]
        name = of.names.get(communicator.hash) or communicator.name or f"communicator {communicator.hash:x}"
        ends: list[int] = []
        placed = [(_between(op, of.shift_s, begin_s, end_ns), op) for op in ops]
        for between, op in sorted(placed, key=lambda one: (one[0], one[1].number)):
            lane = next((place for place, end in enumerate(ends) if end <= between[0]), len(ends))
            if lane >= MOST_LANES:
                continue  # it overlaps with too many others
            if lane == len(ends):
                ends.append(0)
                yield name_event(of.rank, track + lane, "thread_name", {"name": f"NCCL {name}"})
                yield name_event(of.rank, track + lane, "thread_sort_index", {"sort_index": track + lane})
            ends[lane] = between[1]
            yield span_event(of.rank, track + lane, _title(op, name), "nccl", between, _arguments(op, of))
        track += MOST_LANES


def _is_sound(op: NcclOp) -> bool:
    """Tell whether an operation has times that can be drawn."""
    times_s = (op.started_s, op.stopped_s, op.proxy_first_s, op.proxy_last_s)
    return all(at_s is None or 0.0 <= at_s < LATEST_S for at_s in times_s)


def _between(op: NcclOp, shift_s: float, begin_s: float, end_ns: int) -> tuple[int, int]:
    """Return when an operation began and ended, in nanoseconds since the beginning of the picture."""
    began_s = op.proxy_first_s if op.proxy_first_s is not None else op.started_s
    last_s = op.proxy_last_s if op.opened else op.stopped_s
    begin_ns = ns(began_s + shift_s, begin_s)
    over = last_s is not None and not _is_open(op)
    return begin_ns, max(begin_ns, ns(last_s + shift_s, begin_s) if over and last_s is not None else end_ns)


def _is_open(op: NcclOp) -> bool:
    return op.opened > op.closed


def _title(op: NcclOp, name: str) -> str:
    what = f"{func_name(op.func)} #{op.seq} {name}"
    return f"{what} (unfinished)" if _is_open(op) else what


def _arguments(op: NcclOp, of: NcclTracks) -> dict[str, object]:
    said: dict[str, object] = {"count": op.count, "dtype": op.dtype, "connections": op.opened}
    said |= {"sent_bytes": op.sent_bytes} if op.sent_bytes else {}
    said |= {"received_bytes": op.received_bytes} if op.received_bytes else {}
    said["enqueued_ms_before"] = round(max(0.0, (op.proxy_first_s or op.started_s) - op.started_s) * 1e3, 3)
    stuck = [flow for flow in of.trace.flows if flow.op == op.number and flow.open_ops and _is_open(op)]
    said |= {"connections_in_flight": len(stuck)} if stuck else {}
    return said
