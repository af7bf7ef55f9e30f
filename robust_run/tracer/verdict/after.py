"""What the rings prove better than exits, for an attempt that has died by itself.

gloo reports a mismatch by failing a *victim*: the rank whose call was right is aborted, or gets a RuntimeError about sizes, and
all others lose their connections to it. Its exit is then the first, but not the cause.
"""

from __future__ import annotations

from robust_run.health.types import Finding
from robust_run.tracer.ras.rules import second_opinion
from robust_run.tracer.types import RankSight, Scene, TraceVerdict
from robust_run.tracer.verdict import graph
from robust_run.tracer.verdict.picture import Picture
from robust_run.tracer.verdict.rules import absent, beside_backward, ended, nccl, order, signatures, waited_out
from robust_run.tracer.verdict.types import RankPatience

_CONSEQUENCES = frozenset({"peer_connection", "native_crash", "accelerator"})
_TELLING = ("gloo", "nccl", "nbytes", "mismatch", "enforce fail", "tensor size", "same size", "timed out", "timeout")
#: Who waited for so long before failing failed by a time limit.
_TIMEOUT_S = 5.0


def post_mortem(scene: Scene, before: Scene | None = None) -> TraceVerdict | None:
    """Return what the rings of a dead attempt prove beyond exits, and NCCL's traces; None if they add nothing.

    `before`: the last look at its ranks while they lived. A failure that explains itself stands: an exception of the user's own,
    a full memory, a process that was killed.
    """
    verdict = proven(scene, before)
    return None if verdict is None else second_opinion(verdict, scene)


def proven(scene: Scene, before: Scene | None = None) -> TraceVerdict | None:
    """Return the same as rings and traces have it, without further witnesses."""
    if any(sight.finding is not None and _explains_itself(sight.finding) for sight in scene.ranks):
        return None
    fault = ended.first_fault(scene.ranks)
    if fault is not None and fault.exit_code in ended.KILLED:
        return None
    picture = Picture(scene, failed=True)
    have_met = any(sight.finding is not None and sight.finding.trouble == "mismatch" for sight in scene.ranks)
    mismatch = signatures.earliest_mismatch(picture, 0.0)
    if mismatch is not None and (mismatch.certain or have_met):
        return signatures.judge(picture, mismatch)
    if fault is not None and not _is_consequence(fault):
        return None
    found = beside_backward.judge(picture) if have_met else None
    found = found or _left_early(picture, fault)
    if found is not None:
        return found
    circle = graph.deadlocked(picture, 0.0, nccl.may_circle(picture))
    if circle and _ended_late(picture, circle):
        verdict = order.judge(picture, circle)
        return verdict if verdict.rule == "order" else None
    return _never_joined(picture, before) or nccl.post_mortem(picture, _TIMEOUT_S)


def _explains_itself(finding: Finding) -> bool:
    if finding.kind in _CONSEQUENCES:
        return False
    return finding.kind != "exception" or not _tells_of_peers(finding)


def _tells_of_peers(finding: Finding) -> bool:
    text = f"{finding.line} {finding.message}".lower()
    return any(word in text for word in _TELLING)


def _is_consequence(sight: RankSight) -> bool:
    return sight.finding is not None and (sight.finding.kind in _CONSEQUENCES or _tells_of_peers(sight.finding))


def _left_early(picture: Picture, fault: RankSight | None) -> TraceVerdict | None:
    """Name ranks that ended with code 0 before anybody failed, and for whom others waited."""
    verdict = ended.left_early(picture, 0.0)
    if verdict is None or any(wait.what == "destroy_process_group" for wait in verdict.waits[:1]):
        return None
    if fault is not None and fault.ended_at_s is not None and (verdict.onset_s or 0.0) > fault.ended_at_s:
        return None
    return verdict


def _ended_late(picture: Picture, ranks: tuple[int, ...]) -> bool:
    """Whether the ranks had waited for long when they failed: by a time limit, not because a peer had gone."""
    ends = [_end_s(picture.sights[rank]) for rank in ranks if rank in picture.sights]
    begun = [here.since_s for here in picture.places if not set(here.waiters).isdisjoint(ranks)]
    return bool(ends and begun) and min(ends) - max(begun) >= _TIMEOUT_S


def _never_joined(picture: Picture, before: Scene | None) -> TraceVerdict | None:
    """Name a rank that others waited for until a time limit of theirs, and that was killed after them."""
    found = [
        one
        for one in absent.suspects(picture, RankPatience(after_s=_TIMEOUT_S), None, {})
        if one.rank in picture.sights and picture.sights[one.rank].exit_code in (*ended.KILLED, None)
    ]
    for one in found:
        ends = [_end_s(picture.sights[rank]) for rank in one.here.waiters]
        if ends and min(ends) - one.here.since_s >= _TIMEOUT_S and min(ends) <= _end_s(picture.sights[one.rank]):
            verdict = absent.judge(picture, [one._replace(needed_s=0.0)])
            return waited_out.told(picture, verdict, one, before) if verdict is not None else None
    return None


def _end_s(sight: RankSight) -> float:
    return sight.ended_at_s if sight.ended_at_s is not None else float("inf")
