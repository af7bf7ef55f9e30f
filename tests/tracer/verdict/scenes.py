"""A small world of ranks that communicate, to take scenes from: programs are lists of calls, time is virtual.

Collectives complete when all members have come with the same signature (a broadcast when its root has), receives when the
peer has sent. A run goes on until nobody can move; what each rank then has in its ring, and what its process looks like, is
the scene. Nothing here knows how verdicts are reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import msgspec

from robust_run.tracer.types import Frame, Group, Op, ProcessSight, RankSight, RankTrace, Scene, StepMark, ThreadStack

RING = 64
ROOTED = {"broadcast", "reduce", "gather", "scatter"}


@dataclass(frozen=True)
class Call:
    """One action of a rank's program."""

    do: str
    """collective, send, recv, wait (for all that is issued), compute, stuck, stop, exit, init, destroy, mark."""
    group: str = "0"
    op: str = ""
    numel: int = 1000
    dtype: str = "float32"
    peer: int = -1
    asynchronous: bool = False
    seconds: float = 0.01
    line: int = 0


@dataclass
class Rank:
    number: int
    program: Iterator[Call]
    now_s: float = 0.0
    state: str = "S"
    doing: str = ""
    exit_code: int | None = None
    pending: Call | None = None
    blocked_op: int = -1
    issued: list[int] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    seqs: dict[tuple[object, ...], int] = field(default_factory=dict)
    steps: int = 0
    over: bool = False


