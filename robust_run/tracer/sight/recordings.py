"""What ranks recorded themselves, read without looking at their processes: the ring, and who writes it."""

from __future__ import annotations

import os

import msgspec

from robust_run.tracer.sight.targets import Target
from robust_run.tracer.types import RankSight, RankTrace

RING_SUFFIX = ".ring"


def read_ring(target: Target, ops: int) -> RankTrace | None:
    """Return what the target's ring holds, None if it has none or it is damaged."""
    from robust_run.tracer.files.ring import read

    trace = read(f"{target.steps_file}{RING_SUFFIX}", ops) if target.steps_file else None
    return trace if trace is not None and trace.pid else None  # no process records in it (yet)


def recording_pid(target: Target) -> int:
    """Return the pid of the process that writes the target's ring, 0 if there is none."""
    from robust_run.tracer.files.ring import RingReader

    if not target.steps_file:
        return 0
    reader = RingReader(f"{target.steps_file}{RING_SUFFIX}")
    header = reader.header()
    reader.close()
    return header.pid if header is not None else 0


def is_another(recording: int, started: int) -> bool:
    """Whether the process that records is not the one that was started, and is there."""
    return recording not in (0, started) and os.path.isdir(f"/proc/{recording}")


def sight_without_looking(target: Target, trace: RankTrace | None) -> RankSight:
    """Return a sight of what is known without looking."""
    # A wrapper that has ended may have left the program running.
    if target.exit_code is not None and trace is not None and is_another(trace.pid, target.pid):
        trace = msgspec.structs.replace(trace, doubts=(*trace.doubts, f"has a process {trace.pid} that goes on"))
    return RankSight(
        rank=target.rank,
        node=target.node,
        exit_code=target.exit_code,
        ended_at_s=target.ended_at_s,
        finding=target.finding,
        had_ended=target.had_ended,
        trace=trace,
    )
