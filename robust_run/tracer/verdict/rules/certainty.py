"""Whether ranks have not made a call for sure: what rings show may be less than what was done. Pure.

A proof needs it; that a rank is only not seen in a call is enough to say so, and to wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from robust_run.tracer.types import LIFECYCLE, P2P, WENT_ON
from robust_run.tracer.verdict.limits import shortest_s
from robust_run.tracer.verdict.picture import Picture, WaitPlace

#: Who shows fewer calls than this has shown all that it made.
FEWEST_KNOWN = 4
#: Who gives a group less time than this may do so to catch its end, and go on.
CAUGHT_S = 300.0


def in_doubt(picture: Picture) -> str:
    """Return why calls prove nothing in this job, as a clause; "" if nothing speaks against it.

    One rank is enough: who has another number in torch than in robust-run may be any of the others to its peers, and who is not
    recorded may catch the error that a peer's end is to it. A call that failed is no doubt where no rank went on after it.
    """
    if picture.scene.silent_nodes or len(picture.sights) < picture.scene.world_size:
        return "a rank is not seen"
    for sight in picture.scene.ranks:
        if sight.trace is None:
            return f"rank {sight.rank} is not recorded"
        for why in sight.trace.doubts if sight.trace is not None else ():
            if why != WENT_ON or not (picture.takes_failed or sight.exit_code):
                return f"rank {sight.rank} {why}"
    if not picture.takes_failed and shortest_s(picture) < CAUGHT_S:
        return "a rank gave a group a time limit whose end it may catch"
    return ""


def surely_missing(picture: Picture, awaited: Sequence[tuple[WaitPlace, int]]) -> bool:
    """Whether none of these ranks has made the call that others wait for it in."""
    if in_doubt(picture):
        return False
    shared = _names_of_several(picture, {here.group.name for here, _ in awaited})
    return all(here.group.name not in shared and _is_missing(picture, here, rank) for here, rank in awaited)


def _names_of_several(picture: Picture, names: Iterable[str]) -> set[str]:
    """Return the names that groups with a common member have: one was destroyed, and its name given anew."""
    members: dict[str, set[tuple[int, ...]]] = {name: set() for name in names}
    for sight in picture.scene.ranks:
        for group in sight.trace.groups if sight.trace is not None else ():
            if group.name in members:
                members[group.name].add(group.ranks)
    return {
        name
        for name, known in members.items()
        if any(not set(one).isdisjoint(other) for one, other in combinations(known, 2))
    }


def _is_missing(picture: Picture, here: WaitPlace, rank: int) -> bool:
    """Whether a rank has not made a call.

    Of many calls only the newest are known: those of a group that it has not used for long may be none of them, although it made
    them. And there are calls that a ring does not see, but torch's own record: functional collectives.
    """
    sight = picture.sights.get(rank)
    if sight is None or sight.trace is None:
        return False
    # Of a group that it has not listed it may be no member: numbers of ranks are those of another world there.
    if here.op not in LIFECYCLE and not any(
        (group.name, group.ranks) == (here.group.name, here.group.ranks) for group in sight.trace.groups
    ):
        return False
    if here.op in P2P:
        return True
    known = picture.last.get(picture.sequence(rank, here.group.name, here.op), {}).get(rank, 0)
    if not known and len(sight.trace.ops) >= FEWEST_KNOWN:
        return False
    if sight.is_silent:
        return False
    come = _recorded(picture, here, rank)
    return not come or come < max(_recorded(picture, here, waiter) for waiter in here.waiters)


def _recorded(picture: Picture, here: WaitPlace, rank: int) -> int:
    """Return how many calls of a group a rank has made as torch counts them; 0 if its record does not say."""
    sight = picture.sights.get(rank)
    own = [op.seq for op in sight.recorded if op.group == here.group.name] if sight is not None else []
    return max(own, default=0)
