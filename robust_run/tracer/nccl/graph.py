"""Who waits for what inside NCCL: from each flow that is stuck to the flow, the GPU or the host of another rank, up to causes.
Pure.

A graph whose vertices are flows, the work of a GPU on one channel, and hosts that have not made a call. What a vertex waits for
is decided from the counters of both ends of its flow (`states`) and from what the operation needs: in a ring the GPU forwards
what it receives, in a tree it needs its children on the way up and its parent on the way down, point-to-point calls need
nothing. So a rank whose GPU has nothing to send because nothing came is not taken for one whose GPU does not go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from robust_run.tracer.nccl.states import has_room, is_v3_full, state_of
from robust_run.tracer.nccl.teams import FlowKey, Team, TeamFlow, has_nameless
from robust_run.tracer.nccl.trees import parents_for
from robust_run.tracer.nccl.types import FaultKind, Flow, FlowState, NcclSight

#: Collectives in whose ring every member sends something of its own first.
SENDS_FIRST = frozenset({"AllReduce", "AllGather", "ReduceScatter"})
#: Half of what a GPU does on a channel.
UP, DOWN, BOTH = "up", "down", ""


class FlowVertex(NamedTuple):
    """A flow that is stuck."""

    team: int
    key: FlowKey


class GpuVertex(NamedTuple):
    """What the GPU of a member does for one operation on one channel."""

    team: int
    member: int
    channel: int
    half: str


class HostVertex(NamedTuple):
    """A rank that has not made a call which others wait for."""

    world: int
    team: int


class Cause(NamedTuple):
    """Where waiting ends."""

    kind: FaultKind
    state: FlowState
    worlds: tuple[int, ...]
    """At fault; more than one where they cannot be told apart. Empty: a member that no sight is of."""
    team: int
    member: int
    flow: FlowKey | None
    """The flow in which it was seen."""
    link: tuple[int, int] | None = None
    """Sender and receiver (of the world) between which it is."""
    untold: bool = False
    """Of a GPU with interface v3: it may be the network that does not take what the GPU has filled."""


Vertex = FlowVertex | GpuVertex | HostVertex
Reason = Vertex | Cause


class Graph:
    """The waits of all ranks at one moment."""

    def __init__(self, sights: Sequence[NcclSight], teams: Mapping[int, Team]) -> None:
        self._teams = teams
        self._sights = {sight.rank: sight for sight in sights}
        self._pending: dict[int, list[TeamFlow]] = {}
        for team in teams.values():
            for seen in team.flows.values():
                if seen.pending and self._sights[seen.world].alive:
                    self._pending.setdefault(seen.world, []).append(seen)
        self._lanes: dict[tuple[int, int, int], list[TeamFlow]] = {}
        for seen in (seen for team in teams.values() for seen in team.flows.values()):
            self._lanes.setdefault((seen.team, seen.flow.channel, seen.flow.rank), []).append(seen)
        self._halves: dict[tuple[int, int], list[int | None] | None] = {}
        self.reasons: dict[Vertex, list[Reason]] = {}
        """Of each vertex that was come by, what it waits for."""
        self.moving: set[Vertex] = set()
        """Vertices at which something still happens."""
        self._explore()

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
        return self._of_sender(team, seen) if seen.flow.direction == "send" else self._of_receiver(team, seen)

    # ---- flows ----
    def _of_sender(self, team: Team, seen: TeamFlow) -> list[Reason]:
        state, other = state_of(seen), team.other_end(seen)
        if state == "not_started":
            return [self._cause("proxy", seen)]
        if state == "gpu_not_ready" and not is_v3_full(seen, other) and not self._was_filled(team, seen):
            return [self._gpu(team, seen)]
        absent = self._absent(team, seen, other)
        if absent:
            return absent
        assert other is not None
        if has_room(other) and state != "not_delivered" and self._stands_still(seen.world):
            return [self._cause("proxy", seen)]
        if state == "not_delivered" or has_room(other) or not other.pending:
            return [self._link(seen, other)]
        return [FlowVertex(team.hash, other.key)]

    def _of_receiver(self, team: Team, seen: TeamFlow) -> list[Reason]:
        state, other = state_of(seen), team.other_end(seen)
        if state == "not_started":
            return [self._cause("proxy", seen)]
        if state == "not_flushed":
            return [self._cause("network", seen)]
        if state == "gpu_not_ready":
            return [self._gpu(team, seen)]
        absent = self._absent(team, seen, other, delivered=other is not None and other.flow.done > seen.flow.gpu_ready)
        if absent:
            return absent
        assert other is not None
        if (
            other.flow.done > seen.flow.gpu_ready
        ):  # the sender's network says it is here, and this proxy does not see it
            return [self._cause("proxy", seen)]
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
        if other is None or other.p2p or seen.p2p or not seen.func:
            return [HostVertex(world, team.hash)]
        behind = member.latest.get(seen.func, -1) < seen.flow.op_seq
        return [HostVertex(world, team.hash)] if behind or other.func != seen.func else []

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
    def _gpu(self, team: Team, seen: TeamFlow) -> GpuVertex:
        """Return the part of the GPU that a flow waits for."""
        parents = None if seen.p2p else self._parents(team, seen)
        half = BOTH
        if parents is not None:
            index = _places(team)
            here, there = index[seen.flow.rank], index.get(seen.flow.peer)
            to_parent = parents[here] == there
            up = to_parent == (seen.flow.direction == "send") or parents[here] is None
            half = UP if up else DOWN
        elif seen.p2p:  # each call is for itself
            half = f"{seen.flow.direction} {seen.flow.peer}"
        return GpuVertex(team.hash, seen.flow.rank, seen.flow.channel, half)

    def _parents(self, team: Team, seen: TeamFlow) -> list[int | None] | None:
        """Return the parents of the tree that an operation uses on a channel; None: it is no tree."""
        at = (team.hash, seen.flow.channel)
        if at not in self._halves:
            self._halves[at] = self._find_parents(team, seen)
        return self._halves[at]

    def _find_parents(self, team: Team, seen: TeamFlow) -> list[int | None] | None:
        if seen.func != "AllReduce":
            return None
        lane = [flow for flow in team.flows.values() if flow.flow.channel == seen.flow.channel and flow.flow.open_ops]
        index = _places(team)
        edges = {_edge(index, flow) for flow in lane if flow.flow.peer in index}
        count = len(set(index.values()))
        if count == 2 and not all(_hungry(flow) for flow in lane):
            return None  # of two nodes ring and tree look alike; but in a ring of two somebody has got something
        channels = 1 + max(flow.flow.channel for flow in team.flows.values())
        return parents_for(count, edges, channels > 1 and seen.flow.channel >= channels // 2)

    def _of_gpu(self, team: Team, vertex: GpuVertex) -> list[Reason]:
        """Return what keeps a GPU: receivers that nothing came to, senders that have no room; nothing of that: itself."""
        block = self._block(team, vertex)
        mine = _of_oldest([seen for seen in self._flows_of_block(team, vertex, block) if seen.pending])
        if any(seen.moved for seen in mine):
            self.moving.add(vertex)
            return []
        lead = min(mine, key=lambda seen: (not self._starved(team, seen), seen.flow.channel))
        absent = [
            HostVertex(team.members[member].sight.rank, team.hash) for member in self._not_called(team, lead, block)
        ]
        if absent:
            return list(absent)
        not_begun = [seen for seen in mine if self._starved(team, seen) and seen.flow.gpu_ready <= seen.flow.op_base]
        own = [seen for seen in not_begun if seen.func in SENDS_FIRST and not vertex.half]
        own += [seen for seen in mine if self._keeps_data(team, seen, mine) and not vertex.half]
        waits: list[Reason] = []
        if not own:
            waits = [FlowVertex(team.hash, seen.key) for seen in mine if not self._can_go_on(team, seen)]
        earlier = [] if waits else self._earlier(lead)
        if waits or earlier:
            return waits or [FlowVertex(seen.team, seen.key) for seen in earlier]
        blind = [seen for seen in mine if self._overlooked(team, seen)]
        if blind:
            return [self._cause("proxy", blind[0])]
        worlds = [team.members[member].sight.rank for member in block]
        others = [world for world in worlds if world != lead.world]
        untold = lead.api == 3 and lead.flow.direction == "send"
        return [self._cause("gpu", lead, (lead.world, *others))._replace(untold=untold)]

    def _overlooked(self, team: Team, seen: TeamFlow) -> bool:
        """Tell whether a proxy thread does not see what its network was given, so that nothing that it says of its GPU counts."""
        other = team.other_end(seen) if seen.flow.direction == "recv" else None
        return other is not None and other.flow.done > seen.flow.gpu_ready

    def _keeps_data(self, team: Team, sender: TeamFlow, mine: Sequence[TeamFlow]) -> bool:
        """Tell whether less goes out than came in: of a node in which data goes from GPU to GPU unseen, one keeps it."""
        if not self._starved(team, sender) or sender.func not in SENDS_FIRST:
            return False
        flow = sender.flow
        taken = [
            seen.flow.done - seen.flow.op_base
            for seen in mine
            if seen.flow.direction == "recv" and (seen.func, seen.flow.op_seq) == (sender.func, flow.op_seq)
        ]
        return bool(taken) and flow.gpu_ready - flow.op_base < min(taken)

    def _stands_still(self, world: int) -> bool:
        """Tell whether a rank's proxy thread sees nothing of what has come, in any of its flows."""
        pending = self._pending.get(world, ())
        return any(self._overlooked(self._teams[seen.team], seen) for seen in pending)

    def _starved(self, team: Team, seen: TeamFlow) -> bool:
        """Tell whether a sender has room that its GPU does not fill."""
        flow = seen.flow
        if flow.direction == "recv" or flow.posted == flow.gpu_ready:
            return False
        return not is_v3_full(seen, team.other_end(seen)) and not self._was_filled(team, seen)

    def _was_filled(self, team: Team, seen: TeamFlow) -> bool:
        """Tell whether a GPU must have filled what a sender of v3 seems to wait for: v3 does not say so, but where a GPU forwards
        what it receives, it has filled as much as it has consumed."""
        flow = seen.flow
        if seen.api != 3 or seen.p2p:
            return False
        vertex = self._gpu(team, seen)
        lane = self._flows_of_block(team, vertex, (flow.rank,))
        takes = [_consumed(of.flow, flow) for of in lane if of.flow.direction == "recv"]
        ahead = 1 if seen.func in SENDS_FIRST and not vertex.half else 0
        consumed = min(takes, default=0)
        return consumed > 0 and flow.gpu_ready - flow.op_base < min(consumed + ahead, flow.op_steps)

    def _can_go_on(self, team: Team, seen: TeamFlow) -> bool:
        """Tell whether a GPU could go on as far as one of its flows is concerned."""
        if seen.flow.direction == "send":
            return self._starved(team, seen)
        return seen.flow.transmitted > seen.flow.done

    def _block(self, team: Team, vertex: GpuVertex) -> tuple[int, ...]:
        """Return the members whose GPUs work as one as far as the network sees: one that both sends and receives on the channel,
        else all of its node, for within a node NCCL uses no network."""
        of = self._lanes.get((team.hash, vertex.channel, vertex.member), ())
        lane = [seen for seen in of if seen.flow.open_ops]
        one_way = len({seen.flow.direction for seen in lane}) < 2
        ring = bool(lane) and all(seen.func in SENDS_FIRST and not seen.p2p for seen in lane)
        if vertex.half or not one_way or not ring:
            return (vertex.member,)
        node = team.members[vertex.member].sight.node
        mates = [member for member, of in team.members.items() if of.sight.node == node and member != vertex.member]
        return (vertex.member, *sorted(mates))

    def _flows_of_block(self, team: Team, vertex: GpuVertex, block: tuple[int, ...]) -> list[TeamFlow]:
        """Return the flows that the GPUs of a block serve together."""
        lane = [seen for member in block for seen in self._lanes.get((team.hash, vertex.channel, member), ())]
        if vertex.half.startswith(("send", "recv")):
            return [seen for seen in lane if vertex.half == f"{seen.flow.direction} {seen.flow.peer}"]
        lane = [seen for seen in lane if not seen.p2p]
        return lane if vertex.half == BOTH else [seen for seen in lane if self._gpu(team, seen) == vertex]

    def _not_called(self, team: Team, lead: TeamFlow, block: tuple[int, ...]) -> list[int]:
        """Return the members of a block that have not made the call that is being carried out."""
        if lead.p2p or not lead.func:
            return []
        return [member for member in block if team.members[member].latest.get(lead.func, -1) < lead.flow.op_seq]

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


