"""Rule 4: all members have come, and nothing moves: it is the communication itself.

Rings cannot tell which link of a collective is dead. What narrows it down: a member that has begun the call but is not waiting
for it; the ranks or the node that all stalled calls have in common; a minority whose stacks differ. Else the whole group is
named, which is ByteRobust's over-eviction (section 5.1).
"""

from __future__ import annotations

from robust_run.tracer.stacks.activity import BUSY_CPU, FLOWING_BYTES_PER_S, LOOK_S, is_kept_waiting
from robust_run.tracer.stacks.cluster import clusters, covering_group
from robust_run.tracer.stacks.cluster import suspects as minority
from robust_run.tracer.types import BACKWARD, P2P, Group, Op, TraceVerdict
from robust_run.tracer.verdict.draft import Confidence, draft
from robust_run.tracer.verdict.picture import Picture, WaitPlace
from robust_run.tracer.verdict.types import RankPatience


def stalled(picture: Picture, patience: RankPatience) -> list[WaitPlace]:
    """Return the calls in which ranks have waited for too long though all have come, longest first.

    Gigabytes over a slow network take long, and a backward pass computes: where anything may move, there is more time.
    """
    late = complete(picture, patience.working_s)
    return [here for here in complete(picture, patience.spinning_s) if here in late or not may_move(picture, here)]


def complete(picture: Picture, older_than_s: float) -> list[WaitPlace]:
    """Return the calls to which all members came so long ago and in which ranks still wait, longest first."""
    found = [
        here
        for here in picture.places
        if here.waiters and not here.missing and picture.scene.at_s - complete_at_s(picture, here) >= older_than_s
    ]
    return sorted(found, key=lambda one: one.since_s)


def may_move(picture: Picture, here: WaitPlace) -> bool:
    """Whether a member of a call uses CPU or I/O, or is in a backward pass without a collective that is under way."""
    for rank in members(here):
        sight = picture.sights.get(rank)
        if sight is None:
            continue
        if here.op == BACKWARD and not any(op.state in ("entered", "issued", "waiting") for op in sight.recorded):
            return True
        for process in sight.processes:
            flows = process.io_bytes / LOOK_S >= FLOWING_BYTES_PER_S
            if process.is_rank and (process.cpu >= BUSY_CPU or flows or is_kept_waiting(process)):
                return True
    return False


def members(here: WaitPlace) -> tuple[int, ...]:
    """Return who takes part in a call."""
    return (*here.waiters, here.peer) if here.op in P2P and here.peer >= 0 else here.group.ranks


def complete_at_s(picture: Picture, here: WaitPlace) -> float:
    """Return since when all have been there and one has waited: before that nothing could move."""
    if here.inside:
        return here.since_s
    if here.op in P2P:
        sight = picture.sights.get(here.peer)
        ops = sight.trace.ops if sight is not None and sight.trace is not None else ()
        met = (
            (op.peer, op.seq, op.tag, op.group) == (here.waiters[0], here.seq, here.tag, here.group.name) for op in ops
        )
        calls: list[Op] = [
            op for op, is_it in zip(ops, met, strict=True) if is_it and op.op in P2P and op.op != here.op
        ]
    else:
        key = picture.sequence(here.waiters[0], here.group.name, here.op)
        calls = list(picture.collectives.get(key, {}).get(here.seq, {}).values())
    return max([here.since_s, *(op.at_s for op in calls)])


def judge(picture: Picture, places: list[WaitPlace]) -> TraceVerdict:
    """Name the ranks between which communication has stopped, as narrowly as the evidence allows."""
    first = places[0]
    ranks, why, confidence = _narrow(picture, places, sorted({rank for here in places for rank in members(here)}))
    sure = len(ranks) == 1
    waiters = {rank for here in places for rank in here.waiters}
    link = f" between ranks {ranks[0]} and {ranks[1]}" if first.op in P2P and len(ranks) == 2 else ""
    blamed = "" if link else f": {why} {picture.who(ranks)}"
    return draft(
        picture,
        kind="comm_stall",
        ranks=ranks,
        rule="all_arrived",
        sentence=f"communication has stopped{link} in {picture.what(first)}: all have come, but "
        f"{picture.wait_words(len(waiters), picture.waited_s(first))}{blamed}",
        confidence=confidence,
        here=first,
        over_evicted=() if sure else ranks,
    )


def _narrow(picture: Picture, places: list[WaitPlace], everyone: list[int]) -> tuple[tuple[int, ...], str, Confidence]:
    """Return the suspects, in what way they stand out, and how sure that is."""
    away = tuple(sorted({rank for here in places for rank in _begun_only(picture, here)}))
    if away and len(away) <= max(1, len(everyone) // 4):
        return away, "not waiting for it is", "medium"
    if len(places) > 1:
        common = set(members(places[0])).intersection(*(members(here) for here in places[1:]))
        if len(common) == 1:
            return tuple(common), "all stalled calls have one member in common,", "medium"
        nodes = set(picture.nodes(members(places[0]))).intersection(
            *(picture.nodes(members(here)) for here in places[1:])
        )
        if len(nodes) == 1 and picture.several_nodes:
            on_node = tuple(rank for rank in everyone if picture.nodes((rank,)) == tuple(nodes))
            return on_node, "all stalled calls have one node in common, with", "low"
    few = minority(clusters([picture.sights[rank] for rank in everyone if rank in picture.sights]), len(everyone))
    odd = {rank for one in few for rank in one.ranks}
    group = covering_group(odd, picture.groups) if odd else None
    if group is not None and len(group.ranks) < len(everyone) and odd.issubset(group.ranks):
        return group.ranks, "stacks differ within", "low"
    machines = covering_group(odd, _of_machines(picture, everyone)) if odd and picture.several_nodes else None
    if machines is not None and len(machines.ranks) < len(everyone) and odd.issubset(machines.ranks):
        return machines.ranks, "stacks differ within", "low"
    if group is not None and len(group.ranks) < len(everyone):
        return group.ranks, "stacks differ within", "low"
    return tuple(everyone), "it may be any of", "low"


def _of_machines(picture: Picture, everyone: list[int]) -> list[Group]:
    """Return the groups with all ranks of the machines that they are on.

    With tensor parallelism a machine is in several pipelines, and each of these has only some of the ranks of a bad machine.
    """
    on_node: dict[str, list[int]] = {}
    for rank in everyone:
        for name in picture.nodes((rank,)):
            on_node.setdefault(name, []).append(rank)
    found = []
    for group in picture.groups:
        nodes = picture.nodes(group.ranks)
        ranks = tuple(sorted(rank for name in nodes for rank in on_node.get(name, ())))
        found.append(Group(name=group.name, desc=group.desc, ranks=ranks))
    return found


def _begun_only(picture: Picture, here: WaitPlace) -> list[int]:
    """Return who has begun the call but does not wait for it, nor is done."""
    if here.op in P2P or here.inside:
        return []
    calls = picture.collectives.get(picture.sequence(here.waiters[0], here.group.name, here.op), {}).get(here.seq, {})
    return [rank for rank, op in calls.items() if op.state == "issued" and rank not in picture.waiting]
