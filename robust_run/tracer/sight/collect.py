"""Looks at all ranks of a node a few times within a second and returns what was seen.

All processes are sampled at the same moments, so that what one rank does can be compared with what another does. CPU and
I/O are those between the first and the last sample, without what answering us took.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import msgspec

from robust_run.tracer.sight.inside import FLOWS, Readings, TracesOfRanks
from robust_run.tracer.sight.links import StuckConnections
from robust_run.tracer.sight.recordings import read_ring, sight_without_looking
from robust_run.tracer.sight.spy import Spy, find_spy
from robust_run.tracer.sight.target_view import SightWorld, TargetView
from robust_run.tracer.sight.targets import Target
from robust_run.tracer.sight.wake.sockets import quiet_times_s
from robust_run.tracer.stacks.activity import LOOK_S
from robust_run.tracer.types import RankSight
from robust_run.tracer.wake.types import WakeReading

SAMPLES = 3
GAP_S = LOOK_S / (SAMPLES - 1)
#: At least so long between two samples nothing is asked of the processes: what they do by themselves is seen then.
CALM_S = 0.1
OPS = 64
BY_SIGNAL = "ROBUST_TRACE_SIGNAL"
"""Set to 1: stacks are asked for by signal where py-spy tells nothing."""


async def collect(
    targets: Sequence[Target],
    *,
    samples: int = SAMPLES,
    gap_s: float = GAP_S,
    ops: int = OPS,
    flows: int = FLOWS,
    world: SightWorld | None = None,
) -> tuple[RankSight, ...]:
    """Return what is seen of the targets, in their order, after (samples - 1) * gap_s or a little more. Never raises.

    `ops`: so many of the newest calls of each rank; `flows`: so many of NCCL's connections. Not to be called again for the same
    targets before it has returned.
    """
    world = world or SightWorld(spy=find_spy(), by_signal=os.environ.get(BY_SIGNAL) == "1")
    spy = Spy(world.spy)
    views = [TargetView(target, ops, world, spy) for target in targets]
    links, inside = StuckConnections(world.root), TracesOfRanks(targets, world.root)
    began_s = world.monotonic_s()
    last = max(1, samples) - 1
    for number in range(last + 1):
        await world.sleep(max(CALM_S if number else 0.0, began_s + number * gap_s - world.monotonic_s()))
        for view in views:
            view.measure()
        if number in (0, last):
            links.sample(pid for view in views for pid in view.pids)
            inside.sample()
        await asyncio.gather(*(view.sample() for view in views))
        if number < last:
            for view in views:
                view.rest()
    quiet_s = quiet_times_s((view.rank_pid for view in views), world.root)
    wakes = await asyncio.gather(*(view.ask_kernel() for view in views))
    known = await asyncio.gather(*(view.ask_recorder() for view in views))
    return tuple(
        _with_nccl(
            _with_wake(view.sight(entries, links), kernel, quiet_s.get(view.rank_pid)),
            readings,
        )
        for view, entries, kernel, readings in zip(views, known, wakes, inside.found(flows, ops), strict=True)
    )


def _with_wake(sight: RankSight, readings: tuple[WakeReading, ...], quiet_s: float | None) -> RankSight:
    return msgspec.structs.replace(
        sight, wake=readings[-1] if readings else None, wake_before=readings[:-1], quiet_s=quiet_s
    )


def dead_sights(targets: Sequence[Target], ops: int = OPS, flows: int = FLOWS) -> tuple[RankSight, ...]:
    """Return what is left of targets whose attempt has ended: their rings, and what NCCL was doing."""
    inside = TracesOfRanks(targets)
    inside.sample()
    return tuple(
        _with_nccl(sight_without_looking(target, read_ring(target, ops)), readings)
        for target, readings in zip(targets, inside.found(flows, ops), strict=True)
    )


def _with_nccl(sight: RankSight, readings: Readings) -> RankSight:
    now, before = readings
    return sight if now is None else msgspec.structs.replace(sight, nccl=now, nccl_before=before)
