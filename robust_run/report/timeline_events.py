"""Events of Chrome's trace-event format (Google): spans, and names of processes and threads. Pure."""

from __future__ import annotations

from collections.abc import Mapping

Event = dict[str, object]


def ns(at_s: float, begin_s: float) -> int:
    """Return a time in nanoseconds since the beginning."""
    return max(0, round((at_s - begin_s) * 1e9))


def span_event(
    rank: int, track: int, name: str, category: str, between_ns: tuple[int, int], arguments: Mapping[str, object]
) -> Event:
    """Return a span; its times are microseconds, to the nanosecond."""
    begin_ns, end_ns = between_ns
    return {
        "ph": "X",
        "pid": rank,
        "tid": track,
        "name": name,
        "cat": category,
        "ts": begin_ns / 1e3,
        "dur": (end_ns - begin_ns) / 1e3,
        "args": dict(arguments),
    }


def name_event(rank: int, track: int, kind: str, arguments: Mapping[str, object]) -> Event:
    """Return what names or orders a process or a thread."""
    return {"ph": "M", "pid": rank, "tid": track, "name": kind, "ts": 0, "args": dict(arguments)}
