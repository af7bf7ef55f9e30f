"""Who waits for what inside NCCL: from each flow that is stuck to the flow, the GPU or the host of another rank, up to causes.
Pure.

A graph whose vertices are flows, the work of a GPU on one channel, and hosts that have not made a call. What a vertex waits for
is decided from the counters of both ends of its flow (`states`) and from what the operation needs: in a ring the GPU forwards
what it receives, in a tree it needs its children on the way up and its parent on the way down, point-to-point calls need
nothing. So a rank whose GPU has nothing to send because nothing came is not taken for one whose GPU does not go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from robust_run.tracer.nccl.gpus import Gpus
from robust_run.tracer.nccl.states import (
    Cause,
    FlowVertex,
    GpuVertex,
    HostVertex,
    Reason,
    Vertex,
    has_room,
    is_under_way,
    is_v3_full,
    keeps_data,
    state_of,
)
from robust_run.tracer.nccl.teams import CommunicatorRank, Team, TeamFlow, has_nameless
from robust_run.tracer.nccl.types import FaultKind, NcclSight


class WaitGraph:
    """The waits of all ranks at one moment."""

    def __init__(self, sights: Sequence[NcclSight], teams: Mapping[int, Team]) -> None:
        self._teams = teams
        self._sights = {sight.rank: sight for sight in sights}
        self._pending: dict[int, list[TeamFlow]] = {}
        for team in teams.values():
            for seen in team.flows.values():
                if seen.pending and self._sights[seen.world].alive:
                    self._pending.setdefault(seen.world, []).append(seen)
        self._gpus = Gpus(teams)
        self.reasons: dict[Vertex, list[Reason]] = {}
        """Of each vertex that was come by, what it waits for."""
        self.moving: set[Vertex] = set()
        """Vertices at which something still happens."""
        self._explore()
        self.back: dict[Reason, list[Vertex]] = {}
        """Of each vertex and each cause, what waits for it."""
        for vertex, reasons in self.reasons.items():
            for reason in reasons:
                self.back.setdefault(reason, []).append(vertex)

    def starts(self) -> Iterable[TeamFlow]:
        """Return all flows that have something left to do."""
        for flows in self._pending.values():
            yield from flows

    def _explore(self) -> None:
        """Follow the waits from every stuck flow."""
        to_see: list[Vertex] = [FlowVertex(seen.team, seen.key) for seen in self.starts()]
        while to_see:
            vertex = to_see.pop()
            if vertex not in self.reasons:
                self.reasons[vertex] = self._reasons(vertex)
                to_see += [reason for reason in self.reasons[vertex] if not isinstance(reason, Cause)]

    def _reasons(self, vertex: Vertex) -> list[Reason]:
        if isinstance(vertex, HostVertex):
            return self._of_host(vertex)
        team = self._teams[vertex.team]
        if isinstance(vertex, GpuVertex):
            return self._of_gpu(team, vertex)
        seen = team.flows[vertex.key]
        if seen.moved:
            self.moving.add(vertex)
            return []
        if seen.proxy == "still":  # what it says of GPUs and of the network is old
            return [self._cause("proxy", seen)]
        return self._of_sender(team, seen) if seen.flow.direction == "send" else self._of_receiver(team, seen)

    # ---- flows ----
    def _of_sender(self, team: Team, seen: TeamFlow) -> list[Reason]:
        state, other = state_of(seen), team.other_end(seen)
        if state == "not_started":
            return [self._cause("proxy", seen)]
        if state == "gpu_not_ready" and not is_v3_full(seen, other) and not self._gpus.was_filled(team, seen):
            return [self._gpus.vertex_of(team, seen)]
        absent = self._absent(team, seen, other)
        if absent:
            return absent
        assert other is not None
        if has_room(other) and state != "not_delivered" and self._stands_still(seen.world):
            return [self._cause("proxy", seen)]
        kept = keeps_data(seen, other) and not has_room(other)
        if (state == "not_delivered" and not kept) or has_room(other) or not other.pending:
            return [self._link(seen, other)]
        return [FlowVertex(team.hash, other.key)]

    def _of_receiver(self, team: Team, seen: TeamFlow) -> list[Reason]:
        state, other = state_of(seen), team.other_end(seen)
        if state == "not_started":
            return [self._cause("proxy", seen)]
        if state == "not_flushed":
            return [self._cause("network", seen)]
        if state == "gpu_not_ready":
            return [self._gpus.vertex_of(team, seen)]
        absent = self._absent(team, seen, other, delivered=other is not None and other.flow.done > seen.flow.gpu_ready)
        if absent:
            return absent
        assert other is not None
        if is_under_way(other, seen):
            if keeps_data(other, seen) or seen.proxy == "runs":  # it may be anywhere between the two
                return [self._link(other, seen)]
            unsure = not other.network and not seen.network
            return [self._cause("proxy", seen)._replace(unsure=unsure)]  # it is here, and this proxy does not see it
        return [FlowVertex(team.hash, other.key)] if other.pending else [self._link(other, seen)]

    def _absent(self, team: Team, seen: TeamFlow, other: TeamFlow | None, delivered: bool = False) -> list[Reason]:
        """Return what follows from the peer's absence: it is dead, not seen, or has not made the call. Empty: it is there."""
        peer = seen.flow.peer
        member = team.members.get(peer)
        if member is None:
            nameless = self._nameless(team)
            return [HostVertex(world, team.hash) for world in nameless] if nameless else [self._unseen(team, seen)]
        world = member.sight.rank
        if not member.sight.alive:
            return [self._cause("dead", seen, (world,), peer)]
        if delivered or (other is not None and other.pending):
            return []
        if self._has_not_begun(member, seen, other):
            assert other is not None
            return [self._cause("proxy", other)]
        if other is None and member.sight.trace is not None and member.sight.trace.left_out:
            return [self._cause("unseen", seen, (world,), peer)]  # its end may be there
        if other is None or other.p2p or seen.p2p or not seen.func:
            return [HostVertex(world, team.hash)]
        behind = member.latest.get(seen.func, -1) < seen.flow.op_seq
        return [HostVertex(world, team.hash)] if behind or other.func != seen.func else []

    def _has_not_begun(self, member: CommunicatorRank, seen: TeamFlow, other: TeamFlow | None) -> bool:
        """Tell whether a member has made the call and its proxy thread has not taken it up: that takes microseconds."""
        if other is None or other.p2p or seen.p2p or not seen.func or other.func != seen.func:
            return False
        return other.flow.op_seq < seen.flow.op_seq <= member.latest.get(seen.func, -1)

    def _nameless(self, team: Team) -> list[int]:
        """Return the ranks that may be a missing member: with v3 a communicator has no name until its first call."""
        known = {member.sight.rank for member in team.members.values()}
        return [
            sight.rank
            for sight in self._sights.values()
            if sight.alive and sight.rank not in known and sight.trace is not None and has_nameless(sight.trace)
        ]

    def _unseen(self, team: Team, seen: TeamFlow) -> Cause:
        """A member that nothing is known of. Where one rank has no trace and one member is missing, the two are the same."""
        blind = [sight for sight in self._sights.values() if sight.trace is None]
        if len(blind) == 1 and team.size - len(team.members) == 1:
            kind: FaultKind = "unseen" if blind[0].alive else "dead"
            return self._cause(kind, seen, (blind[0].rank,), seen.flow.peer)
        return self._cause("unseen", seen, (), seen.flow.peer)

    def _cause(
        self, kind: FaultKind, seen: TeamFlow, worlds: tuple[int, ...] | None = None, member: int | None = None
    ) -> Cause:
        """A cause at the rank of a flow, or at others."""
        return Cause(
            kind=kind,
            state=state_of(seen),
            worlds=(seen.world,) if worlds is None else worlds,
            team=seen.team,
            member=seen.flow.rank if member is None else member,
            flow=seen.key,
        )

    def _link(self, sender: TeamFlow, receiver: TeamFlow) -> Cause:
        """A cause between two ranks."""
        link = (sender.world, receiver.world)
        cause = self._cause("network", sender, link)._replace(link=link)
        return cause._replace(state="not_transmitted") if cause.state == "gpu_not_ready" else cause  # of v3

    # ---- hosts ----
    def _of_host(self, vertex: HostVertex) -> list[Reason]:
        """A rank that did not make a call: what it waits for elsewhere keeps it, else it is late."""
        sight, pending = self._sights[vertex.world], self._pending.get(vertex.world, ())
        assert sight.trace is not None
        if sight.before is not None and sight.before.glance.ops != sight.trace.glance.ops:
            self.moving.add(vertex)
            return []
        if pending:
            return [FlowVertex(seen.team, seen.key) for seen in _first_of_each_team(pending)]
        team = self._teams[vertex.team]
        member = next((number for number, of in team.members.items() if of.sight.rank == vertex.world), -1)
        return [Cause("late", "idle", (vertex.world,), vertex.team, member, None)]

    # ---- GPUs ----
    def _of_gpu(self, team: Team, vertex: GpuVertex) -> list[Reason]:
        """Return what keeps a GPU: receivers that nothing came to, senders that have no room; nothing of that: itself."""
        block = self._gpus.block_of(team, vertex)
        mine = _of_oldest([seen for seen in self._gpus.flows_of(team, vertex, block) if seen.pending])
        if any(seen.moved for seen in mine):
            self.moving.add(vertex)
            return []
        lead = min(mine, key=lambda seen: (not self._gpus.starved(team, seen), seen.flow.channel))
        absent = [
            HostVertex(team.members[member].sight.rank, team.hash)
            for member in self._gpus.not_called(team, lead, block) or self._gpus.not_there(team, lead)
        ]
        if absent:
            return list(absent)
        not_begun = [
            seen for seen in mine if self._gpus.starved(team, seen) and seen.flow.gpu_ready <= seen.flow.op_base
        ]
        own = [seen for seen in not_begun if self._gpus.sends_first(team, seen) and not vertex.half]
        own += [seen for seen in mine if self._gpus.keeps_data(team, seen, mine) and not vertex.half]
        waits: list[Reason] = []
        if not own:
            waits = [FlowVertex(team.hash, seen.key) for seen in mine if not self._gpus.can_go_on(team, seen)]
        earlier = [] if waits else self._earlier(lead)
        if waits or earlier:
            return waits or [FlowVertex(seen.team, seen.key) for seen in earlier]
        still = [seen for seen in mine if seen.proxy == "still"]
        blind = still or [seen for seen in mine if self._gpus.overlooked(team, seen) and seen.proxy != "runs"]
        if blind:
            unsure = blind[0].proxy != "still" and not blind[0].network
            return [self._cause("proxy", blind[0])._replace(unsure=unsure)]
        worlds = [team.members[member].sight.rank for member in block]
        others = [world for world in worlds if world != lead.world]
        untold = lead.api == 3 and lead.flow.direction == "send"
        return [self._cause("gpu", lead, (lead.world, *others))._replace(untold=untold)]

    def _stands_still(self, world: int) -> bool:
        """Tell whether a rank's proxy thread sees nothing of what has come, in any of its flows."""
        pending = self._pending.get(world, ())
        return any(
            seen.proxy == "still" or (seen.proxy != "runs" and self._gpus.overlooked(self._teams[seen.team], seen))
            for seen in pending
        )

    def _earlier(self, lead: TeamFlow) -> list[TeamFlow]:
        """Return what is left of earlier collectives of the same rank, if the GPU has not begun this one: it may be in those."""
        flow = lead.flow
        at = flow.gpu_ready if flow.direction == "send" else flow.done
        if at > flow.op_base or flow.op is None:
            return []
        mine = self._pending.get(lead.world, ())
        return [seen for seen in mine if seen.flow.op is not None and seen.flow.op < flow.op and not seen.p2p]