def _consumed(receiver: Flow, sender: Flow) -> int:
    """Return how much a receiver's GPU has consumed of the operation that a sender of the same rank is in."""
    if receiver.op == sender.op:
        return receiver.done - receiver.op_base
    later = receiver.op is not None and sender.op is not None and receiver.op > sender.op
    return sender.op_steps if later else 0


def _places(team: Team) -> dict[int, int]:
    """Return the number of each member's node, in the order of the nodes' first members."""
    nodes: dict[str, int] = {}
    alone = len({of.sight.node for of in team.members.values()}) == 1
    places = {}
    for member in sorted(team.members):
        name = f"{member}" if alone else team.members[member].sight.node
        places[member] = nodes.setdefault(name, len(nodes))
    return places


def _edge(index: Mapping[int, int], seen: TeamFlow) -> tuple[int, int]:
    here, there = index[seen.flow.rank], index[seen.flow.peer]
    return (here, there) if seen.flow.direction == "send" else (there, here)


def _hungry(seen: TeamFlow) -> bool:
    """Tell whether a flow waits for data: of the GPU to send, or of the peer."""
    flow = seen.flow
    if flow.direction == "send":
        return flow.posted > flow.gpu_ready == flow.transmitted == flow.done
    return flow.posted > flow.gpu_ready == flow.done


def reached(graph: Graph, targets: Callable[[Reason], bool], found: Iterable[Vertex] = ()) -> set[Vertex]:
    """Return the vertices from which something is come to that `targets` knows, or one of `found`."""
    back: dict[Vertex, list[Vertex]] = {}
    seen: set[Vertex] = set(found)
    for vertex, reasons in graph.reasons.items():
        for reason in reasons:
            if targets(reason):
                seen.add(vertex)
            if not isinstance(reason, Cause):
                back.setdefault(reason, []).append(vertex)
    to_see = list(seen)
    while to_see:
        for vertex in back.get(to_see.pop(), ()):
            if vertex not in seen:
                seen.add(vertex)
                to_see.append(vertex)
    return seen
