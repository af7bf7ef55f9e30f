"""Ranks that wait for ever for locks of their own: a circle of owners, proven by what the kernel and the memory show."""

from __future__ import annotations

from robust_run.tracer.stacks.normal import origin, short_path
from robust_run.tracer.stacks.side_threads import none_may_act
from robust_run.tracer.types import RankSight, TraceVerdict
from robust_run.tracer.verdict.draft import draft
from robust_run.tracer.verdict.graph import dependents, sinks
from robust_run.tracer.verdict.picture import Picture
from robust_run.tracer.verdict.rules.absent import omission
from robust_run.tracer.verdict.wake import wake_clause
from robust_run.tracer.wake.proof import is_proven, lock_circle

#: Of one verdict.
_LINES = 4


def judge(picture: Picture, older_than_s: float) -> TraceVerdict | None:
    """Name ranks that others wait for and whose main thread waits in a circle of locks; None if none does for sure.

    Only the owner of a lock releases it; but another thread may send a signal, start the program anew, or break the rule.
    """
    held = {
        rank: min(places, key=lambda one: one.since_s)
        for rank, places in sinks(picture).items()
        if _is_held(picture.sights.get(rank))
        and any(picture.waited_s(here) >= older_than_s and not here.any_sender for here in places)
    }
    if not held:
        return None
    ranks = tuple(sorted(held))
    here = held[ranks[0]]
    waits = picture.wait_words(len(dependents(picture, ranks)), picture.waited_s(here))
    where = picture.where(ranks[0])
    subject = "it" if len(ranks) == 1 else f"rank {ranks[0]}"
    return draft(
        picture,
        kind="hang",
        ranks=ranks,
        rule="lock_circle",
        sentence=f"{picture.who(ranks)} {omission(picture, here)} ({waits}): nothing can wake {subject}; {subject} "
        f"{f'is in {where}, ' if where else ''}{wake_clause(picture.sights[ranks[0]])}",
        confidence="high",
        here=here,
        evidence=tuple(line for rank in ranks[:_LINES] for line in _side_lines(picture, rank)),
        proven=True,
    )


def _side_lines(picture: Picture, rank: int) -> list[str]:
    """Say where the rank's other threads are that run code of the program: those that hold the locks are among them."""
    process = next(one for one in picture.sights[rank].processes if one.is_rank)
    sides = [stack for stack in process.stacks[-1] if not stack.is_main] if process.stacks else []
    frames = [next((frame for frame in stack.frames if origin(frame) == "user"), None) for stack in sides]
    spots = [f"{short_path(frame.file).rpartition('/')[2]}:{frame.line} {frame.function}" for frame in frames if frame]
    return [f"another thread of rank {rank} is in {spot}" for spot in spots[:_LINES]]


def _is_held(sight: RankSight | None) -> bool:
    if sight is None or sight.wake is None or not is_proven((*sight.wake_before, sight.wake)):
        return False
    circle = lock_circle(sight.wake)
    if circle is None:
        return False
    process = next(one for one in sight.wake.processes if one.pid == circle.pid)
    known, of_python = {thread.tid for thread in circle.threads}, {lock.waiter for lock in process.held_locks}
    # A thread of the circle that waits for a mutex of C may run no Python: without numbers, another may be taken for it.
    return none_may_act(sight, besides=known, unknown=len((known & of_python) - {circle.pid}))