def _first_of_each_team(pending: Sequence[TeamFlow]) -> list[TeamFlow]:
    """Return, of each communicator, the flows of its oldest operation that is not over."""
    first: dict[int, int] = {}
    for seen in pending:
        number = -1 if seen.flow.op is None else seen.flow.op
        first[seen.team] = min(number, first.get(seen.team, number))
    return [seen for seen in pending if (-1 if seen.flow.op is None else seen.flow.op) == first[seen.team]]


def _of_oldest(pending: Sequence[TeamFlow]) -> list[TeamFlow]:
    """Return the flows that are in the oldest operation of their rank: a GPU does one after the other, flows may be ahead."""
    oldest: dict[int, int] = {}
    for seen in pending:
        number = -1 if seen.flow.op is None else seen.flow.op
        oldest[seen.world] = min(number, oldest.get(seen.world, number))
    return [seen for seen in pending if (-1 if seen.flow.op is None else seen.flow.op) == oldest[seen.world]]


def reached(graph: WaitGraph, causes: Iterable[Cause], found: Iterable[Vertex] = ()) -> set[Vertex]:
    """Return the vertices from which one of the causes is come to, or one of `found`."""
    seen: set[Vertex] = {*found, *(vertex for cause in causes for vertex in graph.back.get(cause, ()))}
    to_see = list(seen)
    while to_see:
        for vertex in graph.back.get(to_see.pop(), ()):
            if vertex not in seen:
                seen.add(vertex)
                to_see.append(vertex)
    return seen
