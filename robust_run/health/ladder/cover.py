"""Over-eviction: one of several nodes is at fault, and it is not known which: whom to take out, what becomes of the rest. Pure.

ByteRobust (5.1) evicts the whole parallel group rather than search: six healthy machines that stand by are cheaper than thousands
that wait. That holds as far as other nodes can take over. What is beyond that is weighed by the time that the job loses.
"""

from __future__ import annotations

from typing import Literal

import msgspec

#: What is weighed lies within this time: longer than that nothing is as it was.
HORIZON_S = 24 * 3600.0

Rest = Literal["none", "in_place", "wait", "search"]
"""What becomes of suspects that no other node can take over for. none: there are none. in_place: they go on. wait: they are
evicted too, and the job waits for nodes. search: groups of nodes run the program, to find the one at fault."""


class TimeLost(msgspec.Struct, frozen=True, kw_only=True):
    """What each way costs."""

    find_s: float | None
    """Until a replay on groups of nodes has found the one at fault; None: the program cannot be replayed."""
    standbys_s: float | None
    """Until enough standbys have come; None: none is known to come."""
    mtbf_s: float
    """From one failure of the suspects to the next, if they stay."""
    failure_s: float
    """What one failure costs: the work since the last checkpoint, and the restart."""


class Cover(msgspec.Struct, frozen=True, kw_only=True):
    """What is done about suspects."""

    evict: tuple[str, ...]
    rest: Rest
    why: str
    """For people: how many were covered, and what was weighed for the rest."""


def cover(worst_first: tuple[str, ...], spare: int | None, allowed: int, lost: TimeLost) -> Cover:
    """Return whom to evict of nodes of which one is at fault, `worst_first`, and what becomes of the others.

    `spare`: as many can be taken over for; None: any number. `allowed`: as many may be evicted, whatever it costs to keep them.
    """
    most = max(min(len(worst_first) if spare is None else spare, allowed), 0)
    now, rest = worst_first[:most], worst_first[most:]
    if not rest:
        return Cover(evict=now, rest="none", why=f"other nodes take over for all {len(now)}")
    choices = _choices(lost, len(rest) / len(worst_first), may_wait=len(worst_first) <= allowed)
    best, _ = min(choices, key=lambda each: each[1])
    weighed = ", ".join(f"{WORDS[what]} costs about {_time(seconds)}" for what, seconds in choices)
    why = f"{len(now)} of {len(worst_first)} suspects are covered by other nodes; for the rest: {weighed}"
    return Cover(evict=worst_first if best == "wait" else now, rest=best, why=why)


WORDS: dict[Rest, str] = {
    "in_place": "to go on with them",
    "wait": "to wait for standbys",
    "search": "to search by replay",
}


def _choices(lost: TimeLost, share: float, *, may_wait: bool) -> list[tuple[Rest, float]]:
    """Return what each way costs in seconds; of equal ones the first is taken.

    `share`: how likely the one at fault is among those that are left.
    """
    ends_s = min(HORIZON_S if lost.standbys_s is None else lost.standbys_s, HORIZON_S)
    failures = max(ends_s / max(lost.mtbf_s, 1.0), 1.0 if ends_s else 0.0)
    found: list[tuple[Rest, float]] = [("in_place", share * failures * lost.failure_s)]
    if may_wait and lost.standbys_s is not None:
        found.append(("wait", lost.standbys_s))
    if lost.find_s is not None:
        found.append(("search", lost.find_s))
    return found


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds:.0f} s"
