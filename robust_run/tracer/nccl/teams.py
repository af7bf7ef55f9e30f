"""Communicators matched across ranks: which rank of the world is which member, and which flow at one end belongs to which at
the other.

Pure. A communicator is known by its hash, the same on all members; where a rank made several with the same hash, the newest
that is in use counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from robust_run.tracer.nccl.types import (
    Algorithm,
    Communicator,
    Direction,
    Flow,
    NcclOp,
    NcclSight,
    NcclTrace,
    Network,
    Thread,
)

#: Of a flow within a team: member, channel, peer, direction.
FlowKey = tuple[int, int, int, Direction]


class CommunicatorRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank in one communicator."""

    member: int
    """Rank of the communicator."""
    sight: NcclSight
    communicator: Communicator
    latest: Mapping[str, int]
    """Of each collective function the newest `seq` that was called."""


class TeamFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A flow, with what is needed to judge it."""

    team: int
    """Hash of the communicator."""
    world: int
    node: str
    flow: Flow
    func: str
    """Of the newest operation in it; empty: unknown."""
    p2p: bool
    algorithm: Algorithm
    """Of that operation."""
    pending: bool
    """Something of what it has to do is left to do."""
    begun: bool
    """The operation in it is the one that is pending; else the one before, and the next has not begun."""
    moved: bool
    """It did something since the moment before."""
    api: int
    network: Network = ""
    """Of the rank whose flow it is."""
    proxy: Thread = ""
    """What the thread that works for it does."""

    @property
    def key(self) -> FlowKey:
        """Where it is in its team."""
        return self.flow.rank, self.flow.channel, self.flow.peer, self.flow.direction


class Team(msgspec.Struct, frozen=True, kw_only=True):
    """A communicator with all its members that are known."""

    hash: int
    name: str
    size: int
    """Members in all, as far as is known."""
    members: Mapping[int, CommunicatorRank]
    flows: Mapping[FlowKey, TeamFlow]

    def world_of(self, member: int) -> int | None:
        """Return the rank of the world; None: no sight is of that member."""
        found = self.members.get(member)
        return None if found is None else found.sight.rank

    def other_end(self, of: TeamFlow) -> TeamFlow | None:
        """Return the flow at the peer that this one is connected to, if it was seen."""
        rank, channel, peer, direction = of.key
        return self.flows.get((peer, channel, rank, "recv" if direction == "send" else "send"))


def is_pending(flow: Flow, op: NcclOp | None) -> tuple[bool, bool]:
    """Return whether something is left to do in a flow, and whether the operation that it names has begun.

    Counters are of all operations so far, and `steps` stays ahead for ever where one ended early: so what counts is the operation
    that began last, and where that one has ended, whether another is open.
    """
    if flow.open_ops == 0:
        return False, True
    if flow.done < flow.op_base + flow.op_steps:
        return True, True
    ended = op is not None and op.opened > 0 and op.closed >= op.opened
    if ended and flow.posted == flow.done and flow.steps > flow.done:
        return True, False
    return False, True


def teams_of(sights: Iterable[NcclSight]) -> dict[int, Team]:
    """Return the communicators in use, by their hash."""
    members: dict[int, dict[int, CommunicatorRank]] = {}
    flows: dict[int, dict[FlowKey, TeamFlow]] = {}
    for sight in sights:
        if sight.trace is not None:
            for communicator in _in_use(sight.trace):
                _add(members, flows, sight, communicator)
    return {key: _team(key, found, flows.get(key, {})) for key, found in members.items()}


def has_nameless(trace: NcclTrace) -> bool:
    """Tell whether a rank has a communicator in use that nothing is known of yet (interface v3, before its first call)."""
    return any(not communicator.hash and communicator.closed_s is None for communicator in trace.communicators)


def _in_use(trace: NcclTrace) -> Iterable[Communicator]:
    """Return the communicators of a rank that are not closed, one of each hash."""
    newest: dict[int, Communicator] = {}
    for communicator in trace.communicators:
        if communicator.hash and communicator.closed_s is None:
            newest[communicator.hash] = communicator
    return newest.values()


def _add(
    members: dict[int, dict[int, CommunicatorRank]],
    flows: dict[int, dict[FlowKey, TeamFlow]],
    sight: NcclSight,
    communicator: Communicator,
) -> None:
    """Add what one rank says of one communicator."""
    trace = sight.trace
    assert trace is not None
    own = [flow for flow in trace.flows if flow.comm == communicator.serial and not flow.foreign]
    member = communicator.rank if communicator.rank is not None else (own[0].rank if own else None)
    if member is None:
        return
    own = [flow for flow in own if flow.rank == member]
    latest: dict[str, int] = {}
    for op in trace.ops:
        if op.comm == communicator.serial and op.kind == "collective":
            latest[op.func] = max(op.seq, latest.get(op.func, -1))
    by_member = members.setdefault(communicator.hash, {})
    by_member[member] = CommunicatorRank(member=member, sight=sight, communicator=communicator, latest=latest)
    numbered: dict[int | None, NcclOp] = {op.number: op for op in trace.ops}
    earlier = {} if sight.before is None else {_place(flow): flow for flow in sight.before.flows}
    of_team = flows.setdefault(communicator.hash, {})
    for flow in own:
        newest = numbered.get(flow.op)
        pending, begun = is_pending(flow, newest)
        found = TeamFlow(
            team=communicator.hash,
            world=sight.rank,
            node=sight.node,
            flow=flow,
            func="" if newest is None else newest.func,
            p2p=newest is not None and newest.kind == "p2p",
            algorithm="" if newest is None else newest.algorithm,
            pending=pending,
            begun=begun,
            moved=sight.before is not None and _progress(earlier.get(_place(flow))) != _progress(flow),
            api=trace.glance.api,
            network=trace.network,
            proxy=communicator.proxy,
        )
        of_team[found.key] = found


def _team(key: int, members: dict[int, CommunicatorRank], flows: dict[FlowKey, TeamFlow]) -> Team:
    names = sorted({member.communicator.name for member in members.values() if member.communicator.name})
    told = [member.communicator.ranks for member in members.values() if member.communicator.ranks is not None]
    seen = 1 + max([*members, *(flow[2] for flow in flows)], default=0)
    return Team(
        hash=key,
        name=names[0] if names else f"communicator {key:x}",
        size=max(told) if told else seen,
        members=members,
        flows=flows,
    )


def _place(flow: Flow) -> tuple[int, int, int, str]:
    return flow.comm, flow.channel, flow.peer, flow.direction


def _progress(flow: Flow | None) -> tuple[int, ...]:
    """Return what changes while a flow does something."""
    if flow is None:
        return ()
    return flow.posted, flow.gpu_ready, flow.transmitted, flow.done, flow.open_ops, flow.steps
