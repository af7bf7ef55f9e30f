"""The scene, indexed: which groups there are, how far each rank has come in them, who waits where and for whom.

Waits are kept as places, not as pairs of ranks: all that wait in one collective wait for the same ranks, so 4,096 ranks in one
all_reduce are one place with one set of missing ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from robust_run.tracer.stacks.activity import BUSY_CPU
from robust_run.tracer.stacks.normal import is_waiting, main_stacks, place
from robust_run.tracer.types import BACKWARD, LIFECYCLE, P2P, WORLD, Frame, Group, Op, RankSight, Scene, ThreadStack
from robust_run.tracer.verdict.groups import GroupKey, collect_groups, count_descs, without_unlisted
from robust_run.tracer.verdict.inside import NcclScene
from robust_run.tracer.verdict.types import WaitPlace
from robust_run.tracer.words import count_words, op_name, ranks_words, span

#: Descriptions that torch gives by itself.
_NO_DESC = frozenset({"", "undefined", "default_pg", "default"})
#: Of one group, so many different unfinished collectives are looked into; later waiters wait for those of the last as well.
_PLACES_PER_GROUP = 8
#: A call as our ring noted it and as torch's own record did, whose clock is another one, are as far apart at the most.
_SAME_CALL_S = 1.0
_OPPOSITE = {"send": "recv", "recv": "send"}
#: What the name of a group ends with where its backward passes are meant.
_PASSES = "\0passes"


__all__ = ["Picture", "WaitPlace"]


class Picture:
    """Everything the rules ask of a scene. With `failed`, calls that failed count as waits: for attempts that are over."""

    def __init__(self, scene: Scene, *, failed: bool = False) -> None:
        self.scene = scene = without_unlisted(scene)
        self.sights = {sight.rank: sight for sight in scene.ranks}
        self.takes_failed = failed
        self.blocking = frozenset({"entered", "waiting", "failed"} if failed else {"entered", "waiting"})
        self.several_nodes = len({sight.node for sight in scene.ranks} | set(scene.silent_nodes)) > 1
        self._groups, self._by_name = collect_groups(scene)
        self._keys: dict[tuple[int, str], GroupKey] = {}
        self._desc_uses = count_descs(self._groups.values())
        #: Collectives of a group, by number, then rank. Numbers of different sequences say nothing about each other.
        self.collectives: dict[GroupKey, dict[int, dict[int, Op]]] = {}
        self.last: dict[GroupKey, dict[int, int]] = {}
        self._p2p_last: dict[tuple[GroupKey, str, int, int, int], int] = {}
        self._take_ops()
        places = (*self._find_places(), *self._unlogged_places())
        #: What NCCL's traces say; None without any.
        self.inside = NcclScene.of(scene, self.groups, self.label, failed=failed)
        if self.inside is not None:
            places += self.inside.places({rank for here in places for rank in here.waiters})
        self.places = places
        self.waiting: dict[int, list[WaitPlace]] = {}
        for here in self.places:
            for rank in here.waiters:
                self.waiting.setdefault(rank, []).append(here)

    def _take_ops(self) -> None:
        for sight in self.scene.ranks:
            for op in sight.trace.ops if sight.trace is not None else ():
                key = self.sequence(sight.rank, op.group, op.op)
                if op.op in P2P:
                    direction = (key, op.op, sight.rank, op.peer, op.tag)
                    self._p2p_last[direction] = max(op.seq, self._p2p_last.get(direction, 0))
                else:
                    self.collectives.setdefault(key, {}).setdefault(op.seq, {})[sight.rank] = op
                    last = self.last.setdefault(key, {})
                    last[sight.rank] = max(op.seq, last.get(sight.rank, 0))

    def _blocked_in(self, sight: RankSight) -> Iterator[Op]:
        """Yield the calls that a rank is blocked in. A side thread that waits does not block a main thread that is elsewhere."""
        if sight.trace is None:
            return
        ops = [op for op in sight.trace.ops if op.state in self.blocking]
        if ops and all(op.thread != 0 for op in ops):
            stacks = main_stacks(sight)
            if stacks and not is_waiting(stacks[-1]) and not _in_backward(stacks[-1].frames):
                return
        yield from ops

    def _find_places(self) -> Iterator[WaitPlace]:
        found: dict[tuple[GroupKey, int], list[tuple[int, Op]]] = {}
        for sight in self.scene.ranks:
            for op in self._blocked_in(sight):
                key = self.sequence(sight.rank, op.group, op.op)
                if op.op in P2P:
                    yield self._pair_place(key, sight.rank, op)
                elif op.seq >= self.last[key][sight.rank] or op.state != "failed":
                    found.setdefault((key, op.seq), []).append((sight.rank, op))
        missing: dict[GroupKey, list[tuple[int, ...]]] = {}
        for (key, seq), calls in sorted(found.items(), key=lambda item: item[0]):
            known = missing.setdefault(key, [])
            if len(known) < _PLACES_PER_GROUP:
                last = self.last[key]
                known.append(tuple(rank for rank in self.group_of(key).ranks if last.get(rank, 0) < seq))
            yield self._group_place(key, seq, calls, known[-1])

    def _unlogged_places(self) -> Iterator[WaitPlace]:
        """Yield calls that rings do not know: of ranks whose stack waits for peers, and whose own torch says in what."""
        found: dict[tuple[GroupKey, int], list[tuple[int, Op]]] = {}
        come: dict[GroupKey, dict[int, int]] = {}
        for sight in self.scene.ranks:
            for op in sight.recorded:
                last = come.setdefault(self.key(sight.rank, op.group), {})
                last[sight.rank] = max(op.seq, last.get(sight.rank, 0))
            open_ops = [op for op in sight.recorded if op.state not in ("done", "failed")]
            stacks = main_stacks(sight) if open_ops and not any(self._blocked_in(sight)) else ()
            if stacks and not is_waiting(stacks[-1]) and not _in_ddp(stacks[-1].frames):
                open_ops = open_ops if _sleeps_in_operator(sight, stacks) else self._awaited_on_gpu(sight, open_ops)
            if stacks and open_ops:
                first = min(open_ops, key=lambda op: op.at_s)
                found.setdefault((self.key(sight.rank, first.group), first.seq), []).append((sight.rank, first))
        for (key, seq), calls in found.items():
            # Who has no record at all may have come.
            missing = tuple(rank for rank in self.group_of(key).ranks if come[key].get(rank, seq) < seq)
            if missing:
                yield WaitPlace(
                    group=self.group_of(key),
                    op=calls[0][1].op,
                    seq=seq,
                    waiters=tuple(rank for rank, _ in calls),
                    missing=missing,
                    since_s=min(_since(op) for _, op in calls),
                )

    def _awaited_on_gpu(self, sight: RankSight, open_ops: list[Op]) -> list[Op]:
        """Return those of the calls that a rank waits for when it waits for its GPU, as in `.item()`: those on the GPU.

        One whose kernel has not begun waits for what the GPU computes before it: that rank waits for nobody.
        """
        if not any(process.is_rank and process.gpu_wait for process in sight.processes):
            return []
        found = [
            op
            for op in open_ops
            if "nccl" in self.group_of(self.key(sight.rank, op.group)).backends.partition("cuda:")[2]
        ]
        return [] if any(op.on_gpu is False for op in found[:1]) else found

    def is_on_gpu(self, rank: int, op: Op) -> bool:
        """Tell whether a call that has returned is not over: NCCL's return at once, and torch's own record of it goes on."""
        recorded = self.sights[rank].recorded if op.state == "done" else ()
        return any(
            (one.group, one.op, one.numel) == (op.group, op.op, op.numel)
            and one.state not in ("done", "failed")
            and abs(one.at_s - op.at_s) < _SAME_CALL_S
            for one in recorded
        )

    def _group_place(self, key: GroupKey, seq: int, calls: list[tuple[int, Op]], missing: tuple[int, ...]) -> WaitPlace:
        waiters = tuple(rank for rank, _ in calls)
        first = calls[0][1]
        if first.op == BACKWARD and not missing:
            missing = self._lagging(first.group, waiters)
            behind = set(missing)
            calls = [(rank, op) for rank, op in calls if rank not in behind]
            waiters = tuple(rank for rank, _ in calls)
        return WaitPlace(
            group=self.group_of(key),
            op=first.op,
            seq=seq,
            waiters=waiters,
            missing=missing,
            since_s=min((_since(op) for _, op in calls), default=_since(first)),
            until_s=self._until(calls),
        )

    def _lagging(self, group: str, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Return who has begun fewest of the collectives that torch starts itself, where others have begun more."""
        counts = {
            rank: max((op.seq for op in self.sights[rank].recorded if op.group == group), default=0) for rank in ranks
        }
        fewest = min(counts.values(), default=0)
        if fewest == max(counts.values(), default=0):
            return ()
        return tuple(rank for rank in ranks if counts[rank] == fewest)

    def _pair_place(self, key: GroupKey, rank: int, op: Op) -> WaitPlace:
        group = self.group_of(key)
        if op.op == "recv_any":
            missing = tuple(one for one in group.ranks if one != rank)
        else:
            answered = self._p2p_last.get((key, _OPPOSITE[op.op], op.peer, rank, op.tag), 0) >= op.seq
            answered |= op.op == "send" and (key, "recv_any", op.peer, -1, op.tag) in self._p2p_last
            missing = () if answered else (op.peer,)
        return WaitPlace(
            group=group,
            op=op.op,
            seq=op.seq,
            peer=op.peer,
            tag=op.tag,
            waiters=(rank,),
            missing=missing,
            since_s=_since(op),
            until_s=self._until([(rank, op)]),
        )

    def _until(self, calls: Sequence[tuple[int, Op]]) -> float | None:
        """Return when calls of an attempt that is over had all ended, in an error or with their process; None: not known."""
        ends = [op.done_at_s if op.state == "failed" else self.sights[rank].ended_at_s for rank, op in calls]
        return max((end_s or self.scene.at_s for end_s in ends), default=None) if self.takes_failed else None

    def key(self, rank: int, name: str) -> GroupKey:
        """Return the key of the group that a rank calls `name`: two groups without a common member may share a name."""
        found = self._keys.get((rank, name))
        if found is None:
            keys = self._by_name.get(name, ())
            own = (one for one in keys if len(keys) == 1 or rank in self._groups[one].ranks)
            found = next(own, (name, 0, -1, -1))
            if found not in self._groups:
                self._groups[found] = Group(name=name, ranks=tuple(self.sights))
            self._keys[rank, name] = found
        return found

    def sequence(self, rank: int, name: str, op: str) -> GroupKey:
        """Return the key of the calls of a group that are numbered together: backward passes have numbers of their own."""
        key = self.key(rank, name)
        return (f"{key[0]}{_PASSES}", *key[1:]) if op == BACKWARD else key

    def group_of(self, key: GroupKey) -> Group:
        """Return the group of a key."""
        name = key[0]
        return self._groups[(name[: -len(_PASSES)], *key[1:]) if name.endswith(_PASSES) else key]

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups of the program, without `WORLD`."""
        return tuple(group for group in self._groups.values() if group.name != WORLD)

    def label(self, group: Group) -> str:
        """Return what people call a group: `group dp_1`, `group 3 (ranks 0,4)`, `the world`."""
        if group.name == WORLD or (group.desc in _NO_DESC and len(group.ranks) == self.scene.world_size):
            return "the world"
        if group.desc in _NO_DESC:
            return f"group {group.name[:12]} (ranks {span(group.ranks)})"
        if self._desc_uses.get(group.desc, 0) > 1:
            return f"group {group.desc} (ranks {span(group.ranks)})"
        return f"group {group.desc}"

    def what(self, here: WaitPlace) -> str:
        """Name a call: `all_reduce #482 of group dp_1`, `recv #3 from rank 2`, `init_process_group`."""
        if here.op in LIFECYCLE:
            return here.op
        if here.op in P2P:
            toward = "to" if here.op == "send" else "from"
            tag = f" with tag {here.tag}" if here.tag else ""
            return f"{here.op} #{here.seq} {toward} " + ("any rank" if here.peer < 0 else f"rank {here.peer}") + tag
        return f"{op_name(here.op)} #{here.seq} of {self.label(here.group)}"

    def who(self, ranks: tuple[int, ...]) -> str:
        """Name ranks, with their nodes where there are several and it stays short."""
        nodes = self.nodes(ranks)
        if not self.several_nodes or not 0 < len(nodes) <= 2:
            return ranks_words(ranks)
        return f"{ranks_words(ranks)} ({'node' if len(nodes) == 1 else 'nodes'} {' and '.join(nodes)})"

    def nodes(self, ranks: tuple[int, ...]) -> tuple[str, ...]:
        """Return the hosts of ranks that are seen."""
        return tuple(dict.fromkeys(self.sights[rank].node for rank in sorted(ranks) if rank in self.sights))

    def waited_s(self, here: WaitPlace) -> float:
        """For how long the first waiter has been there, or was."""
        return (self.scene.at_s if here.until_s is None else here.until_s) - here.since_s

    def where(self, rank: int) -> str:
        """Return where the rank's main thread is: `data.py:88 get`; empty if unknown."""
        sight = self.sights.get(rank)
        stacks = main_stacks(sight) if sight is not None else ()
        return place(stacks[-1]) if stacks else ""

    def wait_words(self, count: int, waited_s: float) -> str:
        """Say who waits: `8 ranks have been waiting for 6.1 s`."""
        return f"{count_words(count)} {'has' if count == 1 else 'have'} been waiting for {waited_s:.1f} s"


def _in_backward(frames: tuple[Frame, ...]) -> bool:
    """Whether the main thread sits in autograd's engine, whose threads communicate for it."""
    return any("run_backward" in frame.function for frame in frames)


def _in_ddp(frames: tuple[Frame, ...]) -> bool:
    """Whether the innermost frame is of DistributedDataParallel, which starts collectives in C++."""
    return bool(frames) and frames[0].file.endswith("torch/nn/parallel/distributed.py")


def _sleeps_in_operator(sight: RankSight, stacks: Sequence[ThreadStack]) -> bool:
    """Whether a rank is asleep in an operator of torch's, in every sample: in `wait_tensor`, as compiled graphs call it.

    To be asked of ranks that have a collective under way.
    """
    asleep = any(one.is_rank and one.state == "S" and one.cpu < BUSY_CPU for one in sight.processes)
    return asleep and all(stack.frames and stack.frames[0].file.endswith("torch/_ops.py") for stack in stacks)


def _since(op: Op) -> float:
    return op.waiting_at_s if op.waiting_at_s is not None else op.at_s
