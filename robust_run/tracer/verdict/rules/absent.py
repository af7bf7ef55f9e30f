"""Rule 2: ranks that never came to where others wait, and that wait for no rank themselves.

Waiting alone proves nothing: rank 0 may be writing a checkpoint. So each such rank gets as much time as what it does deserves:
least if it does nothing at all, more if it spins in one function, much more if it works.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from robust_run.tracer.stacks.activity import activity_of, stuck_loader
from robust_run.tracer.stacks.normal import is_leaving, is_waiting, main_stacks, user_frame
from robust_run.tracer.types import BACKWARD, LIFECYCLE, RankSight, Scene, TraceVerdict
from robust_run.tracer.verdict.draft import Confidence, draft
from robust_run.tracer.verdict.graph import dependents, sinks
from robust_run.tracer.verdict.picture import Picture, WaitPlace
from robust_run.tracer.verdict.types import RankPatience
from robust_run.tracer.verdict.wake import wake_clause
from robust_run.tracer.wake.chain import chain_of

#: Of very many ranks that are waited for, so many are looked at; the first ones say enough.
_LOOKED_AT = 64


class SuspectRank(NamedTuple):
    """A rank that others wait for and that waits for no rank."""

    rank: int
    here: WaitPlace
    """Where it has been missed for longest."""
    waited_s: float
    needed_s: float
    doing: str
    """A clause without the rank."""
    working: bool
    unlogged: bool
    """Its stack says that it waits for peers, its records do not."""
    busy: bool
    """It uses CPU, but does not get from its place."""
    worked_at_s: float
    """When it was last seen at work; minus infinity: never."""

    def is_due(self, now_s: float) -> bool:
        """Whether it has kept others waiting for too long, since it was last seen at work. A busy one is only spoken of."""
        since_s = self.waited_s if self.busy else min(self.waited_s, now_s - self.worked_at_s)
        return since_s >= self.needed_s


def suspects(
    picture: Picture, patience: RankPatience, previous: Scene | None, worked: Mapping[int, float]
) -> list[SuspectRank]:
    """Return all ranks that waits end at, those that most wait for first. `worked`: when they were last seen at work."""
    before = {sight.rank: sight for sight in previous.ranks} if previous is not None else {}
    found: list[SuspectRank] = []
    for rank, places in sinks(picture).items():
        here = min(places, key=lambda one: (one.any_sender, one.since_s))
        found.append(_suspect(picture, rank, here, patience, before.get(rank), worked.get(rank, -math.inf)))
        if len(found) >= _LOOKED_AT:
            break
    if any(one.working for one in found):
        # What a working rank does may hold up others in ways that no record shows: they may poll for a file of its.
        found = [one._replace(needed_s=max(one.needed_s, patience.spinning_s)) for one in found]
    reach = {one.rank: len(dependents(picture, (one.rank,))) for one in found}
    return sorted(found, key=lambda one: (-reach[one.rank], one.rank))


def _suspect(
    picture: Picture, rank: int, here: WaitPlace, patience: RankPatience, before: RankSight | None, worked_at_s: float
) -> SuspectRank:
    now_s = picture.scene.at_s
    sight = picture.sights.get(rank)
    waited_s = picture.waited_s(here)
    if sight is None:
        doing = "on a node that does not answer"
        return SuspectRank(rank, here, waited_s, patience.working_s, doing, True, False, False, worked_at_s)
    stacks = main_stacks(sight)
    unlogged = bool(stacks) and is_waiting(stacks[-1])
    working, needed_s, doing = time_for(sight, patience, now_s, before)
    busy = not working and activity_of(sight).kind == "spinning"
    crowded = len(here.missing) > 2 and len(here.missing) > len(here.waiters) and here.op not in LIFECYCLE
    if crowded or unlogged:
        needed_s = max(needed_s, patience.spinning_s)
    if here.any_sender:
        needed_s = patience.working_s
    return SuspectRank(
        rank, here, waited_s, needed_s, doing, working, unlogged, busy, now_s if working else worked_at_s
    )


def time_for(
    sight: RankSight, patience: RankPatience, now_s: float, before: RankSight | None
) -> tuple[bool, float, str]:
    """Return whether a rank works, how long others may have to wait for it, and what it does."""
    newest_s = newest_event_s(sight)
    if newest_s is not None and now_s - newest_s < patience.after_s:
        return True, patience.working_s, f"still making progress ({now_s - newest_s:.1f} s ago)"
    if not sight.processes:
        return False, patience.spinning_s, "not to be seen"
    activity = activity_of(sight)
    if activity.kind == "working":
        return True, patience.working_s, activity.reason
    if before is not None and _has_moved(before, sight):
        return True, patience.working_s, f"moving ({activity.reason})"
    return False, patience.spinning_s if activity.kind == "spinning" else patience.after_s, activity.reason


def newest_event_s(sight: RankSight) -> float | None:
    """Return when the main thread last did anything that is recorded, NCCL did, or torch saw work of the rank completed."""
    times: list[float] = []
    if sight.flight is not None and sight.flight.moved_at_s is not None:
        times.append(sight.flight.moved_at_s)
    if sight.nccl is not None and sight.nccl.glance.event_s is not None:
        times.append(sight.nccl.glance.event_s + sight.nccl_shift_s)
    if sight.trace is None:
        return max(times, default=None)
    times += [
        time
        for op in sight.trace.ops
        if op.thread == 0
        for time in (op.at_s, op.waiting_at_s, op.done_at_s)
        if time is not None
    ]
    times += [mark.at_s for mark in sight.trace.marks[-1:]]
    return max(times, default=None)


def _has_moved(before: RankSight, now: RankSight) -> bool:
    """Whether the user's function is another one than in the look before."""
    old, new = main_stacks(before), main_stacks(now)
    if not old or not new:
        return False
    then, here = user_frame(old[-1]), user_frame(new[-1])
    return then is not None and here is not None and (then.file, then.function) != (here.file, here.function)


