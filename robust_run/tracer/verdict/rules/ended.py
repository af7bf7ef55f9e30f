"""Rule 0: processes that are gone, stopped, or whose children died. Needs no waiting calls to be understood.

The first to end by its own fault is the cause of a crash; who only lost a connection to a peer is a victim.
"""

from __future__ import annotations

import math

import msgspec

from robust_run.health import other_size
from robust_run.health.types import Finding
from robust_run.tracer.stacks.activity import activity_of
from robust_run.tracer.types import LIFECYCLE, RankSight, Scene, TraceVerdict
from robust_run.tracer.verdict.draft import draft
from robust_run.tracer.verdict.frozen import freezer_of, frozen_word, thawing
from robust_run.tracer.verdict.graph import dependents
from robust_run.tracer.verdict.picture import Picture, WaitPlace
from robust_run.tracer.verdict.rules.certainty import surely_missing
from robust_run.tracer.verdict.rules.held import all_held_in
from robust_run.tracer.verdict.types import RankPatience
from robust_run.tracer.verdict.wake import wake_clause

#: The rule that names ranks which others have left behind.
LEFTOVER = "leftover"
#: The rule of ranks that are stopped.
STATE = "state"
#: Clocks of nodes and the looks themselves differ by a little.
NEARLY = 0.95
SIGSTOP = 19
#: Killed from outside: by the kernel for memory, by a person, or by the launcher after another rank's failure.
KILLED = frozenset({-9, -15, 137, 143})


def failed(sights: tuple[RankSight, ...]) -> list[RankSight]:
    """Return the ranks that ended with a failure, the first to end first."""
    ended = [sight for sight in sights if sight.exit_code is not None and not sight.is_done]
    return sorted(ended, key=lambda sight: (_ended(sight), sight.rank))


def first_fault(sights: tuple[RankSight, ...]) -> RankSight | None:
    """Return the first rank that failed by itself: not because a peer went away, nor killed after another had failed."""
    for position, sight in enumerate(failed(sights)):
        lost_peer = sight.finding is not None and sight.finding.kind == "peer_connection"
        put_down = position > 0 and sight.exit_code in KILLED and sight.finding is None
        if not lost_peer and not put_down:
            return sight
    if not failed(sights):
        return None
    crashed_at_exit = [sight for sight in sights if sight.had_ended]  # and the others still needed it
    return min(crashed_at_exit, key=_ended, default=None)


def crashed(picture: Picture) -> TraceVerdict | None:
    """Name the rank that failed first, by itself if there is one."""
    fault = first_fault(picture.scene.ranks)
    own = fault is not None
    if fault is None:
        fault = next(iter(failed(picture.scene.ranks)), None)
    if fault is None:
        return None
    if fault.finding is not None and fault.finding.trouble == "mismatch":
        return _called_differently(picture, fault, fault.finding)
    why = f": {fault.finding.line}" if fault.finding is not None else ""
    code = fault.exit_code or 0
    how = f"ended with code {code}" if code > 0 else f"was killed by signal {-code}"
    return draft(
        picture,
        kind="crash",
        ranks=(fault.rank,),
        rule="exited",
        sentence=f"{picture.who((fault.rank,))} {how}{why}",
        confidence="high" if own else "low",
        onset_s=fault.ended_at_s,
        proven=True,
    )


def _called_differently(picture: Picture, fault: RankSight, finding: Finding) -> TraceVerdict:
    """Say that ranks called different collectives, where all that is known is whom gloo ended for it."""
    ranks = (fault.rank,)
    return draft(
        picture,
        kind="mismatch",
        ranks=ranks,
        rule=other_size.RULE,
        sentence=other_size.sentence(picture.who(ranks), 1, f"{finding.line} {finding.message}"),
        confidence="low",
        over_evicted=ranks,
        onset_s=fault.ended_at_s,
    )


