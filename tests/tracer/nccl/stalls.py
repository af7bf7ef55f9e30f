"""Stalls whose culprit is known. The rules were tuned with `TUNING`; `HELD_OUT` was kept apart until they were done."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracer.nccl.simulate import Broken, Call, Group, Kind, Model, Shape, World

from robust_run.tracer.nccl.types import Algorithm, NcclFault

#: What the rules call each kind.
KINDS: dict[Kind, str] = {
    "gpu": "gpu",
    "receiver_gpu": "gpu",
    "proxy": "proxy",
    "network": "network",
    "refused": "network",
    "late": "late",
    "dead": "dead",
    "node": "network",
    "stopped": "proxy",
    "thread": "proxy",
}


@functools.cache
def run(stall: Stall) -> Model:
    """What is left of a stall when nothing moves any more."""
    model = Model(stall.world, stall.broken, stall.seed)
    assert not model.run()
    return model


@dataclass(frozen=True)
class Stall:
    """One stall: where, what is broken, and the order in which all came about."""

    name: str
    world: World
    broken: Broken
    seed: int

    def is_right(self, faults: Sequence[NcclFault], api: int = 6) -> bool:
        """Whether exactly what is broken is blamed: of a link one end or both, of a node's network that node.

        A stopped process is late, or its proxy thread stands still, or its sends are not taken, whichever it came to last. One
        that stands still counts no more what its GPU does, so it may look like that. With v3 buffers that the network takes from
        nobody look like those that a GPU does not fill, but for the sender it is the same.
        """
        kinds = {fault.kind for fault in faults}
        blamed = {rank for fault in faults for rank in fault.ranks}
        unsure = {"gpu"} if api == 3 and self.broken.kind == "refused" else set()
        if self.broken.kind in ("stopped", "thread") and not self.world.kernel_tells:
            unsure = {"gpu"}
        allowed = {"late", "proxy", "network"} if self.broken.kind == "stopped" else {KINDS[self.broken.kind]}
        if not kinds or not kinds <= allowed | unsure:
            return False
        if self.broken.kind == "node":
            nodes = {self.world.node(rank) for rank in range(self.world.ranks)}
            mine = (
                nodes if len(nodes) == 2 else {self.world.node(self.broken.rank)}
            )  # of two, nothing tells which it is
            return len(faults) == 1 and set(faults[0].nodes) == mine
        if self.broken.kind in ("network", "refused") and kinds == {"network"}:
            suspects = {rank for fault in faults for rank in fault.suspects}
            return bool(blamed) and blamed | suspects == {self.broken.rank, self.broken.peer}
        return blamed == {self.broken.rank}


def one_group(ranks: int, shape: Shape, steps: int, channels: int, func: str = "AllReduce", depth: int = 1) -> World:
    """All ranks, a node each, in one communicator; several calls."""
    calls = tuple(Call(0, shape, steps, func) for _ in range(4))
    return World(ranks, 1, (Group("dp_0", tuple(range(ranks)), channels),), calls, depth)


def pipeline(ranks: int, steps: int, channels: int, micro_batches: int = 3) -> World:
    """Each rank passes on to the next what it got from the one before, for some micro-batches; then all average."""
    calls = [Call(0, "p2p", steps, "", place, place + 1) for _ in range(micro_batches) for place in range(ranks - 1)]
    group = Group("pp_0", tuple(range(ranks)), channels)
    average = Group("world", tuple(range(ranks)), channels)
    return World(ranks, 1, (group, average), (*calls, Call(1, "ring", steps)))


def grid(nodes: int, per_node: int, shape: Shape, steps: int, channels: int) -> World:
    """Data parallelism across nodes (one communicator for each place in a node), pairs of neighbours within, by turns."""
    ranks = nodes * per_node
    across = [Group(f"dp_{place}", tuple(range(place, ranks, per_node)), channels) for place in range(per_node)]
    within = [
        Group(f"tp_{node}", tuple(range(node * per_node, (node + 1) * per_node)), channels) for node in range(nodes)
    ]
    calls = []
    for _ in range(2):
        calls += [Call(len(across) + node, "ring", steps, "AllGather") for node in range(nodes)]
        calls += [Call(place, shape, steps) for place in range(per_node)]
    return World(ranks, per_node, (*across, *within), tuple(calls))


def _broken(kind: Kind, world: World, picks: random.Random) -> Broken:
    """Something of a kind, at a place where it shows."""
    rank = picks.randrange(world.ranks)
    mine = [index for index, call in enumerate(world.program) if rank in world.groups[call.team].worlds]
    mine = [index for index in mine if _touches(world, index, rank, kind)]
    index = picks.choice(mine[len(mine) // 3 :])
    call = world.program[index]
    after = picks.choice((0, 0, call.steps // 3, call.steps // 2))
    model = Model(world, None, 0)
    peers = [wire.target for wire in model.wires.values() if wire.call == index and wire.source == rank]
    return Broken(kind, rank, index, 0 if kind == "late" else after, picks.choice(peers) if peers else -1)


def _touches(world: World, index: int, rank: int, kind: Kind) -> bool:
    """Whether a call can show that a rank is broken in this way."""
    call = world.program[index]
    members = world.groups[call.team].worlds
    if kind == "node":
        return len({world.node(member) for member in members}) > 1
    if call.shape != "p2p":
        return kind != "receiver_gpu"
    if kind in ("network", "refused"):
        return members[call.sender] == rank
    if kind in ("proxy", "receiver_gpu"):
        return members[call.receiver] == rank
    return rank in (members[call.sender], members[call.receiver])


def stalls(worlds: dict[str, World], kinds: Sequence[Kind], seed: int) -> list[Stall]:
    """One stall of each kind in each world in which it can be."""
    found = []
    for place, (name, world) in enumerate(worlds.items()):
        for kind in kinds:
            picks = random.Random(f"{seed} {place} {kind}")
            p2p = world.program[0].shape == "p2p"
            if (kind == "node" and world.per_node == 1) or (kind == "receiver_gpu" and not p2p):
                continue
            while True:
                try:
                    broken = _broken(kind, world, picks)
                    break
                except IndexError:  # that rank makes no call of the sort
                    continue
            found.append(Stall(f"{kind} in {name}", world, broken, seed + place))
    return found


#: Of a thread that stands still by itself the counters alone do not tell; see `over_sockets`.
ALL_KINDS: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind != "thread")

TUNING = stalls(
    {
        "a ring of 2": one_group(2, "ring", 6, 1),
        "a ring of 5": one_group(5, "ring", 20, 2, "AllGather"),
        "a tree of 4": one_group(4, "tree", 24, 2),
        "a tree of 9": one_group(9, "tree", 16, 2),
        "a pipeline of 4": pipeline(4, 12, 1),
        "a grid of 3 by 2": grid(3, 2, "ring", 12, 2),
        "a ring of 4, calls ahead": one_group(4, "ring", 12, 2, depth=3),
    },
    ALL_KINDS,
    seed=1,
)

HELD_OUT = stalls(
    {
        "a ring of 3": one_group(3, "ring", 30, 4, "ReduceScatter"),
        "a ring of 16": one_group(16, "ring", 15, 1, "AllGather"),
        "a tree of 7": one_group(7, "tree", 10, 4),
        "a tree of 16": one_group(16, "tree", 20, 2),
        "a pipeline of 6": pipeline(6, 20, 2, 4),
        "a grid of 2 by 4": grid(2, 4, "ring", 10, 1),
        "a grid of 4 by 3": grid(4, 3, "tree", 9, 2),
        "a ring of 8, calls ahead": one_group(8, "ring", 14, 2, depth=2),
    },
    ALL_KINDS,
    seed=7001,
)


def over_sockets(seed: int, *, kernel_tells: bool = True) -> list[Stall]:
    """Stalls of rings of two to eight ranks, trees, a pipeline and a grid over sockets (see `sockets`), drawn at random."""
    picks = random.Random(f"sockets {seed}")

    def on(world: World, told: Algorithm = "", slices: int = 1) -> World:
        kept = picks.choice((0, 1, 4, 12))
        return replace(world, network="sockets", kept=kept, slices=slices, told=told, kernel_tells=kernel_tells)

    worlds = {}
    for ranks in range(2, 9):
        func = picks.choice(("AllReduce", "AllGather", "ReduceScatter"))
        ring = one_group(ranks, "ring", picks.choice((4, 12, 24)), picks.choice((1, 2)), func, picks.choice((1, 1, 3)))
        worlds[f"a ring of {ranks}"] = on(ring, picks.choice(("ring", "")), 2 if func == "AllReduce" else 1)
    worlds["a tree of 2"] = on(one_group(2, "tree", picks.choice((8, 20)), 2), "tree")
    for ranks in (4, 7):
        worlds[f"a tree of {ranks}"] = on(
            one_group(ranks, "tree", picks.choice((8, 20)), 2), picks.choice(("tree", ""))
        )
    worlds["a pipeline"] = on(pipeline(picks.choice((3, 4, 5)), 12, 1))
    worlds["a grid of 3 by 2"] = on(grid(3, 2, "ring", 12, 2), picks.choice(("ring", "")))
    return stalls(worlds, [kind for kind in KINDS if kind != "refused"], seed)
