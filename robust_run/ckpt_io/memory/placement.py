"""Which node keeps the copies of which. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


def peers_of(
    nodes: Sequence[tuple[str, frozenset[int]]], groups: Iterable[frozenset[int]], standbys: Sequence[str] = ()
) -> dict[str, str]:
    """Return for each node the one that keeps its copies; nobody does for one that is not named.

    All nodes send to the one that is as many places further: each keeps exactly one other's. Nodes of a parallel group often
    share a switch or a rack, and wait for each other: as few of them as can be keep each other's copies; else the peer is far
    away.

    Args:
        nodes: In the order of the layout, with their ranks.
        groups: Parallel groups, as ranks. Those of one node, or with a rank on each, say nothing of where copies are better off.
        standbys: Nodes without ranks: one keeps the copies of a node that is alone.
    """
    count = len(nodes)
    if count == 1:
        return {nodes[0][0]: standbys[0]} if standbys else {}
    shared = _shared(nodes, groups)
    shift = min(range(1, count), key=lambda each: (shared[each], abs(2 * each - count), each), default=0)
    return {name: nodes[(at + shift) % count][0] for at, (name, _) in enumerate(nodes)}


def _shared(nodes: Sequence[tuple[str, frozenset[int]]], groups: Iterable[frozenset[int]]) -> Counter[int]:
    """Return for each shift how many nodes would send to one of a group of theirs."""
    place = {rank: at for at, (_, ranks) in enumerate(nodes) for rank in ranks}
    spread = {frozenset(place[rank] for rank in group if rank in place) for group in groups}
    mates: list[set[int]] = [set() for _ in nodes]
    for places in spread:
        if 1 < len(places) < len(nodes):
            for at in places:
                mates[at] |= places
    return Counter((mate - at) % len(nodes) for at, with_ in enumerate(mates) for mate in with_ if mate != at)
