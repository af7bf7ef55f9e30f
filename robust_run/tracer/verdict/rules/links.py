"""Rule 4, where the kernel knows more: data between two nodes is not acknowledged, so it is their network that is dead.

A collective that stalls holds up its whole group, and rings cannot tell where. But only the ends of a dead link have connections
that retransmit. One such link leaves open which end is broken: to take either out of the job heals it, so one end is named, that
without the lowest rank. Links that all have one node in common point at that node.

That a connection is stuck proves nothing by itself, since it may not be needed now. It counts if waits end where it is: in a
call to which all members have come, or at a rank that is blocked in communication of which there is no record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from robust_run.tracer.stacks.normal import is_waiting, main_stacks
from robust_run.tracer.types import RankSight, StuckConnection, TraceVerdict
from robust_run.tracer.verdict.addresses import address_of, nodes_by_address
from robust_run.tracer.verdict.draft import Confidence, draft
from robust_run.tracer.verdict.graph import dependents, sinks
from robust_run.tracer.verdict.picture import Picture, WaitPlace
from robust_run.tracer.verdict.rules.stall import complete, members
from robust_run.tracer.words import bytes_words, count_words

#: A packet may be lost, and its repetition too; the kernel doubles the time between them (RFC 6298).
RETRIES = 2
#: Of one verdict.
_LINES = 16
_PAIRS = 3


class DeadLink(NamedTuple):
    """A stuck connection of a rank to another node of the job."""

    rank: int
    node: str
    peer: str
    """The other node."""
    link: StuckConnection

    @property
    def pair(self) -> tuple[str, str]:
        """The two nodes, in order."""
        return (min(self.node, self.peer), max(self.node, self.peer))


def judge(picture: Picture, older_than_s: float) -> TraceVerdict | None:
    """Name the node whose network is dead, if waits that are older than this end at dead links."""
    dead = _dead_links(picture) if picture.several_nodes else []
    if not dead:
        return None
    by_rank: dict[int, list[DeadLink]] = {}
    for one in dead:
        by_rank.setdefault(one.rank, []).append(one)
    found: dict[DeadLink, None] = {}
    places: list[WaitPlace] = []
    for here in complete(picture, older_than_s):
        ranks = members(here)
        held = [one for rank in ranks for one in by_rank.get(rank, ())]
        nodes = set(picture.nodes(ranks)) if held else set()
        within = [one for one in held if one.peer in nodes]
        if within:
            places.append(here)
            found.update(dict.fromkeys(within))
    for rank, here in _held_up(picture, older_than_s):
        within = [one for one in dead if one.rank == rank or one.peer == picture.sights[rank].node]
        if within:
            places.append(here)
            found.update(dict.fromkeys(within))
    return _verdict(picture, list(found), places) if found else None


def _held_up(picture: Picture, older_than_s: float) -> Iterator[tuple[int, WaitPlace]]:
    """Yield ranks that are missed and are blocked in communication that no ring knows, and where they are missed."""
    for rank, places in sinks(picture).items():
        sight = picture.sights.get(rank)
        stacks = main_stacks(sight) if sight is not None else ()
        here = min(places, key=lambda one: one.since_s)
        if stacks and all(map(is_waiting, stacks)) and picture.waited_s(here) >= older_than_s and not here.any_sender:
            yield rank, here


def _dead_links(picture: Picture) -> list[DeadLink]:
    """Return all stuck connections between nodes of the job. Other services have addresses that no node has."""
    known = nodes_by_address(picture)
    stuck = [(sight, link) for sight in picture.scene.ranks for link in _links(sight)]
    # Where both ends are seen they need no address of a node: it may have several networks.
    ends: dict[tuple[str, str], set[str]] = {}
    for sight, link in stuck:
        ends.setdefault((link.there, link.here), set()).add(sight.node)
    found: dict[DeadLink, None] = {}  # a child holds what its parent had open
    for sight, link in stuck:
        seen = ends.get((link.here, link.there), set())
        peer = next(iter(seen)) if len(seen) == 1 else known.get(address_of(link.there), "")
        if peer and peer != sight.node:
            found[DeadLink(sight.rank, sight.node, peer, link)] = None
    return list(found)


def _links(sight: RankSight) -> Iterator[StuckConnection]:
    for process in sight.processes:
        for link in process.links:
            if link.retries >= RETRIES and link.unsent_bytes > 0 and address_of(link.there):
                yield link


def _verdict(picture: Picture, found: list[DeadLink], places: list[WaitPlace]) -> TraceVerdict:
    here = min(places, key=lambda one: one.since_s)
    pairs = sorted({one.pair for one in found})
    blamed = _blamed(picture, pairs)
    everyone = {rank for one in places for rank in members(one)} | {one.rank for one in found}
    ranks = tuple(rank for rank in sorted(everyone) if set(picture.nodes((rank,))) & set(blamed))
    rule = "dead_link"
    confidence: Confidence = "medium"
    if len(pairs) > 1 and len(blamed) == 1:
        rule = "unreachable_node"
        both_ways = {one.node == blamed[0] for one in found} == {True, False}
        confidence = "high" if both_ways else "medium"
    elif len(pairs) > 1:
        rule, confidence = "dead_links", "low"
    return draft(
        picture,
        kind="comm_stall",
        ranks=ranks,
        rule=rule,
        sentence=_sentence(picture, found, pairs, blamed, places),
        confidence=confidence,
        here=here,
        over_evicted=ranks if rule != "unreachable_node" else (),
        evidence=_lines(found),
    )


def _blamed(picture: Picture, pairs: list[tuple[str, str]]) -> list[str]:
    """Return few nodes without which no pair would be left: again and again the one in most of them."""
    lowest = {name: min(s.rank for s in picture.scene.ranks if s.node == name) for pair in pairs for name in pair}
    blamed: list[str] = []
    while pairs:
        counts = Counter(name for pair in pairs for name in pair)
        top = max(counts, key=lambda name: (counts[name], lowest[name]))
        blamed.append(top)
        pairs = [pair for pair in pairs if top not in pair]
    return blamed


def _sentence(
    picture: Picture, found: list[DeadLink], pairs: list[tuple[str, str]], blamed: list[str], places: list[WaitPlace]
) -> str:
    here = min(places, key=lambda one: one.since_s)
    worst = max(found, key=lambda one: (one.link.retries, one.link.unsent_bytes))
    waiters = {rank for one in places for rank in one.waiters}
    waiters |= dependents(picture, waiters)
    if len(pairs) == 1:
        where = f"the network between {pairs[0][0]} and {pairs[0][1]}"
    elif len(blamed) == 1:
        others = sorted({name for pair in pairs for name in pair} - set(blamed))
        where = f"the network between {blamed[0]} and {_listed(others)}"
    else:
        where = f"the network between {_listed([f'{one} and {other}' for one, other in pairs])}"
    return (
        f"{where} does not carry data: rank {worst.rank} has {bytes_words(worst.link.unsent_bytes)} unacknowledged after "
        f"{worst.link.retries} retransmissions; {picture.wait_words(len(waiters), picture.waited_s(here))} "
        f"in {picture.what(here)}"
    )


def _listed(names: list[str]) -> str:
    if len(names) > _PAIRS:
        return f"{', '.join(names[: _PAIRS - 1])} and {len(names) - _PAIRS + 1} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _lines(found: list[DeadLink]) -> tuple[str, ...]:
    worst_first = sorted(found, key=lambda one: (-one.link.retries, one.rank))
    lines = [
        f"rank {one.rank} ({one.node}) to {one.peer}: {bytes_words(one.link.unsent_bytes)} from {one.link.here} to "
        f"{one.link.there} unacknowledged after {count_words(one.link.retries, 'retransmission')}"
        for one in worst_first[:_LINES]
    ]
    return (*lines, f"and {len(found) - _LINES} more") if len(found) > _LINES else tuple(lines)
