"""What the GPU of a rank needs to go on with an operation, as far as its flows tell. Pure.

In a ring it forwards what it receives, in a tree it needs its children on the way up and its parent on the way down,
point-to-point calls need nothing. Within a node NCCL uses no network: there the GPUs of a node count as one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from robust_run.tracer.nccl.states import GpuVertex, is_under_way, is_v3_full
from robust_run.tracer.nccl.teams import Team, TeamFlow
from robust_run.tracer.nccl.types import Flow

#: Collectives in whose ring every member sends something of its own first.
SENDS_FIRST = frozenset({"AllReduce", "AllGather", "ReduceScatter"})
#: Half of what a GPU does on a channel.
UP, DOWN, BOTH = "up", "down", ""


class Gpus:
    """The GPUs of all ranks at one moment."""

    def __init__(self, teams: Mapping[int, Team]) -> None:
        self._lanes: dict[tuple[int, int, int], list[TeamFlow]] = {}
        for seen in (seen for team in teams.values() for seen in team.flows.values()):
            self._lanes.setdefault((seen.team, seen.flow.channel, seen.flow.rank), []).append(seen)
        self._halves: dict[tuple[int, int], list[int | None] | None] = {}

    def vertex_of(self, team: Team, seen: TeamFlow) -> GpuVertex:
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
        told = {flow.algorithm for flow in lane if flow.func == seen.func} - {""}
        if told and told != {"tree"}:
            return None
        index = _places(team)
        edges = {_edge(index, flow) for flow in lane if flow.flow.peer in index}
        count = len(set(index.values()))
        if count == 2 and not told and not all(_hungry(flow) for flow in lane):
            return None  # of two nodes ring and tree look alike; but in a ring of two one of them has sent something
        numbers = [member.communicator.channels for member in team.members.values()]
        channels = max(*numbers, 1 + max(flow.flow.channel for flow in team.flows.values()))
        return parents_for(count, edges, channels > 1 and seen.flow.channel >= channels // 2)

    def sends_first(self, team: Team, seen: TeamFlow) -> bool:
        """Tell whether a GPU must send something before it needs any data: in a ring.

        Between two nodes it may be a tree, in which one of them need not.
        """
        may_be_tree = seen.func == "AllReduce" and seen.algorithm != "ring" and len(set(_places(team).values())) == 2
        return seen.func in SENDS_FIRST and not may_be_tree

    def block_of(self, team: Team, vertex: GpuVertex) -> tuple[int, ...]:
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

    def flows_of(self, team: Team, vertex: GpuVertex, block: tuple[int, ...]) -> list[TeamFlow]:
        """Return the flows that the GPUs of a block serve together."""
        lane = [seen for member in block for seen in self._lanes.get((team.hash, vertex.channel, member), ())]
        if vertex.half.startswith(("send", "recv")):
            return [seen for seen in lane if vertex.half == f"{seen.flow.direction} {seen.flow.peer}"]
        lane = [seen for seen in lane if not seen.p2p]
        return lane if vertex.half == BOTH else [seen for seen in lane if self.vertex_of(team, seen) == vertex]

    def overlooked(self, team: Team, seen: TeamFlow) -> bool:
        """Tell whether a proxy thread does not see what its network was given, so that nothing that it says of its GPU counts."""
        other = team.other_end(seen) if seen.flow.direction == "recv" else None
        return other is not None and is_under_way(other, seen)

    def starved(self, team: Team, seen: TeamFlow) -> bool:
        """Tell whether a sender has room that its GPU does not fill."""
        flow = seen.flow
        if flow.direction == "recv" or flow.posted == flow.gpu_ready:
            return False
        return not is_v3_full(seen, team.other_end(seen)) and not self.was_filled(team, seen)

    def was_filled(self, team: Team, seen: TeamFlow) -> bool:
        """Tell whether a GPU must have filled what a sender of v3 seems to wait for: v3 does not say so, but where a GPU forwards
        what it receives, it has filled as much as it has consumed."""
        flow = seen.flow
        if seen.api != 3 or seen.p2p:
            return False
        vertex = self.vertex_of(team, seen)
        lane = self.flows_of(team, vertex, (flow.rank,))
        takes = [_consumed(of.flow, flow) for of in lane if of.flow.direction == "recv"]
        ahead = 1 if seen.func in SENDS_FIRST and not vertex.half else 0
        consumed = min(takes, default=0)
        return consumed > 0 and flow.gpu_ready - flow.op_base < min(consumed + ahead, flow.op_steps)

    def keeps_data(self, team: Team, sender: TeamFlow, mine: Sequence[TeamFlow]) -> bool:
        """Tell whether less goes out than came in: of a node in which data goes from GPU to GPU unseen, one keeps it."""
        if not self.starved(team, sender) or sender.func not in SENDS_FIRST:
            return False
        flow = sender.flow
        taken = [
            seen.flow.done - seen.flow.op_base
            for seen in mine
            if seen.flow.direction == "recv" and (seen.func, seen.flow.op_seq) == (sender.func, flow.op_seq)
        ]
        return bool(taken) and flow.gpu_ready - flow.op_base < min(taken)

    def can_go_on(self, team: Team, seen: TeamFlow) -> bool:
        """Tell whether a GPU could go on as far as one of its flows is concerned."""
        if seen.flow.direction == "send":
            return self.starved(team, seen)
        return seen.flow.transmitted > seen.flow.done

    def not_called(self, team: Team, lead: TeamFlow, block: tuple[int, ...]) -> list[int]:
        """Return the members of a block that have not made the call that is being carried out."""
        if lead.p2p or not lead.func:
            return []
        return [member for member in block if team.members[member].latest.get(lead.func, -1) < lead.flow.op_seq]

    def not_there(self, team: Team, lead: TeamFlow) -> list[int]:
        """Return the members of a whole communicator that have not made the call: no GPU can carry it out without them.

        Which GPU stands still by itself can be told only when all have come. Of those that are dead the flows tell.
        """
        if lead.p2p or not lead.func or self.vertex_of(team, lead).half not in (UP, DOWN, BOTH):
            return []
        return [
            number
            for number, member in team.members.items()
            if member.sight.alive and member.latest.get(lead.func, -1) < lead.flow.op_seq
        ]


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
    """Tell whether a flow waits for its first data: of the GPU to send, or of the peer. (Sockets take and deliver what the first
    of a ring sends also where the other has not come.)"""
    flow = seen.flow
    if flow.direction == "send":
        return flow.posted > flow.gpu_ready == flow.op_base
    return flow.posted > flow.gpu_ready == flow.done


def _consumed(receiver: Flow, sender: Flow) -> int:
    """Return how much a receiver's GPU has consumed of the operation that a sender of the same rank is in."""
    if receiver.op == sender.op:
        return receiver.done - receiver.op_base
    later = receiver.op is not None and sender.op is not None and receiver.op > sender.op
    return sender.op_steps if later else 0