class World:
    """Ranks and their groups."""

    def __init__(
        self,
        groups: dict[str, tuple[tuple[int, ...], str]],
        programs: list[list[Call]],
        *,
        frozen: set[int] | None = None,
        eager: bool = True,
        per_node: int = 4,
    ) -> None:
        self.groups = groups
        self.ranks = [Rank(number, iter(program)) for number, program in enumerate(programs)]
        #: Ranks whose network is dead: they come, but nothing completes with them.
        self.dead_links = frozen or set()
        self.eager = eager
        self.per_node = per_node
        self.arrived: dict[tuple[str, int], dict[int, tuple[float, Op]]] = {}
        self.completed: dict[tuple[str, int], float] = {}
        self.messages: dict[tuple[str, str, int, int, int], float] = {}
        self.lost_children: dict[int, tuple[str, ...]] = {}

    # -- running

    def run(self) -> World:
        moved = True
        while moved:
            moved = False
            for rank in self.ranks:
                while self._step(rank):
                    moved = True
        return self

    def _step(self, rank: Rank) -> bool:
        if rank.over:
            return False
        if rank.blocked_op >= 0:
            done_s = self._completed(rank.number, rank.ops[rank.blocked_op])
            if done_s is None:
                return False
            rank.now_s = max(rank.now_s, done_s) + 0.0001
            self._change(rank, rank.blocked_op, state="done", done_at_s=rank.now_s)
            rank.blocked_op = -1
            return True
        if rank.pending is not None and rank.pending.do == "wait":
            if rank.issued:
                self._block(rank, rank.issued.pop(0))
                return True
            rank.pending = None
        call = next(rank.program, None)
        if call is None:
            rank.over, rank.exit_code = True, 0
            return False
        self._begin(rank, call)
        return True

    def _begin(self, rank: Rank, call: Call) -> None:
        if call.do == "compute":
            rank.now_s += call.seconds * (1 + rank.number * 0.001)
        elif call.do == "mark":
            rank.steps += 1
        elif call.do in ("stuck", "stop"):
            rank.over, rank.doing, rank.state = True, call.op or "data.py:88 get", "T" if call.do == "stop" else "S"
        elif call.do == "exit":
            rank.over, rank.exit_code = True, 0
        elif call.do == "wait":
            rank.pending = call
        else:
            self._communicate(rank, call)

    def _communicate(self, rank: Rank, call: Call) -> None:
        p2p = call.do in ("send", "recv")
        group = "(world)" if call.do in ("init", "destroy") else call.group
        name = {"init": "init_process_group", "destroy": "destroy_process_group"}.get(call.do, call.op or call.do)
        key = (group, name, call.peer) if p2p else (group,)
        rank.seqs[key] = seq = rank.seqs.get(key, 0) + 1
        rank.ops.append(
            Op(
                group=group,
                op=name,
                seq=seq,
                state="issued",
                at_s=rank.now_s,
                numel=call.numel,
                dtype=call.dtype,
                peer=call.peer,
                site=f"train.py:{call.line} step" if call.line else "",
            )
        )
        position = len(rank.ops) - 1
        if p2p:
            self.messages[group, name, rank.number, call.peer, seq] = rank.now_s
        else:
            self.arrived.setdefault((group, seq), {})[rank.number] = (rank.now_s, rank.ops[position])
        if call.asynchronous:
            rank.issued.append(position)
        else:
            self._block(rank, position)

    def _block(self, rank: Rank, position: int) -> None:
        rank.now_s += 0.0001
        rank.blocked_op = position
        self._change(rank, position, state="waiting", waiting_at_s=rank.now_s)

    def _change(self, rank: Rank, position: int, **changes: object) -> None:
        rank.ops[position] = msgspec.structs.replace(rank.ops[position], **changes)

    def members(self, group: str) -> tuple[int, ...]:
        return tuple(range(len(self.ranks))) if group == "(world)" else self.groups[group][0]

    def _completed(self, number: int, op: Op) -> float | None:
        if op.op in ("send", "recv"):
            if op.peer in self.dead_links or number in self.dead_links:
                return None
            other = "recv" if op.op == "send" else "send"
            if op.op == "send" and self.eager:
                return op.at_s
            return self.messages.get((op.group, other, op.peer, number, op.seq))
        if (op.group, op.seq) in self.completed:
            return self.completed[op.group, op.seq]
        members = self.members(op.group)
        come = self.arrived[op.group, op.seq]
        if len(come) < len(members):
            return None
        if self.dead_links & set(members) or any(one not in come for one in members):
            return None
        if len({_signature(one) for _, one in come.values()}) > 1:
            return None
        if any(self.ranks[one].state == "T" and self.ranks[one].ops[-1].seq == op.seq for one in members):
            return None
        self.completed[op.group, op.seq] = done_s = max(at_s for at_s, _ in come.values()) + 0.0005
        return done_s

    # -- looking

    @property
    def stuck(self) -> bool:
        return any(rank.blocked_op >= 0 for rank in self.ranks)

    def scene(self, *, waited_s: float = 6.0, world_size: int | None = None) -> Scene:
        """The scene as of so long after the first of those that are stuck began to wait."""
        waits = [rank.ops[rank.blocked_op].waiting_at_s or 0.0 for rank in self.ranks if rank.blocked_op >= 0]
        at_s = max([rank.now_s for rank in self.ranks], default=0.0) + waited_s if waits else waited_s
        return Scene(
            at_s=at_s,
            attempt=0,
            world_size=world_size or len(self.ranks),
            ranks=tuple(self._sight(rank) for rank in self.ranks),
        )

    def _sight(self, rank: Rank) -> RankSight:
        groups = tuple(
            Group(name=name, desc=desc, ranks=ranks)
            for name, (ranks, desc) in self.groups.items()
            if rank.number in ranks
        )
        return RankSight(
            rank=rank.number,
            node=f"gpu-{rank.number // self.per_node:02d}",
            exit_code=rank.exit_code,
            ended_at_s=rank.now_s if rank.exit_code is not None else None,
            lost_children=self.lost_children.get(rank.number, ()),
            processes=() if rank.exit_code is not None else (process(rank),),
            trace=RankTrace(
                rank=rank.number,
                world_size=len(self.ranks),
                pid=100 + rank.number,
                steps=rank.steps,
                last_at_s=rank.now_s,
                blocked_s=0.0,
                ops=tuple(rank.ops[-RING:]),
                groups=groups,
                marks=(StepMark(at_s=rank.now_s, blocked_s=0.0),) if rank.steps else (),
            ),
        )


def _signature(op: Op) -> tuple[object, ...]:
    return (op.op, op.numel, op.dtype, op.peer if op.op in ROOTED else -1)


