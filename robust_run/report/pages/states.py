"""What each rank is to an incident: at fault, perhaps at fault, waiting, at work, gone, unseen. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from robust_run.report.pages.types import IncidentPage, NodePlace
from robust_run.report.types import Incident
from robust_run.tracer.stacks.activity import activity_of
from robust_run.tracer.types import RankSight, Scene, Wait
from robust_run.tracer.words import span

State = Literal["culprit", "suspect", "shown", "failed", "waiting", "working", "ended", "unseen"]

STATE_WORDS: dict[State, str] = {
    "culprit": "at fault",
    "suspect": "may be at fault",
    "shown": "where it showed",
    "failed": "failed after it",
    "waiting": "waiting for a peer",
    "working": "nothing wrong seen",
    "ended": "had ended well",
    "unseen": "not looked at",
}
"""What people read, the worst first."""
WORST_FIRST: tuple[State, ...] = tuple(STATE_WORDS)
#: Ranks of which it is said what they do; of more, only of those at fault.
MOST_DESCRIBED = 2048


#: Clocks that were set between an onset and a look at the ranks.
SET_S = 2.0


def is_older(scene: Scene, incident: Incident) -> bool:
    """Whether ranks were looked at before an incident began: that explains another one. Scenes without a time may be."""
    return bool(scene.at_unix_s) and scene.at_unix_s < incident.onset_s - SET_S


class RankState(msgspec.Struct, frozen=True):
    """A rank in an incident."""

    state: State
    doing: str = ""
    """A line; empty: nothing is known."""


def states_of(page: IncidentPage, waits: Sequence[Wait]) -> dict[int, RankState]:
    """Return the state of every rank of the attempt."""
    verdict = page.incident.verdict
    sights = {sight.rank: sight for sight in page.scene.ranks} if page.scene is not None else {}
    waiting: dict[int, Wait] = {}
    for wait in waits:
        waiting.setdefault(wait.waiter, wait)
    suspects = set(verdict.over_evicted)
    culprits = (set(verdict.ranks) or ranks_on(places_of(page), verdict.nodes)) - suspects
    shown: set[int] = set()
    if page.incident.action.name == "rollback":  # it is the code's fault, wherever it showed
        culprits, shown = set(), culprits
    detailed = len(sights) <= MOST_DESCRIBED
    found = {}
    for rank in range(world_of(page)):
        sight = sights.get(rank)
        state = _state(rank, sight, waiting, culprits, suspects, is_seen=page.scene is not None)
        state = "shown" if rank in shown else state
        described = detailed or state in ("culprit", "suspect", "shown", "failed")
        found[rank] = RankState(state, _doing(sight, waiting.get(rank)) if described or rank in waiting else "")
    return found


def _state(
    rank: int,
    sight: RankSight | None,
    waiting: Mapping[int, Wait],
    culprits: set[int],
    suspects: set[int],
    *,
    is_seen: bool,
) -> State:
    if rank in culprits:
        return "culprit"
    if rank in suspects:
        return "suspect"
    if sight is None:
        return "unseen" if is_seen else "working"
    if sight.exit_code is not None:
        return "failed" if sight.exit_code else "ended"
    return "waiting" if rank in waiting else "working"


def _doing(sight: RankSight | None, wait: Wait | None) -> str:
    if wait is not None:
        whom = f" for {'rank' if len(wait.awaited) == 1 else 'ranks'} {span(wait.awaited)}" if wait.awaited else ""
        return f"has been waiting for {wait.since_s:.1f} s in {wait.what}{whom}"
    if sight is None:
        return ""
    if sight.exit_code is not None:
        return f"ended with exit code {sight.exit_code}"
    return activity_of(sight).reason if sight.processes else ""


def world_of(page: IncidentPage) -> int:
    """Return how many ranks the attempt had."""
    if page.attempt is not None and page.attempt.world_size:
        return page.attempt.world_size
    if page.scene is not None:
        return page.scene.world_size
    return max(page.incident.verdict.ranks, default=-1) + 1


def places_of(page: IncidentPage) -> tuple[NodePlace, ...]:
    """Return the nodes of the attempt; from what was seen where the journal does not say."""
    if page.attempt is not None and page.attempt.places:
        return page.attempt.places
    found: list[NodePlace] = []
    for sight in sorted(page.scene.ranks, key=lambda sight: sight.rank) if page.scene is not None else ():
        last = found[-1] if found else None
        if last is not None and last.node == sight.node and sight.rank == last.first_rank + last.nproc:
            found[-1] = msgspec.structs.replace(last, nproc=last.nproc + 1)
        else:
            found.append(NodePlace(node=sight.node, first_rank=sight.rank, nproc=1))
    return tuple(found)


def ranks_on(places: Sequence[NodePlace], nodes: Sequence[str]) -> set[int]:
    """Return the ranks of some nodes."""
    named = set(nodes)
    return {
        rank
        for place in places
        if place.node in named
        for rank in range(place.first_rank, place.first_rank + place.nproc)
    }


def place_of(places: Sequence[NodePlace], rank: int) -> NodePlace | None:
    """Return where a rank ran."""
    return next((one for one in places if one.first_rank <= rank < one.first_rank + one.nproc), None)


def worst(states: Sequence[State]) -> State:
    """Return the state that matters most among some."""
    return min(states, key=WORST_FIRST.index, default="unseen")
