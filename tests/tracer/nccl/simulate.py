"""A model of what NCCL does between ranks, to have stalls whose culprit is known. It knows nothing of the rules under test.

Programs of calls run on ranks; each call is a kernel that passes chunks along a ring, up and down a tree, or between two ranks.
A connection is a window of eight buffers at either end, climbed as in the plugin. Something is broken (`Broken`), and the model
runs, in a random order of small moves, until nothing moves any more. What is left is given as traces, or as commands for the
driver.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tracer.nccl import sockets

from robust_run.tracer.nccl.types import (
    Algorithm,
    Communicator,
    Flow,
    NcclGlance,
    NcclOp,
    NcclSight,
    NcclTrace,
    Network,
)

WINDOW = 8
Shape = Literal["ring", "tree", "p2p"]
Kind = Literal["gpu", "receiver_gpu", "proxy", "network", "refused", "late", "dead", "node", "stopped", "thread"]


@dataclass(frozen=True)
class Call:
    """A collective of a team, or a point-to-point call from `sender` to `receiver` (members)."""

    team: int
    shape: Shape
    steps: int
    func: str = "AllReduce"
    sender: int = -1
    receiver: int = -1


@dataclass(frozen=True)
class Group:
    name: str
    worlds: tuple[int, ...]
    channels: int = 2


@dataclass(frozen=True)
class Broken:
    """What is wrong: with a rank (and the peer it has to do with), from a call of its program on, after so many chunks."""

    kind: Kind
    rank: int
    call: int = 0
    after: int = 0
    peer: int = -1


@dataclass(frozen=True)
class World:
    """Ranks, in nodes of so many, their groups and what each rank calls, in order."""

    ranks: int
    per_node: int
    groups: tuple[Group, ...]
    program: tuple[Call, ...]
    depth: int = 1
    """Calls that a host makes ahead of its GPU."""
    network_within_nodes: bool = True
    network: Network = "rdma"
    kept: int = 0
    """Whole chunks that sockets keep between two ranks for a receiver that has offered no buffer."""
    slices: int = 1
    """Chunks that each member of a ring gives before it needs any."""
    kernel_tells: bool = False
    """Whether the kernel was asked what proxy threads do, and what the network is."""
    told: Algorithm = ""
    """What calls say of their algorithm, for those that are rings or trees; empty: nothing."""

    def node(self, world: int) -> str:
        return f"node{world // self.per_node}"


@dataclass
class Wire:
    """One call's part in one connection."""

    call: int
    channel: int
    source: int
    target: int
    steps: int
    posted: int = 0
    ready: int = 0
    sent: int = 0
    delivered: int = 0
    offered: int = 0
    arrived: int = 0
    flushed: int = 0
    consumed: int = 0
    filled: int = 0
    """As far as the sender's proxy thread has noticed what is ready, ..."""
    freed: int = 0
    """... and the receiver's what is consumed."""
    carried: int = 0
    """Of a network of sockets: has come to the machine of the receiver."""

    def of_sender(self) -> tuple[int, int, int, int]:
        return self.posted, self.filled, self.sent, self.delivered

    def of_receiver(self) -> tuple[int, int, int, int]:
        return self.offered, self.arrived, self.flushed, self.freed


@dataclass
class Stage:
    """A loop of a kernel: takes a chunk from each of some wires, gives one to each of others."""

    takes: list[Wire]
    gives: list[Wire]
    lead: int
    """Chunks that are given before any is taken."""
    at: int = 0

    def over(self) -> bool:
        wires = self.takes or self.gives
        return self.at >= wires[0].steps + (self.lead if self.takes else 0)


@dataclass
class Kernel:
    """A call on one rank."""

    call: int
    stages: list[Stage] = field(default_factory=list)
    ended: bool = False

    def over(self) -> bool:
        self.ended = self.ended or all(stage.over() for stage in self.stages)
        return self.ended