def process(rank: Rank, **changes: object) -> ProcessSight:
    """The rank's process: asleep, in what it was last in."""
    if rank.blocked_op >= 0:
        frames = (
            Frame("wait", "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3000),
            Frame("step", "/home/me/train.py", 40),
        )
    else:
        file, _, rest = (rank.doing or "data.py:88 get").partition(":")
        line, _, function = rest.partition(" ")
        frames = (Frame(function, f"/home/me/{file}", int(line)), Frame("step", "/home/me/train.py", 20))
    stack = ThreadStack(is_main=True, frames=frames)
    sight = ProcessSight(
        pid=100 + rank.number,
        parent=1,
        is_rank=True,
        command="python",
        state=rank.state,
        stopped_by=19 if rank.state == "T" else 0,
        stacks=((stack,), (stack,)),
    )
    return msgspec.structs.replace(sight, **changes)


def seen_as(scene: Scene, rank: int, **changes: object) -> Scene:
    """The same scene, with the process of a rank doing something else."""
    sights = list(scene.ranks)
    seen = msgspec.structs.replace(sights[rank].processes[0], **changes)
    sights[rank] = msgspec.structs.replace(sights[rank], processes=(seen, *sights[rank].processes[1:]))
    return msgspec.structs.replace(scene, ranks=tuple(sights))


def ended(scene: Scene, rank: int, exit_code: int, at_s: float, **changes: object) -> Scene:
    """The same scene, with a rank that has ended."""
    sights = list(scene.ranks)
    sights[rank] = msgspec.structs.replace(sights[rank], exit_code=exit_code, ended_at_s=at_s, processes=(), **changes)
    return msgspec.structs.replace(scene, ranks=tuple(sights))


# -- layouts: a group table, and the calls of one step of a rank

Step = Callable[[int, int], list[Call]]


@dataclass(frozen=True)
class Layout:
    name: str
    size: int
    groups: dict[str, tuple[tuple[int, ...], str]]
    step: Step

    def programs(self, steps: int) -> list[list[list[Call]]]:
        """Of each rank its steps; the first entry is its start, the last its end."""
        return [
            [
                [Call("init")],
                *([*self.step(rank, number), Call("mark")] for number in range(steps)),
                [Call("collective", op="barrier", numel=0, line=90), Call("destroy")],
            ]
            for rank in range(self.size)
        ]


def data_parallel(size: int) -> Layout:
    def step(rank: int, number: int) -> list[Call]:
        buckets = [
            Call("collective", op="all_reduce", numel=numel, asynchronous=True, line=31) for numel in (4096, 2048, 512)
        ]
        return [Call("compute"), *buckets, Call("wait"), Call("collective", op="all_reduce", numel=1, line=40)]

    return Layout(f"DP{size}", size, {"0": (tuple(range(size)), "default_pg")}, step)


def tensor_and_data(described: bool = True) -> Layout:
    groups = {"0": ((0, 1, 2, 3), "default_pg")}
    for number, ranks in enumerate(((0, 1), (2, 3)), 1):
        groups[str(number)] = (ranks, "TP" if described else "undefined")
    for number, ranks in enumerate(((0, 2), (1, 3)), 3):
        groups[str(number)] = (ranks, "DP" if described else "undefined")

    def step(rank: int, number: int) -> list[Call]:
        tp, dp = str(1 + rank // 2), str(3 + rank % 2)
        layers = [Call("collective", tp, "all_reduce", 1024, line=21) for _ in range(3)]
        return [
            Call("compute"),
            *layers,
            Call("collective", dp, "all_reduce", 4096, asynchronous=True, line=31),
            Call("wait"),
            Call("collective", "0", "all_reduce", 1, line=40),
        ]

    return Layout("TP2xDP2", 4, groups, step)


def tensor_data_pipeline() -> Layout:
    """Rank = pipeline stage * 4 + replica * 2 + tensor part."""
    groups: dict[str, tuple[tuple[int, ...], str]] = {"0": (tuple(range(8)), "default_pg")}
    for pair in range(4):
        groups[f"tp{pair}"] = ((2 * pair, 2 * pair + 1), f"tp_{pair}")
    for number, first in enumerate((0, 1, 4, 5)):
        groups[f"dp{number}"] = ((first, first + 2), f"dp_{number}")

    def step(rank: int, number: int) -> list[Call]:
        tp = f"tp{rank // 2}"
        dp = f"dp{(rank // 4) * 2 + rank % 2}"
        peer = (rank + 4) % 8
        layer = Call("collective", tp, "all_reduce", 1024, line=21)
        first = rank < 4
        forward = Call("send" if first else "recv", "0", peer=peer, line=25)
        backward = Call("recv" if first else "send", "0", peer=peer, line=27)
        passes = [layer, layer, forward, backward, layer] if first else [forward, layer, layer, layer, backward]
        return [
            Call("compute"),
            *passes,
            Call("collective", dp, "all_reduce", 4096, line=31),
            Call("collective", "0", "all_reduce", 1, line=40),
        ]

    return Layout("TP2xDP2xPP2", 8, groups, step)


def sharded(size: int = 8) -> Layout:
    def step(rank: int, number: int) -> list[Call]:
        sizes = (1000, 2000, 3000)
        forward = [Call("collective", op="all_gather", numel=numel, line=21) for numel in sizes]
        backward = [
            call
            for numel in reversed(sizes)
            for call in (
                Call("collective", op="all_gather", numel=numel, line=25),
                Call("collective", op="reduce_scatter", numel=numel * size, asynchronous=True, line=26),
            )
        ]
        return [
            Call("compute"),
            *forward,
            *backward,
            Call("wait"),
            Call("collective", op="all_reduce", numel=1, line=40),
        ]

    return Layout(f"FSDP{size}", size, {"0": (tuple(range(size)), "default_pg")}, step)


LAYOUTS = {
    layout.name: layout
    for layout in (data_parallel(4), data_parallel(8), tensor_and_data(), tensor_data_pipeline(), sharded(8))
}


# -- faults: they change the calls of one step of one rank, at one of its communications


@dataclass(frozen=True)
class Fault:
    name: str
    kind: str
    change: Callable[[list[Call], int], list[Call]]
    fits: Callable[[list[Call], int], bool] = lambda calls, at: calls[at].do in ("collective", "send", "recv")


def _collective(calls: list[Call], at: int) -> bool:
    return calls[at].do == "collective"


def _with(calls: list[Call], at: int, *instead: Call) -> list[Call]:
    return [*calls[:at], *instead, *calls[at + 1 :]]


def _blocks(calls: list[Call]) -> bool:
    return any(call.do == "collective" and not call.asynchronous for call in calls)


def _swap(calls: list[Call], at: int) -> list[Call]:
    other = next(
        n for n in range(at + 1, len(calls)) if calls[n].do == "collective" and calls[n].group != calls[at].group
    )
    changed = list(calls)
    changed[at], changed[other] = calls[other], calls[at]
    return changed


def _can_swap(calls: list[Call], at: int) -> bool:
    return _collective(calls, at) and any(
        call.do == "collective" and call.group != calls[at].group for call in calls[at + 1 :]
    )


def _broadcast_as_other(calls: list[Call], at: int) -> list[Call]:
    return _with(calls, at, replace(calls[at], op="broadcast", peer=0))


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("sleep", "hang", lambda c, n: _with(c, n, Call("stuck"), c[n])),
        Fault("sleep after issue", "hang", lambda c, n: _with(c, n, c[n], Call("stuck")),
              lambda c, n: _collective(c, n) and c[n].asynchronous and _blocks(c[n + 1:])),
        Fault("stop", "stopped", lambda c, n: _with(c, n, Call("stop"), c[n])),
        Fault("exit 0", "desync", lambda c, n: [*c[:n], Call("exit")]),
        Fault("size", "mismatch", lambda c, n: _with(c, n, replace(c[n], numel=c[n].numel + 77)), _collective),
        Fault("dtype", "mismatch", lambda c, n: _with(c, n, replace(c[n], dtype="float64")), _collective),
        Fault("operation", "mismatch", lambda c, n: _with(c, n, replace(c[n], op="all_to_all")), _collective),
        Fault("broadcast", "mismatch", _broadcast_as_other, _collective),
        Fault("skipped", "desync", lambda c, n: _with(c, n), _collective),
        Fault("extra", "desync", lambda c, n: _with(c, n, c[n], c[n]), _collective),
        Fault("swapped", "desync", _swap, _can_swap),
        Fault("missing send", "desync", lambda c, n: _with(c, n), lambda c, n: c[n].do == "send"),
        Fault("extra recv", "desync", lambda c, n: _with(c, n, c[n], c[n]), lambda c, n: c[n].do == "recv"),
        Fault("wrong peer", "desync", lambda c, n: _with(c, n, replace(c[n], peer=c[n].peer ^ 1)),
              lambda c, n: c[n].do in ("send", "recv")),
    )
}  # fmt: skip


def spots(layout: Layout, fault: Fault, rank: int) -> list[int]:
    """Where in a step the fault can be."""
    calls = layout.step(rank, 0)
    return [at for at in range(len(calls)) if calls[at].do in ("collective", "send", "recv") and fault.fits(calls, at)]


def flat(programs: list[list[list[Call]]]) -> list[list[Call]]:
    """Join the steps of each rank."""
    return [[call for step in program for call in step] for program in programs]


def faulty(
    layout: Layout, fault: Fault, rank: int, at: int, *, step: int = 6, steps: int = 10, eager: bool = True
) -> World:
    """Run a layout's program with a fault in one rank's step (counted from 1)."""
    programs = layout.programs(steps)
    programs[rank][step] = fault.change(programs[rank][step], at)
    return World(layout.groups, flat(programs), eager=eager).run()
