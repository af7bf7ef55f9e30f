"""Since when nothing has moved inside a call to which all have come: only the network may still end that. Pure.

Healthy calls look the same for a while: a slow link, a GPU that has other work first, a switch that comes back. So this is no
proof; it is given as long as networks take to come back. It counts only where every member is seen, waits in the call itself and
does nothing else (no other thread runs Python: a hook of a backward pass may), and where the kernel or NCCL counts what moves:
bytes on connections for gloo, steps of proxies for NCCL. What moves unseen (memory between processes, NVLink, RDMA of other
libraries) is never taken for standing still.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from robust_run.tracer.stacks.normal import is_waiting, main_stacks
from robust_run.tracer.stacks.side_threads import none_may_act
from robust_run.tracer.types import BACKWARD, LIFECYCLE, RankSight, TraceVerdict
from robust_run.tracer.verdict.picture import Picture, WaitPlace
from robust_run.tracer.verdict.rules.stall import complete_at_s, may_move, members

#: How long a network is given to come back: TCP sends again after up to two minutes, NCCL's transports give up far sooner.
TCP_S, NCCL_S = 120.0, 60.0
_OPEN = frozenset({"entered", "issued", "waiting"})


def with_quiet(picture: Picture, verdict: TraceVerdict, places: Sequence[WaitPlace]) -> TraceVerdict:
    """Return a verdict on stalled calls with since when nothing moves in them, where that is known of all of them."""
    if not places or picture.scene.silent_nodes or len(picture.sights) < picture.scene.world_size:
        return verdict
    is_gloo = all(_backends(picture, here) == {"gloo"} for here in places)
    known = [_gloo_since_s(picture, here) if is_gloo else _nccl_since_s(picture, here) for here in places]
    since = [since_s for since_s in known if since_s is not None]
    if len(since) < len(places):
        return verdict
    patience_s = TCP_S if is_gloo else NCCL_S
    return msgspec.structs.replace(verdict, inside_since_s=max(since), inside_patience_s=patience_s)


def _backends(picture: Picture, here: WaitPlace) -> set[str]:
    """Return what moves the tensors of a call's group, as the ranks that wait in it have written down."""
    sights = [picture.sights[rank] for rank in here.waiters if rank in picture.sights]
    groups = [group for sight in sights if sight.trace is not None for group in sight.trace.groups]
    same = [group.backends for group in groups if (group.name, group.ranks) == (here.group.name, here.group.ranks)]
    return {part.partition(":")[2] for backends in same for part in backends.split(",")}


def _gloo_since_s(picture: Picture, here: WaitPlace) -> float | None:
    if here.missing or here.op in LIFECYCLE or here.inside or may_move(picture, here):
        return None
    sights = [picture.sights[rank] for rank in members(here)]
    quiet = [sight.quiet_s for sight in sights if sight.quiet_s is not None]
    if here.op == BACKWARD:
        begun_s = _under_way_since_s(sights, here.group.name)
    else:
        begun_s = complete_at_s(picture, here) if all(map(_waits, sights)) else None
    if (
        begun_s is None
        or len(quiet) < len(sights)
        or not all(map(_is_asleep, sights))
        or not all(map(none_may_act, sights))
    ):
        return None
    return max(begun_s, picture.scene.at_s - min(quiet))


def _under_way_since_s(sights: Sequence[RankSight], group: str) -> float | None:
    """Return since when all have been in the oldest collective of a backward pass that is not over; None if one never came to it.

    A member that has not begun it computes, or does something else: then it is no matter of the network.
    """
    calls = [{op.seq: op for op in sight.recorded if op.group == group} for sight in sights]
    oldest = min((seq for known in calls for seq, op in known.items() if op.state in _OPEN), default=None)
    if oldest is None or any(oldest not in known for known in calls):
        return None
    return max(known[oldest].at_s for known in calls)


def _nccl_since_s(picture: Picture, here: WaitPlace) -> float | None:
    """The same for NCCL: only where its proxies send over a network, and their counters can be read on all members."""
    if not here.inside or here.missing:
        return None
    times = []
    for sight in _sights(picture, members(here)):
        trace = sight.nccl if sight is not None else None
        if sight is None or trace is None or not trace.flows or trace.glance.event_s is None:
            return None
        times.append(trace.glance.event_s + sight.nccl_shift_s)
    return max([here.since_s, *times])


def _sights(picture: Picture, ranks: Iterable[int]) -> Iterable[RankSight | None]:
    return (picture.sights.get(rank) for rank in ranks)


def _waits(sight: RankSight) -> bool:
    """Whether the main thread is, in every sample, in a call that waits for peers."""
    stacks = main_stacks(sight)
    return bool(stacks) and all(map(is_waiting, stacks))


def _is_asleep(sight: RankSight) -> bool:
    return any(process.is_rank and process.state == "S" for process in sight.processes)
