"""Whether ranks that wait are held for good: nobody who could end their waits can get on. Pure.

A call of a rank ends when its peers come, and also when one of them ends, fails, or takes leave of the group: then the rank gets
an error, which its program may catch and go on. So a wait is held only if all that are in the same call are held too, and all
that are in the calls which those wait in: everybody stands in a call with the main thread, asleep, waits in vain, and has no
further thread that may send, abort a group, or end the process. A rank that computes, sleeps or polls is not held: it may come,
and it may leave. What is made known through a store (`init_process_group`, `new_group`) others than ranks may give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from robust_run.tracer.stacks.activity import is_kept_waiting
from robust_run.tracer.stacks.normal import is_waiting, main_stacks
from robust_run.tracer.stacks.side_threads import none_may_act, none_may_end
from robust_run.tracer.types import LIFECYCLE, P2P, RankSight
from robust_run.tracer.verdict.picture import Picture, WaitPlace
from robust_run.tracer.verdict.rules.stall import members


def all_tied(picture: Picture, circle: Iterable[int]) -> bool:
    """Whether no rank of a circle, nor any other that could end one of its waits, can make a call or end one."""
    return _all_are(picture, reach(picture, circle), _is_tied)


def all_held_in(picture: Picture, here: WaitPlace) -> bool:
    """Whether all living members of a group stand in one call, with the main thread, and none can end it or leave."""
    living = [rank for rank in members(here) if not _has_ended(picture.sights.get(rank))]
    return all(
        rank in picture.sights and _is_in(picture, here, rank) and _is_held(picture.sights[rank], none_may_end)
        for rank in living
    )


def _is_in(picture: Picture, here: WaitPlace, rank: int) -> bool:
    """Whether the main thread of a rank is in a call."""
    trace = picture.sights[rank].trace
    key = picture.sequence(here.waiters[0], here.group.name, here.op)
    return trace is not None and any(
        op.thread == 0
        and op.state in picture.blocking
        and op.seq == here.seq
        and picture.sequence(rank, op.group, op.op) == key
        and (here.op not in P2P or (op.op, op.peer, op.tag) == (here.op, here.peer, here.tag))
        for op in trace.ops
    )


def reach(picture: Picture, ranks: Iterable[int]) -> set[int]:
    """Return ranks and all whose deeds may end one of their waits: who is in the same calls, and in the calls of those."""
    found = set(ranks)
    pending, seen = list(found), set()
    while pending:
        for here in picture.waiting.get(pending.pop(), ()):
            if id(here) not in seen:
                seen.add(id(here))
                new = set(members(here)) - found
                found |= new
                pending += new
    return found


def _all_are(picture: Picture, ranks: Iterable[int], is_so: Callable[[RankSight], bool]) -> bool:
    return all(
        rank in picture.sights
        and is_so(picture.sights[rank])
        and any(here.missing for here in picture.waiting.get(rank, ()))
        and not any(here.op in LIFECYCLE for here in picture.waiting.get(rank, ()))
        for rank in ranks
    )


def _is_tied(sight: RankSight) -> bool:
    """Whether the main thread of a rank stands in a call that waits for peers, and no other thread may make another.

    What follows a call that was issued and that nobody waits for (`Work.get_future().then`) may run in a thread of C++.
    """
    is_open = sight.trace is None or any(op.state == "issued" for op in sight.trace.ops)
    return not is_open and _is_held(sight, none_may_act)


def _is_held(sight: RankSight, alone: Callable[[RankSight], bool]) -> bool:
    """Whether the main thread of a living rank stands in a call that waits for peers, asleep, and nothing beside it acts."""
    process = next((one for one in sight.processes if one.is_rank), None)
    if process is None or sight.exit_code is not None or process.state != "S" or process.frozen_by:
        return False
    stacks = main_stacks(sight)
    return bool(stacks) and all(map(is_waiting, stacks)) and not is_kept_waiting(process) and alone(sight)


def _has_ended(sight: RankSight | None) -> bool:
    return sight is not None and sight.exit_code is not None
