"""How far a rank is in its groups as torch counts, in the unused part of its ring's header: what the worker writes after steps.

    head   changes(Q), odd while it is being written · time(Q), nanoseconds of the monotonic clock · rows(Q)
    rows   group's number, newest enqueued, started, completed (q each)

Nothing here trusts the writer (`robust_run/tracer/arm/clocks.py`).
"""

from __future__ import annotations

import struct

from robust_run.tracer.flight.types import GroupClock

CLOCKS_AT, CLOCKS_BYTES = 1024, 3072
HEAD, ROW = struct.Struct("=QQQ"), struct.Struct("=qqqq")
ROWS = (CLOCKS_BYTES - HEAD.size) // ROW.size


def parse(content: bytes) -> tuple[float, tuple[GroupClock, ...]] | None:
    """Return when was looked, in seconds, and what was seen; None: never, or it is being written. Never raises."""
    if len(content) != CLOCKS_BYTES:
        return None
    changes, at_ns, rows = HEAD.unpack_from(content)
    if not changes or changes & 1 or not at_ns or rows > ROWS:
        return None
    found = []
    for position in range(rows):
        pg, enqueued, started, completed = ROW.unpack_from(content, HEAD.size + position * ROW.size)
        found.append(GroupClock(pg=pg, enqueued=enqueued, started=started, completed=completed))
    return at_ns / 1e9, tuple(found)
