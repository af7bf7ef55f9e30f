"""Rule 4: all members have come, and nothing moves: it is the communication itself.

Rings cannot tell which link of a collective is dead. What narrows it down: a member that has begun the call but is not waiting
for it; the ranks or the node that all stalled calls have in common; a minority whose stacks differ. Else the whole group is
named, which is ByteRobust's over-eviction (section 5.1).
"""

from __future__ import annotations

from robust_run.tracer.stacks.cluster import clusters, covering_group
from robust_run.tracer.stacks.cluster import suspects as minority
from robust_run.tracer.types import P2P, TraceVerdict
from robust_run.tracer.verdict.draft import Confidence, draft
from robust_run.tracer.verdict.picture import Picture, Place


def stalled(picture: Picture, older_than_s: float) -> list[Place]:
    """Return the calls in which ranks wait though all have come, longest first."""
    found = [
        here for here in picture.places if here.waiters and not here.missing and picture.waited_s(here) >= older_than_s
    ]
    return sorted(found, key=lambda one: one.since_s)


def judge(picture: Picture, places: list[Place]) -> TraceVerdict:
    """Name the ranks between which communication has stopped, as narrowly as the evidence allows."""
    first = places[0]
    members = sorted({rank for here in places for rank in _members(here)})
    ranks, why, confidence = _narrow(picture, places, members)
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


def _members(here: Place) -> tuple[int, ...]:
    return (*here.waiters, here.peer) if here.op in P2P and here.peer >= 0 else here.group.ranks


def _narrow(picture: Picture, places: list[Place], members: list[int]) -> tuple[tuple[int, ...], str, Confidence]:
    """Return the suspects, in what way they stand out, and how sure that is."""
    away = tuple(sorted({rank for here in places for rank in _begun_only(picture, here)}))
    if away and len(away) <= max(1, len(members) // 4):
        return away, "not waiting for it is", "medium"
    if len(places) > 1:
        common = set(_members(places[0])).intersection(*(_members(here) for here in places[1:]))
        if len(common) == 1:
            return tuple(common), "all stalled calls have one member in common,", "medium"
        nodes = set(picture.nodes(_members(places[0]))).intersection(
            *(picture.nodes(_members(here)) for here in places[1:])
        )
        if len(nodes) == 1 and picture.several_nodes:
            on_node = tuple(rank for rank in members if picture.nodes((rank,)) == tuple(nodes))
            return on_node, "all stalled calls have one node in common, with", "low"
    few = minority(clusters([picture.sights[rank] for rank in members if rank in picture.sights]), len(members))
    odd = {rank for one in few for rank in one.ranks}
    group = covering_group(odd, picture.groups) if odd else None
    if group is not None and len(group.ranks) < len(members):
        return group.ranks, "stacks differ within", "low"
    return tuple(members), "it may be any of", "low"


def _begun_only(picture: Picture, here: Place) -> list[int]:
    """Return who has begun the call but does not wait for it, nor is done."""
    if here.op in P2P:
        return []
    calls = picture.collectives.get(picture.key(here.waiters[0], here.group.name), {}).get(here.seq, {})
    return [rank for rank, op in calls.items() if op.state == "issued" and rank not in picture.waiting]