def left_early(picture: Picture, older_than_s: float) -> TraceVerdict | None:
    """Name ranks that ended with code 0 although others still wait for them. Of many senders one that is left is enough."""
    gone = {sight.rank for sight in picture.scene.ranks if sight.is_done}
    waited = [
        here
        for here in picture.places
        if here.waiters
        and (gone.issuperset(here.missing) if here.any_sender else not gone.isdisjoint(here.missing))
        and picture.waited_s(here) >= older_than_s
    ]
    if not waited:
        return None
    here = min(waited, key=lambda one: one.since_s)
    ranks = tuple(rank for rank in here.missing if rank in gone)
    if len(ranks) > len(here.waiters) and not set(here.group.ranks) - gone - set(here.waiters):
        return _stayed(picture, here, ranks)
    waiters = dependents(picture, ranks)
    verb = "has" if len(ranks) == 1 else "have"
    left = f"{verb} ended normally (exit code 0)"
    if any(picture.sights[rank].had_ended for rank in ranks):
        left = f"{verb} come to the end of {'its' if len(ranks) == 1 else 'their'} program"
    return draft(
        picture,
        kind="desync",
        ranks=ranks,
        rule="early_exit",
        sentence=f"{picture.who(ranks)} {left}, but {_waiting_for(picture, here, len(waiters))}",
        confidence="high",
        here=here,
        onset_s=min((_ended(picture.sights[rank]) for rank in ranks), default=None),
        proven=_is_left_for_good(picture, here, ranks, older_than_s),
    )


def _is_left_for_good(picture: Picture, here: WaitPlace, gone: tuple[int, ...], older_than_s: float) -> bool:
    """Whether a call can neither be completed nor end in an error any more, which the program may catch: all that have not come
    have ended, so long ago that whoever was connected to them knows, and all others stand in it.

    Who takes leave of a group may do so without the others.
    """
    if here.op in LIFECYCLE or not set(gone).issuperset(here.missing):
        return False
    ended_s = max(_ended(picture.sights[rank]) for rank in gone)
    is_old = picture.takes_failed or picture.scene.at_s - ended_s >= older_than_s
    is_held = picture.takes_failed or all_held_in(picture, here)
    return is_old and is_held and surely_missing(picture, [(here, rank) for rank in gone])


def _stayed(picture: Picture, here: WaitPlace, gone: tuple[int, ...]) -> TraceVerdict:
    """Name who makes a call that most have left the program without."""
    return draft(
        picture,
        kind="desync",
        ranks=here.waiters,
        rule="extra_op",
        sentence=f"{picture.who(here.waiters)} made one call too many: {picture.what(here)}, to which no other rank comes: "
        f"{picture.who(gone)} have ended normally",
        confidence="medium",
        here=here,
    )


def stopped(picture: Picture, patience: RankPatience) -> TraceVerdict | None:
    """Name ranks whose process is stopped (SIGSTOP), frozen or a zombie while others wait. A debugger has a person beside it."""
    ranks = tuple(sight.rank for sight in picture.scene.ranks if _state(sight) in ("T", "Z") or freezer_of(sight))
    others = [
        here
        for here in picture.places
        if picture.waited_s(here) >= patience.after_s and any(rank not in ranks for rank in here.waiters)
    ]
    if not ranks or not others:
        return None
    near = [here for here in others if not set(ranks).isdisjoint((*here.missing, *here.waiters, *here.group.ranks))]
    here = min(near or others, key=lambda one: one.since_s)
    waiters = {rank for one in others for rank in one.waiters if rank not in ranks}
    return draft(
        picture,
        kind="stopped",
        ranks=ranks,
        rule=STATE,
        sentence=f"{picture.who(ranks)} {'is' if len(ranks) == 1 else 'are'} {_stop_word(picture, ranks)}; "
        f"{_waiting_for(picture, here, len(waiters))}",
        confidence="high",
        here=here,
        evidence=thawing(picture.sights[rank] for rank in ranks),
        proven=_is_stopped_alone(picture, ranks),
    )


