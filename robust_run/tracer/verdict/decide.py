"""The order in which rules are asked, while an attempt runs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from robust_run.tracer.ras.rules import second_opinion
from robust_run.tracer.stacks.activity import LOOK_S
from robust_run.tracer.types import Scene, SceneLook, TraceVerdict
from robust_run.tracer.verdict import after, graph
from robust_run.tracer.verdict.draft import draft
from robust_run.tracer.verdict.picture import Picture
from robust_run.tracer.verdict.quiet import with_quiet
from robust_run.tracer.verdict.rules import absent, ended, lag, links, locks, nccl, order, pairs, signatures, stall
from robust_run.tracer.verdict.types import RankPatience

#: Faults inside NCCL that a GPU which computes something else first does not look like.
OF_NETWORKS = frozenset({"network", "proxy"})
#: Rules whose proof has to be seen twice, so far from each other: a circle of ranks by what all their threads are in, and a rank
#: that is stopped, which others wait for since longer than it may have been.
TWICE_S = {"order": 2.0, "cycle": 2.0, "tag": 2.0, ended.STATE: 5.0}
#: Looks that are further apart than this were parted by something else: a starved machine, a job that was suspended.
LATEST_S = 20.0


def look(
    scene: Scene, patience: RankPatience, *, previous: Scene | None = None, worked: Mapping[int, float] | None = None
) -> SceneLook:
    """Judge a scene in which a rank has waited for long: a verdict, or when to look again and why, or neither.

    Neither means that the suspicion is lifted: no rank waits for long any more. `previous` is the scene of the look before,
    `worked` what that said of ranks at work: patience with a rank begins anew when it stops working.
    """
    found = _look(scene, patience, previous, worked or {})
    if found.verdict is None:
        return found
    return msgspec.structs.replace(found, verdict=second_opinion(found.verdict, scene))


def look_at_leftovers(scene: Scene, older_than_s: float) -> SceneLook:
    """Judge a scene in which most ranks have ended with exit code 0: which still run, and where they are."""
    verdict = None if ended.failed(scene.ranks) else ended.leftover(Picture(scene), older_than_s)
    return SceneLook(verdict=verdict, reason="no rank is left behind")


def _look(scene: Scene, patience: RankPatience, previous: Scene | None, worked: Mapping[int, float]) -> SceneLook:
    picture = Picture(scene)
    if ended.failed(scene.ranks):
        return SceneLook(verdict=after.proven(scene) or ended.crashed(picture))
    longest_s = max((picture.waited_s(here) for here in picture.places if here.waiters), default=0.0)
    needed_s = patience.after_s * ended.NEARLY
    if longest_s < needed_s:
        slow = nccl.slow(picture)
        behind = lag.look(picture, patience, previous, worked) if slow is None else None
        return behind or SceneLook(verdict=slow, reason="no rank waits for long any more")
    verdict = _definite(picture, patience, needed_s)
    if verdict is not None and verdict.proven and verdict.rule in TWICE_S:
        if previous is None:
            return SceneLook(again_s=TWICE_S[verdict.rule] - LOOK_S, reason=verdict.sentence)
        verdict = msgspec.structs.replace(verdict, proven=_stood_before(verdict, previous, scene, patience))
    if verdict is not None:
        return SceneLook(verdict=nccl.attested(picture, verdict, proven=True))
    return _patient(picture, patience, previous, longest_s, worked)


def _stood_before(verdict: TraceVerdict, previous: Scene, scene: Scene, patience: RankPatience) -> bool:
    """Whether the look before said the same, is old enough, and not too old."""
    before = _definite(Picture(previous), patience, 0.0)
    is_same = before is not None and before.proven and (before.rule, before.ranks) == (verdict.rule, verdict.ranks)
    is_same = is_same and (verdict.rule != ended.STATE or ended.never_ran(verdict.ranks, previous, scene))
    return is_same and TWICE_S[verdict.rule] <= scene.at_s - previous.at_s <= LATEST_S


def _definite(picture: Picture, patience: RankPatience, needed_s: float) -> TraceVerdict | None:
    """Ask the rules whose evidence no patience can change."""
    verdict = ended.stopped(picture, patience) or ended.left_early(picture, needed_s)
    if verdict is not None:
        return verdict
    mismatch = signatures.earliest_mismatch(picture, needed_s)
    if mismatch is not None:
        return signatures.judge(picture, mismatch)
    verdict = links.judge(picture, needed_s)
    if verdict is not None:
        return with_quiet(picture, verdict, stall.complete(picture, needed_s))
    verdict = locks.judge(picture, needed_s) or pairs.judge(picture, needed_s)
    if verdict is not None:
        return verdict
    circle = graph.deadlocked(picture, needed_s, nccl.may_circle(picture))
    return order.judge(picture, circle) if circle else None


def _patient(
    picture: Picture, patience: RankPatience, previous: Scene | None, longest_s: float, worked: Mapping[int, float]
) -> SceneLook:
    """Ask the rules that depend on what the missing ranks do."""
    found = absent.suspects(picture, patience, previous, worked)
    inside = nccl.leading(picture, patience, previous, worked)
    missed = tuple(one.rank for one in found if not one.here.inside and one.is_due(picture.scene.at_s))
    if inside is not None and inside.is_sure and inside.is_due:
        return SceneLook(verdict=_inside_nccl(picture, inside, missed))
    verdict = absent.judge(picture, found)
    if verdict is not None:
        return SceneLook(verdict=nccl.attested(picture, verdict, proven=False))
    if inside is not None and inside.is_due:
        return SceneLook(verdict=_inside_nccl(picture, inside, missed))
    stalls = stall.stalled(picture, patience) if inside is None or not inside.fault.ranks else []
    if stalls:
        return SceneLook(verdict=with_quiet(picture, stall.judge(picture, stalls), stalls))
    if inside is not None and inside.working:
        waited = picture.wait_words(len(inside.fault.waiting), inside.waited_s)
        seen = tuple((rank, picture.scene.at_s) for rank in inside.working)
        reason = f"{waited} for {picture.who(inside.working)}: {inside.doing}"
        return SceneLook(again_s=patience.look_again_s * 2, reason=reason, worked=seen)
    if longest_s >= patience.working_s:
        return SceneLook(verdict=_unknown(picture, longest_s))
    if found:
        most = max(found, key=lambda one: one.waited_s)
        waiters = {rank for here in picture.places for rank in here.waiters}
        reason = f"{picture.wait_words(len(waiters), longest_s)} for {picture.who((most.rank,))}: {most.doing}"
        seen = tuple((one.rank, one.worked_at_s) for one in found if math.isfinite(one.worked_at_s))
        return SceneLook(again_s=patience.look_again_s * (2 if most.working else 1), reason=reason, worked=seen)
    return SceneLook(again_s=patience.look_again_s, reason="all have come, communication may still be going on")


def _inside_nccl(picture: Picture, found: nccl.Leading, missed: tuple[int, ...]) -> TraceVerdict:
    """Return what NCCL's traces say; of a network that stands still, since when."""
    verdict = nccl.judge(picture, found, missed)
    if missed or not found.is_sure or found.fault.kind not in OF_NETWORKS:
        return verdict
    return with_quiet(picture, verdict, [here for here in picture.places if here.inside and here.waiters])


def _unknown(picture: Picture, longest_s: float) -> TraceVerdict:
    waiters = {rank for here in picture.places for rank in here.waiters}
    here = min((one for one in picture.places if one.waiters), key=lambda one: one.since_s)
    return draft(
        picture,
        kind="unknown",
        ranks=(),
        rule="nothing_found",
        sentence=f"{picture.wait_words(len(waiters), longest_s)} in {picture.what(here)}, and nothing says why",
        confidence="low",
        here=here,
    )
