"""The timeline of all ranks in Chrome's trace-event format, as Perfetto (ui.perfetto.dev) and chrome://tracing open it. Pure.

A rank is a process; its steps are the first track, then come its threads, one track each, and one more for each call that
overlaps another of its thread (begun and waited for later). A call that is never waited for has no end of its own: it lasts until
a later call of its group was done. What the GPU says of steps is a track below, NCCL's operations are some more, and arrows lead
from who was waited for to who waited. Times are microseconds since the earliest event, to the nanosecond; those of other
machines are moved to the clock of the first rank's (`one_clock`).

Format: "Trace Event Format", Google: X is a span (`ts`, `dur`), M names a process or thread, s and f are the ends of an arrow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from robust_run.report import gpu_tracks, nccl_tracks
from robust_run.report.arrows import Arrows, Drawn
from robust_run.report.nccl_tracks import NcclTracks
from robust_run.report.one_clock import on_one_clock
from robust_run.report.timeline_events import Event, name_event, ns, span_event
from robust_run.tracer.types import Op, RankTrace, StepMark

NEWEST_OPS = 2000
"""Of each rank that are drawn."""
NEWEST_STEPS = 2000
MOST_LANES = 16
"""Tracks of a thread; what overlaps more than so many others is left out and counted."""
STEPS_TRACK = 0


class _Span(msgspec.Struct, frozen=True):
    """A call, in nanoseconds since the beginning."""

    op: Op
    begin_ns: int
    end_ns: int
    is_open: bool


def chrome_trace(
    traces: Sequence[RankTrace],
    nodes: Mapping[int, str] | None = None,
    *,
    newest_ops: int = NEWEST_OPS,
    inside: Sequence[NcclTracks] = (),
) -> bytes:
    """Return the whole timeline as one JSON document. `nodes`: host names by rank; `inside`: what NCCL did in ranks."""
    return b"".join(chrome_trace_pieces(traces, nodes, newest_ops=newest_ops, inside=inside))


def chrome_trace_pieces(
    traces: Sequence[RankTrace],
    nodes: Mapping[int, str] | None = None,
    *,
    newest_ops: int = NEWEST_OPS,
    inside: Sequence[NcclTracks] = (),
) -> Iterator[bytes]:
    """Return the document of `chrome_trace` in pieces, one rank at a time, to be written as they come."""
    yield b'{"displayTimeUnit":"ms","traceEvents":['
    separator = b"\n"
    for event in trace_events(traces, nodes or {}, newest_ops=newest_ops, inside=inside):
        yield separator + msgspec.json.encode(event)
        separator = b",\n"
    yield b"\n]}\n"


def trace_events(
    traces: Sequence[RankTrace],
    nodes: Mapping[int, str],
    *,
    newest_ops: int = NEWEST_OPS,
    inside: Sequence[NcclTracks] = (),
) -> Iterator[Event]:
    """Return the events, rank by rank, names first. What has no sound time is left out."""
    moved, inside = on_one_clock(traces, inside)
    ordered = sorted(moved, key=lambda trace: trace.rank)
    ops = {trace.rank: _drawn(trace, newest_ops) for trace in ordered}
    times = [mark.at_s for trace in ordered for _, mark in _marks(trace)]
    times += [op.at_s for drawn in ops.values() for op in drawn]
    times += [*nccl_tracks.times(inside), *gpu_tracks.times(ordered)]
    begin_s = min(times, default=0.0)
    ends = [trace.last_at_s for trace in ordered if math.isfinite(trace.last_at_s)]
    later = (at for drawn in ops.values() for op in drawn for at in (op.waiting_at_s, op.done_at_s))
    ends += times + [at for at in later if at is not None and math.isfinite(at)]
    end_ns = ns(max(ends, default=begin_s), begin_s)
    arrows = Arrows()
    for trace in ordered:
        yield from _rank_events(trace, ops[trace.rank], nodes.get(trace.rank, ""), begin_s, end_ns, arrows)
        yield from gpu_tracks.events(trace, begin_s)
    yield from arrows.events()
    known = {trace.rank for trace in ordered}
    for tracks in inside:
        if tracks.rank not in known:
            yield from _rank_names(tracks.rank, nodes.get(tracks.rank, ""))
        yield from nccl_tracks.events(tracks, begin_s, end_ns)


def _drawn(trace: RankTrace, newest_ops: int) -> tuple[Op, ...]:
    """Return the newest calls that have a time."""
    newest = trace.ops[-newest_ops:] if newest_ops > 0 else ()
    return tuple(op for op in newest if math.isfinite(op.at_s))


def _marks(trace: RankTrace) -> tuple[tuple[int, StepMark], ...]:
    """Return the newest steps with their numbers, without damaged ones."""
    first = trace.steps - len(trace.marks) + 1
    numbered = tuple(enumerate(trace.marks, start=first))[-NEWEST_STEPS:]
    return tuple((step, mark) for step, mark in numbered if math.isfinite(mark.at_s + mark.blocked_s))


def _rank_names(rank: int, node: str) -> Iterator[Event]:
    """Return what names and orders a rank."""
    name = f"rank {rank} ({node})" if node else f"rank {rank}"
    yield name_event(rank, STEPS_TRACK, "process_name", {"name": name})
    yield name_event(rank, STEPS_TRACK, "process_sort_index", {"sort_index": rank})
    if node:
        yield name_event(rank, STEPS_TRACK, "process_labels", {"labels": node})


def _rank_events(
    trace: RankTrace, ops: Sequence[Op], node: str, begin_s: float, end_ns: int, arrows: Arrows
) -> Iterator[Event]:
    yield from _rank_names(trace.rank, node)
    yield name_event(trace.rank, STEPS_TRACK, "thread_name", {"name": "steps"})
    yield name_event(trace.rank, STEPS_TRACK, "thread_sort_index", {"sort_index": STEPS_TRACK})
    yield from _step_events(trace, begin_s)
    groups = {group.name: group.desc or group.name for group in trace.groups}
    sizes = {group.name: len(group.ranks) for group in trace.groups}
    track = STEPS_TRACK
    spans = _spans(ops, begin_s, end_ns)
    for thread in sorted({op.thread for op in ops}):
        lanes, left_out = _lanes([span for span in spans if span.op.thread == thread])
        for number, lane in enumerate(lanes):
            track += 1
            title = "main thread" if thread == 0 else f"thread {thread}"
            title += f", overlapping {number}" if number else ""
            title += f" ({left_out} more left out)" if left_out and number == len(lanes) - 1 else ""
            yield name_event(trace.rank, track, "thread_name", {"name": title})
            yield name_event(trace.rank, track, "thread_sort_index", {"sort_index": track})
            for span in lane:
                drawn = Drawn(trace.rank, track, span.begin_ns, span.end_ns, node)
                arrows.take(span.op, drawn, sizes.get(span.op.group, 0))
                yield from _op_events(trace.rank, track, span, groups.get(span.op.group, span.op.group), begin_s)


def _step_events(trace: RankTrace, begin_s: float) -> Iterator[Event]:
    """Return a span for each step between two marks."""
    marks, drawn_ns = _marks(trace), 0
    for (previous, before), (step, after) in itertools.pairwise(marks):
        begin_ns, end_ns = ns(before.at_s, begin_s), ns(after.at_s, begin_s)
        if step != previous + 1 or end_ns < begin_ns or begin_ns < drawn_ns:  # damaged: time does not run back
            continue
        drawn_ns = end_ns
        length_ms = (after.at_s - before.at_s) * 1e3
        blocked_ms = min(length_ms, max(0.0, (after.blocked_s - before.blocked_s) * 1e3))
        arguments = {"own_ms": round(length_ms - blocked_ms, 3), "waiting_for_peers_ms": round(blocked_ms, 3)}
        yield span_event(trace.rank, STEPS_TRACK, f"step {step}", "step", (begin_ns, end_ns), arguments)


def _spans(ops: Sequence[Op], begin_s: float, end_ns: int) -> list[_Span]:
    """Return when each call began and ended, in order of their beginning.

    A call that is entered or waiting lasts to the end of the picture; one that was issued and not waited for, until the next
    later call of its group that was seen to be done.
    """
    spans = []
    group_done: dict[str, int] = {}
    for op in reversed(ops):
        begin_ns = ns(op.at_s, begin_s)
        done_ns = ns(op.done_at_s, begin_s) if op.done_at_s is not None and math.isfinite(op.done_at_s) else None
        is_over = op.state in ("done", "failed")
        is_open = not is_over and not (op.state == "issued" and op.group in group_done)
        if done_ns is None:
            done_ns = begin_ns if is_over else end_ns if is_open else group_done[op.group]
        elif op.state == "done":
            group_done[op.group] = min(done_ns, group_done.get(op.group, done_ns))
        spans.append(_Span(op, begin_ns, max(begin_ns, done_ns), is_open))
    return sorted(spans, key=lambda span: (span.begin_ns, span.end_ns, span.op.group, span.op.seq, span.op.op))


def _lanes(spans: Sequence[_Span]) -> tuple[list[list[_Span]], int]:
    """Return the calls of a thread on as few tracks as possible without overlap, and how many found no room."""
    lanes: list[list[_Span]] = []
    left_out = 0
    for span in spans:
        free = next((lane for lane in lanes if lane[-1].end_ns <= span.begin_ns), None)
        if free is not None:
            free.append(span)
        elif len(lanes) < MOST_LANES:
            lanes.append([span])
        else:
            left_out += 1
    return lanes, left_out


def _op_events(rank: int, track: int, span: _Span, group: str, begin_s: float) -> Iterator[Event]:
    """Return the span of a call and, within it, of the wait for it."""
    op = span.op
    name = f"{op.op} #{op.seq} {group}".rstrip()
    name += " (failed)" if op.state == "failed" else " (unfinished)" if span.is_open else ""
    arguments: dict[str, object] = {"state": op.state, "group": op.group, "numel": op.numel, "dtype": op.dtype}
    arguments |= {"site": op.site} if op.site else {}
    arguments |= {"peer": op.peer} if op.peer >= 0 else {}
    yield span_event(rank, track, name, "communication", (span.begin_ns, span.end_ns), arguments)
    if op.waiting_at_s is not None and math.isfinite(op.waiting_at_s):
        waiting_ns = min(max(ns(op.waiting_at_s, begin_s), span.begin_ns), span.end_ns)
        yield span_event(rank, track, "waiting", "waiting", (waiting_ns, span.end_ns), {})
