"""Who shares blocks of the job's image with whom before, and beside, an attempt. Pure; only where nodes give blocks.

Nodes that wait for an attempt fetch ahead already, and with an order to start they would learn of each other too late: each would
have taken all of the image from its origin. Those beside an attempt own nothing, and get all from the nodes in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from robust_run.launcher.core.membership import counts
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.actions import ShareBlocks
from robust_run.launcher.model.job import NodeInfo

#: All are told of each node that joins while they are so few; then each time they have doubled, up to so many.
MOST_AT_EACH, MOST_EARLY = 16, 1024


def joined(state: JobState, node: str) -> list[ShareBlocks]:
    """Tell a node that joins whom to share with, and those that wait with it of the node."""
    member = state.members.get(node)
    if member is None or not member.info.blocks or not counts(state, member):
        return []
    if state.phase not in {"new", "gathering"}:
        is_last = state.phase == "opening" and node in state.places and len(state.layout) <= MOST_EARLY
        return _told(state, tuple(state.places) if is_last else (node,), _of_attempt(state))
    count = len(state.members)
    whole = 1 << (min(count, MOST_EARLY).bit_length() - 1)
    if count <= MOST_AT_EACH or count == whole:
        return waiting(state)
    return _told(state, (node,), tuple(each.blocks for each in islice(_giving(state), whole)))


def waiting(state: JobState) -> list[ShareBlocks]:
    """Tell nodes that wait for an attempt of each other; the first of them, where there are many."""
    giving = list(islice(_giving(state), MOST_EARLY))
    return _told(state, tuple(each.id for each in giving), tuple(each.blocks for each in giving))


def started(state: JobState) -> list[ShareBlocks]:
    """Tell the nodes beside an attempt who is in it."""
    beside = tuple(each.id for each in _giving(state) if each.id not in state.places)
    return _told(state, beside, _of_attempt(state))


def _giving(state: JobState) -> Iterator[NodeInfo]:
    """Return the nodes that can be used and give blocks, in the order in which they joined."""
    return (each.info for each in state.members.values() if each.info.blocks and counts(state, each))


def _of_attempt(state: JobState) -> tuple[str, ...]:
    return tuple(filter(None, (state.members[each.node].info.blocks for each in state.layout)))


def _told(state: JobState, nodes: tuple[str, ...], peers: tuple[str, ...]) -> list[ShareBlocks]:
    alone = len(nodes) == 1 and peers == (state.members[nodes[0]].info.blocks,)
    return [ShareBlocks(nodes=nodes, peers=peers)] if nodes and peers and not alone else []
