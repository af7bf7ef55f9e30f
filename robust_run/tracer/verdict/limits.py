"""When torch itself ends a wait: by the timeout of the process group that a call is made in. Pure.

A rank that sleeps, polls or waits for a service looks exactly like one that is stuck. What tells them apart for sure is the time
limit that the program runs under anyway.

gloo grants that time anew for each message, so where ranks come one after the other a call takes longer than its limit and
succeeds. The last message that can have come to who waits is that of the newest rank to come, so the limit is counted from there:
never too early, and where torch counts from the first one (NCCL's watchdog), torch itself ends the wait before.
"""

from __future__ import annotations

from collections.abc import Iterator

from robust_run.tracer.types import BACKWARD, P2P, Group, RankSight
from robust_run.tracer.verdict.picture import Picture, WaitPlace

#: torch's own limit for all backends but NCCL, taken where a group's is not known: never less than what the program has.
DEFAULT_LIMIT_S = 1800.0


def expires_s(picture: Picture) -> float | None:
    """Return when the first of all waits reaches its limit, on the scene's clock; None if no rank waits."""
    return min((place_expires_s(picture, here) for here in picture.places if here.waiters), default=None)


def shortest_s(picture: Picture) -> float:
    """Return the shortest limit of the groups in whose calls ranks wait; torch's own where nobody waits."""
    return min(
        (_limit_s(picture.sights.get(rank), here) for here in picture.places for rank in here.waiters),
        default=DEFAULT_LIMIT_S,
    )


def limit_s(picture: Picture, here: WaitPlace) -> float:
    """Return the limit of those that wait in one call, the shortest; torch's own where it is not known."""
    return min((_limit_s(picture.sights.get(rank), here) for rank in here.waiters), default=DEFAULT_LIMIT_S)


def place_expires_s(picture: Picture, here: WaitPlace) -> float:
    """Return when a wait in one call reaches its limit, on the scene's clock."""
    limits = {_limit_s(picture.sights.get(rank), here) for rank in here.waiters}
    begun_s = max([here.since_s, *_arrivals_s(picture, here)])
    if here.op == BACKWARD:  # a backward pass computes first; the limit is that of the collectives in it
        begun_s = max([begun_s, *(_newest_s(picture.sights.get(rank)) for rank in here.group.ranks)])
    return begun_s + min(limits)


def _arrivals_s(picture: Picture, here: WaitPlace) -> Iterator[float]:
    """Yield when ranks came to a collective, also those that are done with it: a gather lets them go once they have sent.

    Who is further, and of whom the call itself is not known any more, came before the first one that is.
    """
    if here.op in P2P or here.inside:
        return
    key = picture.sequence(here.waiters[0], here.group.name, here.op)
    calls = picture.collectives.get(key, {})
    come = calls.get(here.seq, {})
    yield from (op.at_s for op in come.values())
    further = {rank for rank, last in picture.last.get(key, {}).items() if last > here.seq} - come.keys()
    for seq in sorted(calls) if further else ():
        if seq > here.seq:
            yield from (calls[seq][rank].at_s for rank in further & calls[seq].keys())
            further -= calls[seq].keys()


def _limit_s(sight: RankSight | None, here: WaitPlace) -> float:
    """Return the limit that a waiting rank has written down for the group of a call."""
    groups = sight.trace.groups if sight is not None and sight.trace is not None else ()
    same = (group for group in groups if group.limit_s > 0 and _are_one(group, here.group))
    return next((group.limit_s for group in same), DEFAULT_LIMIT_S)


def _are_one(one: Group, other: Group) -> bool:
    """Whether two ranks mean the same group. Lists of 10,000 ranks are not compared element by element, for each of them."""
    ends = [(group.name, len(group.ranks), group.ranks[:1], group.ranks[-1:]) for group in (one, other)]
    return ends[0] == ends[1]


def _newest_s(sight: RankSight | None) -> float:
    """Return when the newest collective began that torch's own records know of; minus infinity without one.

    Also one that is done: gloo has few threads and begins to count when one is free for a call, so of a member that comes late to
    one collective after the other each gives those that wait their time anew.
    """
    return max((op.at_s for op in sight.recorded), default=float("-inf")) if sight is not None else float("-inf")