def tree_children(count: int, second: bool) -> dict[int, list[int]]:
    """The children of each node in NCCL's trees, from the top down."""
    children: dict[int, list[int]] = {node: [] for node in range(count)}

    def grow(node: int, reach: int) -> None:
        for sign in (-1, 1):
            low = reach
            while low and node + sign * low >= count:
                low //= 2
            if low:
                children[node].append(node + sign * low)
                grow(node + sign * low, low // 2)

    if count > 1:
        top = 1
        while top * 2 < count:
            top *= 2
        children[0].append(top)
        grow(top, top // 2)
    if not second:
        return children
    moved = (lambda node: count - 1 - node) if count % 2 == 0 else (lambda node: (node + 1) % count)
    return {moved(node): [moved(child) for child in of] for node, of in children.items()}


class Model:
    """Runs a world with something broken in it."""

    def __init__(self, world: World, broken: Broken | None, seed: int) -> None:
        self.world, self.broken = world, broken
        self.random = random.Random(seed)
        self.called = [0] * world.ranks
        self.begun = [0] * world.ranks
        """Of those calls, those that the rank's proxy thread has taken up."""
        self.kernels: dict[tuple[int, int], Kernel] = {}
        self.wires: dict[tuple[int, int, int, int], Wire] = {}
        for index in range(len(world.program)):
            self._lay(index)
        wires = list(self.wires.items())
        self.earlier = {
            id(wire): [of for at, of in wires if at[1:] == key[1:] and at[0] < key[0] and self._same(of, wire)]
            for key, wire in wires
        }
        self.at: dict[int, list[int]] = {rank: [] for rank in range(world.ranks)}
        for rank, index in sorted(self.kernels):
            self.at[rank].append(index)

    def _wire(self, index: int, channel: int, source: int, target: int) -> Wire:
        key = (index, channel, source, target)
        if key not in self.wires:
            self.wires[key] = Wire(index, channel, source, target, self.world.program[index].steps)
        return self.wires[key]

    def _lay(self, index: int) -> None:
        """Make the kernels and wires of a call."""
        call = self.world.program[index]
        group = self.world.groups[call.team]
        members = group.worlds
        if call.shape == "p2p":
            source, target = members[call.sender], members[call.receiver]
            wires = [self._wire(index, channel, source, target) for channel in range(group.channels)]
            self.kernels[source, index] = Kernel(index, [Stage([], [wire], 0) for wire in wires])
            self.kernels[target, index] = Kernel(index, [Stage([wire], [], 0) for wire in wires])
            return
        for world in members:
            self.kernels[world, index] = Kernel(index)
        for channel in range(group.channels):
            if call.shape == "ring":
                for place, world in enumerate(members):
                    into = self._wire(index, channel, members[place - 1], world)
                    out = self._wire(index, channel, world, members[(place + 1) % len(members)])
                    self.kernels[world, index].stages.append(Stage([into], [out], min(call.steps, self.world.slices)))
            else:
                second = group.channels > 1 and channel >= group.channels // 2
                self._lay_tree(index, channel, members, tree_children(len(members), second))

    def _lay_tree(self, index: int, channel: int, members: Sequence[int], children: dict[int, list[int]]) -> None:
        parent = {child: node for node, of in children.items() for child in of}
        for node, world in enumerate(members):
            below = [members[child] for child in children[node]]
            up = [self._wire(index, channel, child, world) for child in below]
            down = [self._wire(index, channel, world, child) for child in below]
            stages = self.kernels[world, index].stages
            if node not in parent:
                stages.append(Stage(up, down, 0))
                continue
            above = members[parent[node]]
            stages.append(Stage(up, [self._wire(index, channel, world, above)], 0))
            stages.append(Stage([self._wire(index, channel, above, world)], down, 0))

    # ---- running ----
    def _is(self, kind: str, rank: int, index: int = 1 << 30, done: int = 1 << 30) -> bool:
        """Whether a rank is broken in this way by now."""
        of = self.broken
        return of is not None and of.kind == kind and of.rank == rank and (index, done) >= (of.call, of.after)

    def cut(self, wire: Wire, kind: str) -> bool:
        """Whether the network between two ranks is broken by now."""
        of = self.broken
        if of is None or of.kind != kind or (wire.call, wire.sent) < (of.call, of.after):
            return False
        if kind == "node":
            nodes = [self.world.node(wire.source), self.world.node(wire.target)]
            return nodes[0] != nodes[1] and self.world.node(of.rank) in nodes
        return (wire.source, wire.target) == (of.rank, of.peer)

    def _frozen(self, rank: int) -> bool:
        """Whether a rank's process is dead or stopped by now: it is as soon as it has got as far as it does."""
        if self.broken is None or self.broken.kind not in ("dead", "stopped") or self.broken.rank != rank:
            return False
        return any(self._is(kind, rank, *self._reach(rank)) for kind in ("dead", "stopped"))

    def _reach(self, rank: int) -> tuple[int, int]:
        for index in self.at[rank]:
            kernel = self.kernels[rank, index]
            if not kernel.over():
                return index, max(stage.at for stage in kernel.stages)
        return len(self.world.program), 0

    def run(self, moves: int = 1 << 30) -> bool:
        """Run until nothing moves, or for so many rounds; say whether something still moves."""
        turns = [lambda wire=wire: self._move(wire) for wire in self.wires.values()]
        turns += [lambda rank=rank: self._host(rank) | self._gpu(rank) for rank in range(self.world.ranks)]
        for _ in range(moves):
            self.random.shuffle(turns)
            if not sum([turn() for turn in turns]):
                return False
        return True

    def _host(self, rank: int) -> bool:
        mine = self.at[rank]
        if self.begun[rank] < self.called[rank] and not self.is_idle(rank):
            self.begun[rank] = self.called[rank]
            return True
        if self.called[rank] >= len(mine) or self._frozen(rank):
            return False
        index = mine[self.called[rank]]
        if self._is("late", rank, index):
            return False
        over = sum(self.kernels[rank, before].over() for before in mine)
        if self.called[rank] - over >= self.world.depth:
            return False
        self.called[rank] += 1
        return True

    def _gpu(self, rank: int) -> bool:
        """The oldest kernel that is not over goes on."""
        running = [self.kernels[rank, index] for index in self.at[rank][: self.called[rank]]]
        kernel = next((of for of in running if not of.over()), None)
        if kernel is None or self.is_dead(rank):
            return False
        return sum(self._iterate(rank, kernel.call, stage) for stage in kernel.stages) > 0

    def _iterate(self, rank: int, index: int, stage: Stage) -> bool:
        kinds = ("gpu", "receiver_gpu")
        if stage.over() or any(self._is(kind, rank, index, stage.at) for kind in kinds):
            return False
        gives = [wire for wire in stage.gives if stage.at < wire.steps]
        takes = stage.takes if stage.at >= stage.lead else []
        if any(wire.posted <= wire.ready for wire in gives) or any(wire.flushed <= wire.consumed for wire in takes):
            return False
        for wire in gives:
            wire.ready += 1
        for wire in takes:
            wire.consumed += 1
        stage.at += 1
        return True

    def _in_call(self, rank: int, index: int) -> bool:
        """Whether the proxy thread of a rank works on a call."""
        return index in self.at[rank][: self.begun[rank]] and not self.is_idle(rank)

    def is_idle(self, rank: int) -> bool:
        """Whether the proxy thread of a rank does nothing any more."""
        return self._frozen(rank) or self._is("thread", rank, *self._reach(rank))

    def _turn(self, wire: Wire, sends: bool) -> bool:
        """Whether the calls before it are over at this end of the connection."""
        return all((of.delivered if sends else of.freed) == of.steps for of in self.earlier[id(wire)])

    def _same(self, one: Wire, other: Wire) -> bool:
        return self.world.program[one.call].team == self.world.program[other.call].team

    def _move(self, wire: Wire) -> bool:
        moved = False
        if self._in_call(wire.source, wire.call) and self._turn(wire, True):
            if wire.posted < min(wire.steps, wire.delivered + WINDOW) and not self._stuck(
                wire.source, wire, wire.posted
            ):
                wire.posted += 1
                moved = True
            moved |= wire.filled < wire.ready
            wire.filled = wire.ready
            if self.world.network == "sockets":
                moved |= sockets.give(self, wire, self.earlier[id(wire)])
            else:
                moved |= self._send(wire)
        moved |= self.world.network == "sockets" and sockets.carry(self, wire)
        if self._in_call(wire.target, wire.call) and self._turn(wire, False):
            if wire.offered < min(wire.steps, wire.freed + WINDOW) and not self._stuck(wire.target, wire, wire.offered):
                wire.offered += 1
                moved = True
            if self.world.network == "sockets":
                moved |= sockets.take(wire)
            elif wire.arrived < wire.delivered:
                wire.arrived += 1
                moved = True
            if wire.flushed < wire.arrived:
                wire.flushed += 1
                moved = True
            moved |= wire.freed < wire.consumed
            wire.freed = wire.consumed
        return moved

    def _send(self, wire: Wire) -> bool:
        """Have a network that needs a buffer at the other end take a chunk, and bring one there."""
        moved = False
        if wire.sent < wire.filled and wire.offered > wire.sent and not self.cut(wire, "refused"):
            wire.sent += 1
            moved = True
        if wire.delivered < wire.sent and not self.cut(wire, "network") and not self.cut(wire, "node"):
            gone = self.is_dead(wire.target)
            moved, wire.delivered = moved or not gone, wire.delivered + (not gone)
        return moved

    def is_dead(self, rank: int) -> bool:
        """Whether a rank's process has ended by now."""
        return self._frozen(rank) and self._is("dead", rank, *self._reach(rank))

    def _stuck(self, rank: int, wire: Wire, count: int) -> bool:
        """Whether the proxy of a receiver posts no more for what a peer sends."""
        of = self.broken
        return self._is("proxy", rank, wire.call, count) and of is not None and of.rank == wire.target


# ---- what can be seen of it ----
def ends(model: Model, rank: int) -> Iterator[tuple[Wire, bool]]:
    """The wires of the calls that a rank's proxy thread works on, with whether it sends on them; those between ranks of a node as
    NCCL does it."""
    for index in model.at[rank][: model.begun[rank]]:
        for wire in model.wires.values():
            if wire.call != index or rank not in (wire.source, wire.target):
                continue
            same = model.world.node(wire.source) == model.world.node(wire.target)
            if model.world.network_within_nodes or not same:
                yield wire, wire.source == rank


def is_over(model: Model, rank: int, index: int) -> bool:
    """Whether all that a rank's proxy has to do for a call is done."""
    return all((of.delivered if sends else of.freed) == of.steps for of, sends in ends(model, rank) if of.call == index)


def seq_of(model: Model, rank: int, index: int, first: int = 1200) -> int:
    """The number of a call among those of its group and function; point-to-point: of its group."""
    call = model.world.program[index]
    mine = model.at[rank] if call.shape == "p2p" else range(len(model.world.program))
    before = [model.world.program[other] for other in mine if other < index]
    same = [of for of in before if of.team == call.team and (of.func == call.func or call.shape == of.shape == "p2p")]
    return len(same) + (0 if call.shape == "p2p" else first)


def trace_of(model: Model, rank: int, api: int = 6, now_s: float = 1000.0) -> NcclTrace:
    """The trace that the plugin of a rank would leave."""
    teams = [number for number, group in enumerate(model.world.groups) if rank in group.worlds]
    serial = {team: place + 1 for place, team in enumerate(teams)}
    ops = tuple(_op_of(model, rank, number, serial, now_s) for number in range(model.called[rank]))
    return NcclTrace(
        glance=NcclGlance(
            pid=100 + rank, api=api, communicators=len(teams), ops=len(ops), event_s=now_s, dropped=0, foreign=0,
            unknown=0, stale=0,
        ),
        communicators=tuple(
            Communicator(
                serial=serial[team],
                hash=0x1000 + team,
                name=model.world.groups[team].name,
                rank=model.world.groups[team].worlds.index(rank),
                ranks=None if api == 3 else len(model.world.groups[team].worlds),
                nodes=None if api == 3 else 1,
                opened_s=1.0,
                closed_s=None,
                proxy=("still" if model.is_idle(rank) else "runs") if model.world.kernel_tells else "",
            )
            for team in teams
        ),
        flows=tuple(_flows_of(model, rank, serial, api, now_s)),
        ops=ops,
        network=model.world.network if model.world.kernel_tells else "",
    )  # fmt: skip


def _op_of(model: Model, rank: int, number: int, serial: dict[int, int], now_s: float) -> NcclOp:
    index = model.at[rank][number]
    call = model.world.program[index]
    mine = [(wire, sends) for wire, sends in ends(model, rank) if wire.call == index]
    closed = len(mine) if is_over(model, rank, index) else 0
    sender = call.shape == "p2p" and model.world.groups[call.team].worlds[call.sender] == rank
    return NcclOp(
        number=number, comm=serial[call.team], kind="p2p" if call.shape == "p2p" else "collective",
        func=("Send" if sender else "Recv") if call.shape == "p2p" else call.func, seq=seq_of(model, rank, index),
        count=4096, dtype="bfloat16", peer=0, started_s=now_s - 20 + number / 100, stopped_s=now_s - 20 + number / 100,
        proxy_first_s=now_s - 19 if mine else None, proxy_last_s=now_s - 15 if closed else None, opened=len(mine),
        closed=closed, sent_bytes=0, received_bytes=0, kernel_first_s=None, kernel_last_s=None,
        algorithm="" if call.shape == "p2p" else model.world.told,
    )  # fmt: skip


def _flows_of(model: Model, rank: int, serial: dict[int, int], api: int, now_s: float) -> Iterator[Flow]:
    by_flow: dict[tuple[int, int, int, bool], list[Wire]] = {}
    for wire, sends in ends(model, rank):
        peer = wire.target if sends else wire.source
        by_flow.setdefault((model.world.program[wire.call].team, wire.channel, peer, sends), []).append(wire)
    for (team, channel, peer, sends), wires in by_flow.items():
        members = model.world.groups[team].worlds
        open_wires = [wire for wire in wires if not is_over(model, rank, wire.call)]
        levels = [(wire.of_sender() if sends else wire.of_receiver()) for wire in wires]
        begun = [wire for wire, of in zip(wires, levels, strict=True) if of[0] or wire is wires[0]]
        newest = open_wires[0] if open_wires and all(is_over(model, rank, of.call) for of in begun[:-1]) else begun[-1]
        newest = newest if newest in begun or newest is open_wires[0] else begun[-1]
        number = model.at[rank].index(newest.call)
        posted, ready, sent, done = (sum(of[rung] for of in levels) for rung in range(4))
        ready = sent if api == 3 and sends else ready
        at = now_s - 30
        yield Flow(
            comm=serial[team], foreign=False, rank=members.index(rank), channel=channel, peer=members.index(peer),
            direction="send" if sends else "recv", op=number, op_seq=seq_of(model, rank, newest.call), op_started_s=at,
            op_base=sum(wire.steps for wire in wires if wire.call < newest.call), op_steps=newest.steps,
            steps=sum(wire.steps for wire in wires), posted=posted, gpu_ready=ready, transmitted=sent, done=done,
            posted_s=at, gpu_ready_s=at, transmitted_s=at, done_s=at, bytes=0, open_ops=len(open_wires),
        )  # fmt: skip


def sights_of(model: Model, api: int = 6, before: Model | None = None) -> list[NcclSight]:
    """All ranks as they are seen; a dead one with what it left behind."""
    dead = model.broken.rank if model.broken is not None and model.broken.kind == "dead" else -1
    return [
        NcclSight(
            rank=rank,
            node=model.world.node(rank),
            trace=trace_of(model, rank, api),
            before=None if before is None else trace_of(before, rank, api),
            alive=rank != dead,
        )
        for rank in range(model.world.ranks)
    ]


def commands_of(model: Model, rank: int, version: int) -> list[str]:
    """What the driver must play for the plugin to see what a rank does."""
    groups = model.world.groups
    lines = []
    for team, group in enumerate(groups):
        if rank in group.worlds:
            lines.append(f"comm {team} {group.name} {0x1000 + team} 1 {len(group.worlds)} {group.worlds.index(rank)}")
    handle = 1000
    for number, index in enumerate(model.at[rank][: model.called[rank]]):
        call = model.world.program[index]
        task = 100 + number % 800
        members = groups[call.team].worlds
        if call.shape == "p2p":
            sends = members[call.sender] == rank
            peer = call.receiver if sends else call.sender
            lines.append(f"p2p {call.team} {task} {'Send' if sends else 'Recv'} 4096 ncclBfloat16 {peer}")
        else:
            lines.append(f"coll {call.team} {task} {seq_of(model, rank, index)} {call.func} 4096 ncclBfloat16 0")
        lines.append(f"stop {task}")
        mine = [(wire, sends) for wire, sends in ends(model, rank) if wire.call == index]
        ops = []
        for wire, sends in mine:
            peer = members.index(wire.target if sends else wire.source)
            handle += 1
            ops.append(handle)
            lines.append(f"op {call.team} {handle} {task} 0 {wire.channel} {peer} {wire.steps} {int(sends)}")
            lines += _steps_of(call.team, handle, wire, sends, version)
        if mine and is_over(model, rank, index):
            lines += [f"stop {op}" for op in ops]
    return lines


def _steps_of(team: int, handle: int, wire: Wire, sends: bool, version: int) -> list[str]:
    """The steps of one call in one flow, as far as they have come."""
    posted, ready, sent, done = wire.of_sender() if sends else wire.of_receiver()
    states = ((8, posted), (20, ready), (9, sent)) if sends else ((10, posted), (11, ready), (12, sent))
    lines = [f"steps {team} {handle} 0 {done} {int(sends)}"] if done else []
    for step in range(done, posted):
        lines.append(f"step {team} 9 {handle} {step}")
        lines += [f"state 9 {state} 1024" for state, count in states if step < count and (version > 3 or state != 20)]
    return lines