def judge(picture: Picture, found: list[SuspectRank]) -> TraceVerdict | None:
    """Name the ranks that have kept others waiting for too long; None if none has."""
    now_s = picture.scene.at_s
    due = [one for one in found if one.is_due(now_s) or (one.working and one.waited_s >= one.needed_s)]
    if not due:
        return None
    ranks = tuple(one.rank for one in due)
    first = due[0]
    lost = next(
        (child for one in due if one.rank in picture.sights for child in picture.sights[one.rank].lost_children), ""
    )
    rule = "never_joined"
    confidence: Confidence = "high" if all(picture.where(rank) for rank in ranks) else "medium"
    if lost:
        rule = "dataloader"
    elif first.rank not in picture.sights:
        rule, confidence = "silent_node", "low"
    elif all(one.unlogged for one in due):
        rule, confidence = "unlogged_wait", "low"
    elif all(one.busy for one in due):
        rule, confidence = "busy", "medium"
    elif first.working or len(due) > max(2, picture.scene.world_size // 2) or first.here.any_sender:
        confidence = "low"
    found_hang = draft(
        picture,
        kind="hang",
        ranks=ranks,
        rule=rule,
        sentence=_sentence(picture, due, lost),
        confidence=confidence,
        here=first.here,
        over_evicted=ranks if rule == "unlogged_wait" and len(ranks) > 1 else (),
    )
    return msgspec.structs.replace(
        found_hang,
        at_work=all(one.working for one in due),
        for_person=any(_waits_for_person(picture.sights.get(one.rank)) for one in due),
    )


def _waits_for_person(sight: RankSight | None) -> bool:
    chain = chain_of(sight.wake) if sight is not None and sight.wake is not None else None
    return chain is not None and any(waker.kind == "person" for waker in chain.links[-1].wait.wakers)


def _sentence(picture: Picture, due: list[SuspectRank], lost: str) -> str:
    first = due[0]
    ranks = tuple(one.rank for one in due)
    waiters = dependents(picture, ranks)
    waits = picture.wait_words(len(waiters), first.waited_s)
    where = picture.where(first.rank)
    subject = "it" if len(ranks) == 1 else f"rank {first.rank}"
    chain = wake_clause(picture.sights.get(first.rank))
    ends = f"; {subject} is in {where}" if where else f"; {subject} is {first.doing}"
    sight = picture.sights.get(first.rank)
    loader = stuck_loader(sight) if sight is not None and where else ""
    ends += f"; {loader}" if loader else f", {chain}" if chain else ""
    stacks = main_stacks(sight) if sight is not None else ()
    if sight is not None and stacks and is_leaving(stacks[-1]):
        raised = f"raised {sight.finding.line}" if sight.finding is not None else "has come to its end"
        ends = f"; its program {raised}, and a thread that is no daemon keeps the process{f': it {chain}' if chain else ''}"
    if first.busy:
        ends = f"; {first.doing}" if first.doing.startswith("its ") else f"; {subject} {first.doing}"
    if lost:
        ends = f"; it waits for a child that is gone: {lost}" + (f" (in {where})" if where else "")
    return f"{picture.who(ranks)} {omission(picture, first.here)} ({waits}){ends}"


def _has_begun(sight: RankSight | None, here: WaitPlace) -> bool:
    """Whether a rank is in the very pass that others wait in."""
    ops = sight.trace.ops if sight is not None and sight.trace is not None else ()
    return any(op.op == BACKWARD and op.seq == here.seq and op.group == here.group.name for op in ops)


def omission(picture: Picture, here: WaitPlace) -> str:
    """Say what was not done: `never joined all_reduce #482 of group dp_1`."""
    if here.op in LIFECYCLE:
        return f"never came to {here.op}"
    if here.op == BACKWARD and any(_has_begun(picture.sights.get(rank), here) for rank in here.missing):
        return f"did not come through {picture.what(here)}"
    if here.op in ("recv", "recv_any"):
        return f"never sent to rank {here.waiters[0]}, which waits in recv #{here.seq}"
    if here.op == "send":
        return f"never received what rank {here.waiters[0]} sends in send #{here.seq}"
    return f"never joined {picture.what(here)}"
