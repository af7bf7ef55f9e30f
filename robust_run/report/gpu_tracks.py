"""What steps consisted of on the GPU, as one track of a timeline: forward, backward, the rest, and waiting for peers. Pure.

A GPU says how long things took and not when. It cannot have ended a step before the program had enqueued it, so consecutive steps
are put as early as that allows for all of them. What was waited is drawn at the end of its phase, passes of accumulated gradients
as one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from robust_run.report.timeline_events import Event, name_event, ns, span_event
from robust_run.tracer.types import RankTrace, StepPhases

#: Below those of NCCL (`nccl_tracks`), above those of the program's threads.
TRACK = 1 << 15
NEWEST_STEPS = 1000


def ends_of(phases: Sequence[StepPhases]) -> list[tuple[StepPhases, float]]:
    """Return steps with the times at which the GPU was done with them, in seconds of the host's clock, oldest first."""
    sound = [one for one in phases if math.isfinite(one.at_s + one.step_ms) and one.step_ms >= 0.0]
    found: list[tuple[StepPhases, float]] = []
    for run in _runs(sound[-NEWEST_STEPS:]):
        sums, length_s = [], 0.0
        for one in run:
            length_s += one.step_ms / 1e3
            sums.append(length_s)
        begin_s = max(one.at_s - end_s for one, end_s in zip(run, sums, strict=True))
        if found:
            begin_s = max(begin_s, found[-1][1])
        found += [(one, begin_s + end_s) for one, end_s in zip(run, sums, strict=True)]
    return found


def _runs(phases: Sequence[StepPhases]) -> Iterator[list[StepPhases]]:
    """Yield the steps that follow each other without a gap."""
    run: list[StepPhases] = []
    for one in phases:
        if run and one.step != run[-1].step + 1:
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def times(traces: Sequence[RankTrace]) -> Iterator[float]:
    """Yield when the first and the last of what is drawn begins or ends."""
    for trace in traces:
        placed = ends_of(trace.phases)
        if placed:
            yield placed[0][1] - placed[0][0].step_ms / 1e3
            yield placed[-1][1]


def events(trace: RankTrace, begin_s: float) -> Iterator[Event]:
    """Yield the track of one rank; nothing where its steps were not timed."""
    placed = ends_of(trace.phases)
    if placed:
        yield name_event(trace.rank, TRACK, "thread_name", {"name": "GPU: phases of steps"})
        yield name_event(trace.rank, TRACK, "thread_sort_index", {"sort_index": TRACK})
    for one, end_s in placed:
        at_ns = ns(end_s - one.step_ms / 1e3, begin_s)
        for name, own_ms, waiting_ms in (
            ("forward", one.forward_ms, one.forward_waiting_ms),
            ("backward", one.backward_ms, one.backward_waiting_ms),
            ("rest of the step", one.optimizer_ms, one.optimizer_waiting_ms),
        ):
            waits_ns = at_ns + int(own_ms * 1e6)
            end_ns = waits_ns + int(waiting_ms * 1e6)
            said = {"step": one.step, "own_ms": round(own_ms, 3), "waiting_for_peers_ms": round(waiting_ms, 3)}
            if end_ns > at_ns:
                yield span_event(trace.rank, TRACK, name, "gpu", (at_ns, end_ns), said)
            if end_ns > waits_ns:
                yield span_event(trace.rank, TRACK, "waiting for peers", "waiting", (waits_ns, end_ns), {})
            at_ns = end_ns
