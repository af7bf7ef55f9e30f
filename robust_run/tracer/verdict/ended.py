"""Rule 0: processes that are gone, stopped, or whose children died. Needs no waiting calls to be understood.

The first to end by its own fault is the cause of a crash; who only lost a connection to a peer is a victim.
"""

from __future__ import annotations

from robust_run.tracer.types import RankSight, TraceVerdict
from robust_run.tracer.verdict.draft import draft
from robust_run.tracer.verdict.graph import dependents
from robust_run.tracer.verdict.patience import Patience
from robust_run.tracer.verdict.picture import Picture, Place


def first_fault(sights: tuple[RankSight, ...]) -> RankSight | None:
    """Return the first rank that failed by itself: not with code 0, and not because a peer went away."""
    failed = [
        sight
        for sight in sights
        if sight.exit_code not in (None, 0) and not (sight.finding and sight.finding.kind == "peer_connection")
    ]
    return min(failed, key=lambda sight: (_ended(sight), sight.rank), default=None)


def crashed(picture: Picture) -> TraceVerdict | None:
    """Name the rank that failed first, if one has."""
    fault = first_fault(picture.scene.ranks)
    if fault is None:
        return None
    why = f": {fault.finding.line}" if fault.finding is not None else ""
    how = (
        f"ended with code {fault.exit_code}"
        if (fault.exit_code or 0) > 0
        else f"was killed by signal {-(fault.exit_code or 0)}"
    )
    return draft(
        picture,
        kind="crash",
        ranks=(fault.rank,),
        rule="exited",
        sentence=f"{picture.who((fault.rank,))} {how}{why}",
        confidence="high",
        onset_s=fault.ended_at_s,
    )


def left_early(picture: Picture, older_than_s: float) -> TraceVerdict | None:
    """Name ranks that ended with code 0 although others still wait for them."""
    gone = {sight.rank for sight in picture.scene.ranks if sight.exit_code == 0}
    waited = [
        here
        for here in picture.places
        if here.waiters and not gone.isdisjoint(here.missing) and picture.waited_s(here) >= older_than_s
    ]
    if not waited:
        return None
    here = min(waited, key=lambda one: one.since_s)
    ranks = tuple(rank for rank in here.missing if rank in gone)
    waiters = dependents(picture, ranks)
    left = "has ended normally" if len(ranks) == 1 else "have ended normally"
    return draft(
        picture,
        kind="desync",
        ranks=ranks,
        rule="early_exit",
        sentence=f"{picture.who(ranks)} {left} (exit code 0), but {_waiting_for(picture, here, len(waiters))}",
        confidence="high",
        here=here,
        onset_s=min((_ended(picture.sights[rank]) for rank in ranks), default=None),
    )


def stopped(picture: Picture, patience: Patience) -> TraceVerdict | None:
    """Name ranks whose process is stopped (SIGSTOP, a debugger) or a zombie while others wait."""
    ranks = tuple(sight.rank for sight in picture.scene.ranks if _state(sight) in ("T", "t", "Z"))
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
        rule="state",
        sentence=f"{picture.who(ranks)} {'is' if len(ranks) == 1 else 'are'} {_stop_word(picture, ranks)}; "
        f"{_waiting_for(picture, here, len(waiters))}",
        confidence="high",
        here=here,
    )


def _waiting_for(picture: Picture, here: Place, count: int) -> str:
    return f"{picture.wait_words(count, picture.waited_s(here))} in {picture.what(here)}"


def _stop_word(picture: Picture, ranks: tuple[int, ...]) -> str:
    states = {_state(picture.sights[rank]) for rank in ranks}
    if states == {"Z"}:
        return "dead, but nobody has collected its process"
    if states == {"t"}:
        return "stopped by a debugger"
    return "stopped (SIGSTOP)"


def _state(sight: RankSight) -> str:
    return next((process.state for process in sight.processes if process.is_rank and sight.exit_code is None), "")


def _ended(sight: RankSight) -> float:
    return sight.ended_at_s if sight.ended_at_s is not None else float("inf")