def _is_stopped_alone(picture: Picture, ranks: tuple[int, ...]) -> bool:
    """Whether one rank of all was stopped by SIGSTOP, and stood still during the whole look.

    A scheduler that suspends a job, a container that is frozen, a debugger or a terminal stop many, or stop in another way.
    """
    if len(ranks) != 1 or picture.scene.silent_nodes or len(picture.sights) < picture.scene.world_size:
        return False
    if any(_state(sight) == "t" or freezer_of(sight) for sight in picture.scene.ranks):
        return False
    # Behind a wrapper the rank may be one of its children.
    others = [one for sight in picture.scene.ranks if sight.rank not in ranks for one in sight.processes]
    if any(one.state in ("T", "t") or one.frozen_by for one in others):
        return False
    return any(
        process.is_rank and process.state == "T" and process.stopped_by == SIGSTOP and process.cpu == 0.0
        for process in picture.sights[ranks[0]].processes
    )


def never_ran(ranks: tuple[int, ...], before: Scene, now: Scene) -> bool:
    """Whether ranks were not given a CPU between two looks: who is stopped and continued in turns is stopped by a throttle."""
    turns = [
        {sight.rank: process.turns for sight in scene.ranks for process in sight.processes if process.is_rank}
        for scene in (before, now)
    ]
    return all(rank in turns[0] and turns[0][rank] == turns[1].get(rank) for rank in ranks)


def leftover(picture: Picture, older_than_s: float) -> TraceVerdict | None:
    """Name the few ranks that still run when the others have ended with code 0; None if there are none, or only just."""
    sights = picture.scene.ranks
    gone = [sight for sight in sights if sight.is_done]
    left = [sight for sight in sights if sight.exit_code is None]
    last_s = max(map(_ended, gone), default=math.inf)
    since_s = picture.scene.at_s - last_s
    if not left or len(left) > len(gone) or len(gone) + len(left) < len(sights) or since_s < older_than_s * NEARLY:
        return None
    ranks = tuple(sight.rank for sight in left)
    activities = [activity_of(sight) for sight in left]
    runs = "still runs" if len(left) == 1 else "still run"
    whose = "it" if len(left) == 1 else f"rank {ranks[0]}"
    ended = "ended with exit code 0"
    if any(sight.had_ended for sight in gone):
        ended = f"had come to the end of {'its' if len(gone) == 1 else 'their'} program"
    found = draft(
        picture,
        kind="hang",
        ranks=ranks,
        rule=LEFTOVER,
        sentence=f"{picture.who(ranks)} {runs} {since_s:.1f} s after {_others(len(gone))} {ended}; "
        f"{_clause(whose, activities[0].reason)}{_chain(left[0])}",
        confidence="high",
        onset_s=last_s,
    )
    return msgspec.structs.replace(found, at_work=all(activity.kind != "idle" for activity in activities))


def _clause(subject: str, reason: str) -> str:
    """Make a sentence of what an activity says of a rank."""
    if reason.startswith("its "):
        return reason
    return f"{subject} {reason}" if reason.startswith(("uses ", "waits ")) else f"{subject} is {reason}"


def _chain(sight: RankSight) -> str:
    clause = wake_clause(sight)
    return f", {clause}" if clause else ""


def _others(count: int) -> str:
    return "the other rank" if count == 1 else f"the {count} others"


def _waiting_for(picture: Picture, here: WaitPlace, count: int) -> str:
    return f"{picture.wait_words(count, picture.waited_s(here))} in {picture.what(here)}"


def _stop_word(picture: Picture, ranks: tuple[int, ...]) -> str:
    files = [freezer_of(picture.sights[rank]) for rank in ranks]
    if all(files):
        return frozen_word(files)
    states = {_state(picture.sights[rank]) for rank in ranks}
    if any(files):
        return "stopped (SIGSTOP) or frozen by a cgroup"
    if states == {"Z"}:
        return "dead, but not reaped by its parent"
    if states == {"t"}:
        return "stopped by a debugger"
    return "stopped (SIGSTOP)"


def _state(sight: RankSight) -> str:
    return next((process.state for process in sight.processes if process.is_rank and sight.exit_code is None), "")


def _ended(sight: RankSight) -> float:
    return sight.ended_at_s if sight.ended_at_s is not None else float("inf")
