"""What of a rank's trace travels to who judges it: enough to find who keeps the others waiting, and no more. Pure.

Ten thousand ranks report to one controller. A trace may hold 16,384 flows and 8,192 operations, of which a stall concerns few:
the flows in flight, above all those that have something left to do and did not move. Rings and trees are judged by channel, so
flows are taken by whole channels, and all ranks take the same ones first. What is idle matters only where its other end is in
flight. Of the earlier reading only what has changed since is kept: in a stall that is nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from robust_run.tracer.nccl.teams import is_pending
from robust_run.tracer.nccl.types import Communicator, Flow, NcclOp, NcclTrace

__all__ = ["End", "counterparts", "cut", "restored"]

#: Communicators that are told of, at the most.
COMMUNICATORS = 64
#: Flows that a collective has on one channel: to and from the parent and two children of a tree.
LANE = 6

#: One end of a connection: hash of the communicator, member, channel, peer, direction.
End = tuple[int, int, int, int, str]
_Key = tuple[int, bool, int, int, int, str]
_OPPOSITE = {"send": "recv", "recv": "send"}


def counterparts(traces: Iterable[NcclTrace | None]) -> frozenset[End]:
    """Return the other ends of all flows in flight: of ranks that are seen together, both ends are kept."""
    found = set()
    for trace in traces:
        if trace is not None:
            hashes = _hashes(trace)
            for flow in trace.flows:
                if flow.open_ops and not flow.foreign:
                    of = hashes.get(flow.comm, 0)
                    found.add((of, flow.peer, flow.channel, flow.rank, _OPPOSITE[flow.direction]))
    return frozenset(found)


def cut(
    now: NcclTrace, before: NcclTrace | None, *, flows: int, ops: int, wanted: frozenset[End] = frozenset()
) -> tuple[NcclTrace, NcclTrace | None]:
    """Return two readings of one trace with so many flows and operations at the most. `wanted`: see `counterparts`.

    The earlier one holds only those flows that differ, as they were (all zero: they did not exist); `restored` undoes that.
    """
    then = {_key(flow): flow for flow in before.flows} if before is not None else None
    numbered = {op.number: op for op in now.ops}
    kept = _flows(now, then, numbered, flows, wanted)
    chosen = set(map(_key, kept))
    left_out = sum(flow.open_ops > 0 and not flow.foreign and _key(flow) not in chosen for flow in now.flows)
    kept_ops = _ops(now, kept, ops)
    part = msgspec.structs.replace(
        now,
        flows=kept,
        ops=kept_ops,
        communicators=_communicators(now, kept, kept_ops),
        left_out=now.left_out + left_out,
    )
    if before is None or then is None:
        return part, None
    changed = tuple(then.get(_key(flow)) or _blank(flow) for flow in kept if then.get(_key(flow)) != flow)
    return part, msgspec.structs.replace(before, flows=changed, ops=(), communicators=())


def restored(now: NcclTrace, before: NcclTrace | None) -> NcclTrace | None:
    """Return the earlier reading with all flows of the later one: those that it does not name were the same."""
    if before is None:
        return None
    then = {_key(flow): flow for flow in before.flows}
    return msgspec.structs.replace(before, flows=tuple(then.get(_key(flow), flow) for flow in now.flows))


def _hashes(trace: NcclTrace) -> dict[int, int]:
    return {communicator.serial: communicator.hash for communicator in trace.communicators}


def _key(flow: Flow) -> _Key:
    return flow.comm, flow.foreign, flow.rank, flow.channel, flow.peer, flow.direction


def _blank(flow: Flow) -> Flow:
    """Return a flow before its first use."""
    return msgspec.structs.replace(flow, posted=0, gpu_ready=0, transmitted=0, done=0, steps=0, open_ops=0)


def _flows(
    now: NcclTrace,
    then: Mapping[_Key, Flow] | None,
    numbered: Mapping[int, NcclOp],
    room: int,
    wanted: frozenset[End],
) -> tuple[Flow, ...]:
    """Return the flows that matter most, in the order in which they were."""
    hashes = _hashes(now)
    lanes: dict[tuple[int, int], list[Flow]] = {}
    for flow in now.flows:
        if flow.open_ops and not flow.foreign:
            lanes.setdefault((flow.comm, flow.channel), []).append(flow)
    most = max(1, room // LANE)  # the same on all ranks: in a tree some have more flows on a channel than others
    if len(now.flows) <= room and len(lanes) <= most:
        return now.flows
    urgent = {_key(flow): _urgency(flow, then, numbered) for lane in lanes.values() for flow in lane}
    chosen: list[Flow] = []
    for lane in sorted(lanes, key=lambda one: (_most_urgent(lanes[one], urgent), one[1], hashes.get(one[0], 0)))[:most]:
        ordered = sorted(lanes[lane], key=lambda flow: (urgent[_key(flow)], flow.peer, flow.direction))
        if len(ordered) > room - len(chosen):  # of calls between two ranks, which are judged one by one
            ordered = [flow for flow in ordered if urgent[_key(flow)] == 0] or ordered
        chosen += ordered[: room - len(chosen)]
    taken = set(map(_key, chosen))
    idle = [flow for flow in now.flows if not flow.open_ops and not flow.foreign]
    idle.sort(key=lambda flow: (not _is_wanted(flow, hashes, wanted), -(flow.op_started_s or 0.0)))
    taken.update(map(_key, idle[: room - len(chosen)]))
    return tuple(flow for flow in now.flows if _key(flow) in taken)


def _urgency(flow: Flow, then: Mapping[_Key, Flow] | None, numbered: Mapping[int, NcclOp]) -> int:
    """Return 0 for a flow that has something to do and does nothing, 1 for one that does, 2 for one that has done its part."""
    pending, _ = is_pending(flow, None if flow.op is None else numbered.get(flow.op))
    before = None if then is None else then.get(_key(flow))
    still = then is None or (before is not None and _rungs(before) == _rungs(flow))
    return 0 if pending and still else 1 if pending else 2


def _rungs(flow: Flow) -> tuple[int, ...]:
    return flow.posted, flow.gpu_ready, flow.transmitted, flow.done, flow.open_ops, flow.steps


def _most_urgent(lane: Iterable[Flow], urgent: Mapping[_Key, int]) -> int:
    return min(urgent[_key(flow)] for flow in lane)


def _is_wanted(flow: Flow, hashes: Mapping[int, int], wanted: frozenset[End]) -> bool:
    return (hashes.get(flow.comm, 0), flow.rank, flow.channel, flow.peer, flow.direction) in wanted


def _ops(now: NcclTrace, flows: Iterable[Flow], room: int) -> tuple[NcclOp, ...]:
    """Return the newest call of each function (it tells who has called what), those that flows are in, and the newest."""
    if len(now.ops) <= room:
        return now.ops
    in_flight = {flow.op for flow in flows if flow.open_ops}
    newest: dict[tuple[int, str], int] = {}
    for op in now.ops:
        if op.kind == "collective":
            newest[op.comm, op.func] = op.number
    last = set(newest.values())
    rest = sorted(now.ops, key=lambda op: (op.number not in last, op.number not in in_flight, -op.number))
    chosen = {op.number for op in rest[:room]}
    return tuple(op for op in now.ops if op.number in chosen)


def _communicators(now: NcclTrace, flows: Iterable[Flow], ops: Iterable[NcclOp]) -> tuple[Communicator, ...]:
    """Return the communicators, those in flight first, then those in use, then those that operations are of."""
    busy = {flow.comm for flow in flows if flow.open_ops and not flow.foreign}
    used = {op.comm for op in ops}
    channels: dict[int, int] = {}
    for flow in now.flows:
        if not flow.foreign:
            channels[flow.comm] = max(channels.get(flow.comm, 0), flow.channel + 1)
    order = sorted(
        now.communicators,
        key=lambda one: (one.serial not in busy, one.closed_s is not None, one.serial not in used, one.serial),
    )
    chosen = {one.serial for one in order[:COMMUNICATORS]}
    return tuple(
        msgspec.structs.replace(one, channels=max(one.channels, channels.get(one.serial, 0)))
        for one in now.communicators
        if one.serial in chosen
    )
