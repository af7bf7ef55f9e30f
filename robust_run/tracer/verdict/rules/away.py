"""Of rule 3: most ranks of a circle are in one call of a group, and the rest went on in another one of it, as before.

Calls of a group that are numbered apart (its backward passes) are no mismatch, so this shows as a circle of waits. Nothing is
odd about the call of the few then: what tells them apart is where they did not come, and the majority is right.
"""

from __future__ import annotations

from robust_run.tracer.types import LIFECYCLE, P2P, TraceVerdict
from robust_run.tracer.verdict.draft import draft
from robust_run.tracer.verdict.picture import Picture, WaitPlace
from robust_run.tracer.words import count_words, short_site


def apart(picture: Picture, circle: tuple[int, ...]) -> tuple[WaitPlace, WaitPlace] | None:
    """Return the call that most ranks of a circle are in and that of the others, if both are calls of one group."""
    places = [here for here in picture.places if not set(here.waiters).isdisjoint(circle) and here.missing]
    if len(places) != 2 or places[0].group != places[1].group:
        return None
    if any(here.inside or here.op in P2P or here.op in LIFECYCLE for here in places):
        return None
    most, few = sorted(places, key=lambda here: -len(here.waiters))
    is_all = {*most.waiters, *few.waiters} == set(circle)
    return (most, few) if is_all and len(most.waiters) > len(few.waiters) else None


def judge(picture: Picture, most: WaitPlace, few: WaitPlace, waited: str, *, proven: bool) -> TraceVerdict:
    """Name the few, and the call that they did not come to."""
    they_are = "it is" if len(few.waiters) == 1 else "they are"
    return draft(
        picture,
        kind="desync",
        ranks=few.waiters,
        rule="order",
        sentence=f"{picture.who(few.waiters)} did not come to {picture.what(most)}{_at(picture, most)}, where "
        f"{count_words(len(most.waiters), 'other')} are; {they_are} in {picture.what(few)}{_at(picture, few)}; {waited}",
        confidence="medium",
        here=few,
        proven=proven,
    )


def _at(picture: Picture, here: WaitPlace) -> str:
    rank = here.waiters[0]
    calls = picture.collectives.get(picture.sequence(rank, here.group.name, here.op), {}).get(here.seq, {})
    site = calls[rank].site if rank in calls else ""
    return f" at {short_site(site)}" if site else ""
