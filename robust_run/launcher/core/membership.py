"""Membership: which nodes make up the next attempt, and in which order. Pure.

Ranks stay where they are as far as that is possible: a node that was part of the attempt before keeps its place, because its
page cache and its copies of checkpoints are worth something, and a newcomer takes the place of the one that went.
"""

from __future__ import annotations

import re
import sys
from typing import Literal

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.core.state import CorePolicy, Eviction, JobState, Member
from robust_run.launcher.model.actions import HostEvicted
from robust_run.launcher.model.job import Placement
from robust_run.launcher.model.node_events import NodeEvicted

#: Whom to take first: who was checked and is well, before who was not, before who is not.
CHECKED = ("admitted", "", "refused")


class Gathering(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with the nodes that are there."""

    decision: Literal["start", "wait", "give_up"]
    layout: tuple[Placement, ...] = ()
    until_s: float | None = None
    """When to look again if no node joins meanwhile."""
    reason: str = ""
    """Why it gives up, or whom it waits for, as a sentence without a subject."""
    exit_code: int = 1
    """If it gives up."""


def usable(state: JobState) -> list[Member]:
    """Return the nodes that may be used now, in the order they joined."""
    return [member for member in state.members.values() if counts(state, member)]


def counts(state: JobState, member: Member) -> bool:
    """Whether a member is one of `JobState.usable`."""
    return member.present and member.info.name not in state.evicted and member.info.id not in state.told


def gather(policy: CorePolicy, state: JobState, now_s: float) -> Gathering:
    """Return whether the next attempt can start, with which nodes, or how long to wait.

    The first attempt waits for `most` nodes, once `fewest` are there only for the last call. A later one takes what there
    is, after `wait_for_nodes_s` if the user set it, and waits where there are fewer than `fewest`.
    """
    if state.usable >= policy.most:
        return Gathering(decision="start", layout=arrange(usable(state), state.layout, policy.most))
    since_s = now_s if state.gathering_since_s is None else state.gathering_since_s
    if state.usable >= fewest_of(policy, state):
        until_s = _enough_until(policy, state, since_s, now_s)
        if now_s >= until_s:
            return Gathering(decision="start", layout=arrange(usable(state), state.layout, policy.most))
        return Gathering(decision="wait", until_s=until_s, reason=_waits(policy, state, until_s - now_s))
    if not state.layout and 0 < policy.exist < fewest_of(policy, state) + len(state.unable):
        return Gathering(decision="give_up", reason=_cannot_begin(policy, state), exit_code=UserError.exit_code)
    patience_s = policy.join_timeout_s
    if state.layout and policy.wait_for_nodes_s is not None:
        patience_s = policy.wait_for_nodes_s
    until_s = since_s + patience_s
    if now_s >= until_s:
        return Gathering(decision="give_up", reason=_too_few(policy, state, patience_s))
    return Gathering(decision="wait", until_s=until_s, reason=_waits(policy, state, until_s - now_s))


def fewest_of(policy: CorePolicy, state: JobState) -> int:
    """Return how many nodes the next attempt needs: the first may need more than those that follow."""
    return policy.fewest if state.layout else max(policy.fewest, state.first_needs)


def _enough_until(policy: CorePolicy, state: JobState, since_s: float, now_s: float) -> float:
    if state.layout:
        shrinks = state.usable < len(state.layout)
        return since_s + (policy.wait_for_nodes_s or 0.0) if shrinks else now_s
    enough_since_s = now_s if state.enough_since_s is None else state.enough_since_s
    return enough_since_s + policy.last_call_s


def arrange(there: list[Member], before: tuple[Placement, ...], most: int) -> tuple[Placement, ...]:
    """Return the world of at most `most` nodes: places are kept, gaps filled by the longest waiting, then closed.

    Who was set aside keeps no place, and is taken last.
    """
    places = {placement.node: placement.group_rank for placement in before}
    survivors = sorted((m for m in there if m.info.id in places and not m.aside), key=lambda m: places[m.info.id])
    newcomers = [m for m in there if m.info.id not in places or m.aside]
    newcomers = sorted(newcomers, key=_first_order if not before else _next_order)
    chosen = survivors[:most]
    free = iter(newcomers[: most - len(chosen)])
    by_place: dict[int, Member] = {places[m.info.id]: m for m in chosen}
    for place in range(max(most, len(before))):
        if place not in by_place and (member := next(free, None)) is not None:
            by_place[place] = member
    layout: list[Placement] = []
    first_rank = 0
    for group_rank, place in enumerate(sorted(by_place)):
        info = by_place[place].info
        layout.append(Placement(node=info.id, group_rank=group_rank, first_rank=first_rank, nproc=info.nproc))
        first_rank += info.nproc
    return tuple(layout)


def _next_order(member: Member) -> tuple[bool, int]:
    return bool(member.aside), CHECKED.index(member.checked)


def _first_order(member: Member) -> tuple[object, ...]:
    """Order of the first attempt: as told by --node-rank, then by host name as people read it (gpu-2 before gpu-10)."""
    rank = member.info.node_rank
    name = tuple(_part_order(part) for part in re.split(r"([0-9]+)", member.info.name))
    return (rank is None, rank or 0, name, member.joined)


def _part_order(part: str) -> tuple[int, str]:
    """Numbers by their size, of any length, before text."""
    digits = part.lstrip("0")
    return (len(digits), digits) if part.isdecimal() and part.isascii() else (sys.maxsize, part)


def _waits(policy: CorePolicy, state: JobState, left_s: float) -> str:
    here = state.usable
    return f"{here} of {wanted(policy, state)} nodes are here; waiting up to {left_s:.0f} s for more"


def wanted(policy: CorePolicy, state: JobState) -> int:
    """Return the number of nodes that are waited for."""
    fewest = fewest_of(policy, state)
    return fewest if state.usable < fewest else policy.most


def _too_few(policy: CorePolicy, state: JobState, patience_s: float) -> str:
    there = usable(state)
    names = ", ".join(member.info.name for member in there[:8]) + (", ..." if len(there) > 8 else "")
    fewest = fewest_of(policy, state)
    have = f"only {len(there)} of {fewest} nodes ({names})" if there else f"none of {fewest} nodes"
    unusable = (m for m in state.members.values() if not counts(state, m))
    gone = [f"{m.info.name} {m.gone or 'evicted'}" for m in unusable][-8:]
    missing = f"; {', '.join(gone)}" if gone else ""
    return f"{have} came within {patience_s:g} s{missing}"


def _cannot_begin(policy: CorePolicy, state: JobState) -> str:
    why = "; ".join(f"{name}: {reason}" for name, reason in list(state.unable.items())[:4])
    return f"{len(state.unable)} of {policy.exist} nodes cannot start the job, which needs {policy.fewest} ({why})"


def recount(state: JobState) -> None:
    """Count the usable members anew, after a change that is rare."""
    state.usable = sum(counts(state, member) for member in state.members.values())


def evict(state: JobState, name: str, why: Eviction, *, listed: bool = False) -> list[HostEvicted]:
    """Take a host out, the only way there is; return what goes on record, nothing if it is out already.

    What follows an eviction outside of the job (Slurm's drain, its exclusion at a requeue) reads that one line, whoever evicts.
    """
    if name in state.evicted:
        return []
    state.evicted[name] = why
    recount(state)
    return [HostEvicted(name=name, reason=why.reason, by=why.by, at_unix_s=why.at_unix_s, listed=listed)]


def put_out(state: JobState, event: NodeEvicted) -> list[HostEvicted]:
    """Take out the host that an event names; see `evict`."""
    why = Eviction(reason=event.reason, by=event.by, at_unix_s=event.at_unix_s)
    return evict(state, event.name, why, listed=event.listed)


def let_in(state: JobState, name: str) -> bool:
    """Let a host be used again; False: it was not out."""
    for member in state.members.values():
        if member.info.name == name:
            member.aside = ""
    if state.evicted.pop(name, None) is None:
        return False
    recount(state)
    if state.ladder_state:
        from robust_run.launcher.core.ladder import ladder_state

        ladder_state.forget(state, name)
    if state.health.recent or state.health.evicted:
        from robust_run.launcher.core.diagnosis import health_record

        health_record.forget(state, name)
    return True


def evicted_text(state: JobState, name: str) -> str:
    """Return what an evicted host is told."""
    eviction = state.evicted[name]
    why = f": {eviction.reason}" if eviction.reason else ""
    return (
        f"{name} is evicted from the job (by {eviction.by}{why}); it waits unused; robust readmit {name} takes it back"
    )


def is_usable(state: JobState, node: str) -> bool:
    """Whether an agent is there, was not told to leave, and its host is not evicted."""
    member = state.members.get(node)
    return member is not None and counts(state, member)


def placement_of(state: JobState, node: str) -> Placement | None:
    """Return the place of a node in the newest attempt, None if it has none."""
    place = state.places.get(node)
    return None if place is None else state.layout[place]


def name_of(state: JobState, node: str) -> str:
    """Return the host name of an agent."""
    member = state.members.get(node)
    return member.info.name if member is not None else node


def node_of_rank(state: JobState, rank: int) -> str:
    """Return the host name of a rank of the newest attempt, empty if it has none."""
    low, high = 0, len(state.layout)
    while low < high:
        middle = (low + high) // 2
        placement = state.layout[middle]
        if rank < placement.first_rank:
            high = middle
        elif rank >= placement.first_rank + placement.nproc:
            low = middle + 1
        else:
            return name_of(state, placement.node)
    return ""


def ranks_of(placement: Placement) -> range:
    """Return the ranks of a placement."""
    return range(placement.first_rank, placement.first_rank + placement.nproc)


def awaits_store(state: JobState, attempt: int) -> bool:
    """Whether a store of this attempt is still to be opened."""
    if state.phase == "replaying":
        from robust_run.launcher.core.ladder.ladder_state import ladder_state_of

        run = ladder_state_of(state).replay
        return run is not None and any(each.attempt == attempt and not each.outcome for each in run.runs)
    return state.phase == "opening" and attempt == state.attempt


def awaits_resume(state: JobState, attempt: int) -> bool:
    """Whether it is still to be chosen where this attempt starts from."""
    if state.phase == "replaying":
        from robust_run.launcher.core.ladder.ladder_state import ladder_state_of

        run = ladder_state_of(state).replay
        runs = run.runs if run is not None else ()
        return any(each.attempt == attempt and each.looks and each.resume is None and not each.outcome for each in runs)
    is_asked = bool(state.looks_in) or state.asks_memory
    return state.phase == "opening" and attempt == state.attempt and is_asked and state.resume is None