# Which way data goes in NCCL's double binary tree: up the tree a GPU needs what its children send, down the tree what its parent
# sends. Flows tell the edges, not which end is up; but the two trees that NCCL builds over n nodes are always the same (Sanders,
# Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009): in the first, node 0 is on top and
# a node lies as high as its number has zero bits at its end; the second is its mirror image where n is even, else it is moved on
# by one.


def first_parents(count: int) -> list[int | None]:
    """Return the parent of each node in the first tree; the top has none."""
    parents: list[int | None] = [None]
    for node in range(1, count):
        low = node & -node
        above = (node & ~low) | (low << 1)
        parents.append(above if above < count else node & ~low)
    return parents


def second_parents(count: int) -> list[int | None]:
    """Return the parent of each node in the second tree."""
    first = first_parents(count)

    def moved(node: int) -> int:
        return count - 1 - node if count % 2 == 0 else (node + 1) % count

    parents: list[int | None] = [None] * count
    for node, parent in enumerate(first):
        parents[moved(node)] = None if parent is None else moved(parent)
    return parents


def parents_for(count: int, edges: Collection[tuple[int, int]], prefer_second: bool) -> list[int | None] | None:
    """Return the parents in the tree that has all of these directed edges; None: they are those of no tree (but of a ring, say).

    Every edge must be there in both directions. `prefer_second` decides where both trees would do, as with two nodes.
    """
    if count < 2 or not edges or any((there, here) not in edges for here, there in edges):
        return None
    trees = [first_parents(count), second_parents(count)]
    for parents in reversed(trees) if prefer_second else trees:
        if all(parents[here] == there or parents[there] == here for here, there in edges):
            return parents
    return None
