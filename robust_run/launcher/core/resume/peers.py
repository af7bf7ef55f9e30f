"""Copies in memory: which node's keeper sends copies of what it holds to which other one, and when that is said. Pure.

It is told once an attempt runs, to each node whose own keeper and whose peer's are ready; again when one becomes ready later,
or when it becomes known which nodes share a parallel group. Imported where keepers take copies.
"""

from __future__ import annotations

from collections.abc import Iterable

from robust_run.ckpt_io.memory.placement import peers_of
from robust_run.launcher.core.membership import is_usable, name_of
from robust_run.launcher.core.state import JobState, MemoryAddress
from robust_run.launcher.model.actions import Action, StandIn
from robust_run.launcher.model.resume_events import MemoryGroups, MemoryPeer, MemoryPeers, MemoryReady


def take(state: JobState, event: MemoryReady | MemoryGroups) -> list[Action]:
    """Take in what a keeper says of itself, or how parallel groups lie."""
    if isinstance(event, MemoryGroups):
        return _grouped(state, event)
    if event.node not in state.members:  # a node that was lost says so before it counts as being back
        return []
    if not event.port:
        state.memory_at.pop(event.node, None)
        return []
    at = MemoryAddress(host=event.host, port=event.port, takes_copies=event.takes_copies)
    if state.memory_at.get(event.node) == at:
        return _say(state, (event.node,))
    state.memory_at[event.node] = at
    state.memory_told.pop(event.node, None)  # a new keeper has been told nothing
    if event.node not in state.places:
        state.memory_peers, state.memory_keeps = {}, {}  # a standby may be wanted
    _decide(state)
    sender = state.memory_keeps.get(event.node)
    return _say(state, (event.node, sender) if sender is not None else (event.node,))


def orders(state: JobState) -> list[Action]:
    """Return what is to be told to all nodes of the newest attempt."""
    return _say(state, (each.node for each in state.layout))


def anew(state: JobState) -> list[Action]:
    """Choose again, and return what changes."""
    state.memory_peers, state.memory_keeps = {}, {}
    return orders(state)


def again(state: JobState, node: str) -> list[Action]:
    """Return the same for a node that may have missed it."""
    state.memory_told.pop(node, None)
    return _say(state, (node,))


def stand_ins(state: JobState) -> tuple[StandIn, ...]:
    """Return who has the copies of nodes of the newest attempt that are gone; empty: none is, or somebody's copy is nowhere.

    One that has left was told to, as all may have been at once (a scheduler's SIGTERM): then each writes its own. One that is cut
    off, and not gone, writes nothing at the end of a job unless it is told to end, too: then two nodes say that they have these
    ranks, and the write is given up.
    """
    keeps: dict[str, list[int]] = {}
    for each in state.layout:
        if _is_here(state, each.node):
            continue
        member = state.members.get(each.node)
        if member is None or member.gone != "lost":
            return ()
        told = state.memory_told.get(each.node)
        at = next((node for node in state.places if told is not None and state.memory_at.get(node) == told), "")
        if not _is_here(state, at):
            return ()
        keeps.setdefault(at, []).extend(range(each.first_rank, each.first_rank + each.nproc))
    return tuple(StandIn(node=node, ranks=tuple(ranks)) for node, ranks in keeps.items())


def _is_here(state: JobState, node: str) -> bool:
    member = state.members.get(node)
    return member is not None and member.present


def shape(state: JobState) -> tuple[int, ...]:
    """Return what a world must have in common with another for its parallel groups to lie on the same places."""
    return tuple(each.nproc for each in state.layout)


def _grouped(state: JobState, event: MemoryGroups) -> list[Action]:
    if event.attempt != state.attempt:
        return []
    state.memory_groups, state.memory_shape = event.groups, shape(state)
    return anew(state)


def _decide(state: JobState) -> None:
    """Choose who gets copies of what each node keeps, which is done once as long as nothing new is known."""
    # Before there is a layout nobody is chosen: each of 10,000 nodes that come would have all of them looked at.
    if not state.memory_peers and state.layout:
        groups = map(frozenset, state.memory_groups) if state.memory_shape == shape(state) else ()
        without = {node for node, at in state.memory_at.items() if not at.takes_copies}
        nodes = [(each.node, frozenset((each.group_rank,))) for each in state.layout if each.node not in without]
        there = state.memory_at.keys() - state.places.keys() - without
        standbys = [node for node in state.memory_at if node in there and is_usable(state, node)]
        state.memory_peers = peers_of(nodes, groups, standbys)
        state.memory_keeps = {peer: node for node, peer in state.memory_peers.items()}


def _say(state: JobState, nodes: Iterable[str]) -> list[Action]:
    if state.phase not in ("running", "suspecting") or not state.has_memory:
        return []
    _decide(state)
    told: list[MemoryPeer] = []
    for node in nodes:
        peer = state.memory_peers.get(node, "")
        at = state.memory_at.get(peer)
        if at is None or node not in state.memory_at or state.memory_told.get(node) == at:
            continue
        state.memory_told[node] = at
        told.append(MemoryPeer(node=node, host=at.host, port=at.port, name=name_of(state, peer)))
    return [MemoryPeers(attempt=state.attempt, peers=tuple(told))] if told else []
