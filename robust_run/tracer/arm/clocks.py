"""Writes into the ring how far torch's flight recorder says this worker is in each group: once a second, after a step.

`sitecustomize` loads this file by its path. Python's standard library only. The recorder counts what C++ starts, too (the buckets
of DistributedDataParallel, functional collectives). Only counts are asked for: two microseconds, no GPU, no lock that is held for
longer. NCCL's own recorder is asked from outside. The layout is that of `robust_run.tracer.files.clocks`; a test keeps the
two equal.
"""

from __future__ import annotations

from struct import Struct
from time import monotonic_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

EVERY_NS = 1_000_000_000
CLOCKS_AT, CLOCKS_BYTES = 1024, 3072
HEAD, ROW = Struct("=QQQ"), Struct("=qqqq")
ROWS = (CLOCKS_BYTES - HEAD.size) // ROW.size
NEVER = 1 << 63


def clocks_of(ring: Any, library: Any) -> Callable[[], None] | None:
    """Return what is to be called after each step; None where this torch has no such recorder."""
    dump = getattr(library, "_dump_fr_trace_json", None)
    return Clocks(ring, dump).look if dump is not None else None


class Clocks:
    """The recorder, and its place in the ring."""

    def __init__(self, ring: Any, dump: Callable[[bool, bool], bytes]) -> None:
        self.ring = ring
        self.dump = dump
        self.next_ns = 0
        self.changes = 0

    def look(self) -> None:
        """Write what the recorder says, if that was not done within the last second. Never raises; gives up at an error."""
        now_ns = monotonic_ns()
        if now_ns < self.next_ns:
            return
        self.next_ns = now_ns + EVERY_NS
        try:
            if self.ring.recording:
                self.write(self.rows(), now_ns)
        except Exception:  # whoever asks from outside still gets an answer
            self.next_ns = NEVER

    def rows(self) -> list[tuple[int, int, int, int]]:
        """Return number, enqueued, started and completed of each group, the newest last."""
        from json import loads  # which torch has imported

        known = loads(self.dump(False, False)).get("pg_status") or {}
        found = [
            (
                int(number),
                int(one["last_enqueued_collective"]),
                int(one["last_started_collective"]),
                int(one["last_completed_collective"]),
            )
            for number, one in known.items()
        ]
        return sorted(found)[-ROWS:]

    def write(self, rows: list[tuple[int, int, int, int]], now_ns: int) -> None:
        """Put rows into the ring; while the count of changes is odd, they are half written."""
        octets = self.ring.octets
        self.changes += 2
        HEAD.pack_into(octets, CLOCKS_AT, self.changes - 1, 0, 0)
        for position, row in enumerate(rows):
            ROW.pack_into(octets, CLOCKS_AT + HEAD.size + position * ROW.size, *row)
        HEAD.pack_into(octets, CLOCKS_AT, self.changes, now_ns, len(rows))
