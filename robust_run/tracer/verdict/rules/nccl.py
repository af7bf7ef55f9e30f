"""Rule 5: what NCCL's traces say of a stall: the GPU, the proxy thread, the network or the process that keeps all others waiting.

The rules of `tracer.nccl` find the faults; here they become verdicts. Rings speak first where they prove something (a mismatch,
a stopped process, an early exit) and where a rank did not make a call, for they know what it does instead; what NCCL says is
then added. A GPU may be computing: how long it may is decided by what its host does, as for a rank that never came (`absent`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from robust_run.tracer.nccl.blame import EVERYBODY
from robust_run.tracer.nccl.types import FaultKind, NcclFault
from robust_run.tracer.types import Scene, TraceKind, TraceVerdict
from robust_run.tracer.verdict.draft import Confidence, draft
from robust_run.tracer.verdict.picture import Picture, WaitPlace
from robust_run.tracer.verdict.rules import absent
from robust_run.tracer.verdict.types import RankPatience

#: Faults of the communication itself. That a rank is late rings tell better.
INSIDE: tuple[FaultKind, ...] = ("gpu", "proxy", "network", "dead", "unseen", "deadlock")
#: What may end by itself, if the rank at fault is at work.
_MAY_WORK: frozenset[FaultKind] = frozenset({"gpu", "unseen"})
#: Lines of evidence that a verdict of the rings' gets.
_ADDED = 4
_LESS: dict[Confidence, Confidence] = {"high": "medium", "medium": "low", "low": "low"}


class Leading(NamedTuple):
    """The fault that explains most, and whether it is time to say so."""

    fault: NcclFault
    waited_s: float
    needed_s: float
    working: tuple[int, ...]
    """Of those at fault who are at work."""
    doing: str
    """What these do, as a clause without the rank."""

    @property
    def is_due(self) -> bool:
        """Whether it has lasted for too long."""
        return self.waited_s >= self.needed_s

    @property
    def is_sure(self) -> bool:
        """Whether nothing else may be the matter."""
        return self.fault.confidence == "high"


def leading(
    picture: Picture, patience: RankPatience, previous: Scene | None, worked: Mapping[int, float]
) -> Leading | None:
    """Return the fault inside NCCL that explains most of what ranks wait for; None where NCCL shows none."""
    fault = _main(picture)
    if fault is None:
        return None
    now_s = picture.scene.at_s
    waited_s = now_s - min(_since(picture, fault), default=now_s)
    needed_s = patience.after_s if fault.confidence == "high" else patience.spinning_s
    working, doing, last_s = [], "", float("-inf")
    if fault.kind in _MAY_WORK:
        # GPUs that all stand where the others do may compute something else first: their hosts wait, or are gone to sleep.
        needed_s = needed_s if fault.ranks and fault.rule != EVERYBODY else patience.working_s
        before = {sight.rank: sight for sight in previous.ranks} if previous is not None else {}
        for rank in fault.ranks:
            sight = picture.sights.get(rank)
            if sight is None:
                continue
            works, time_s, clause = absent.time_for(sight, patience, now_s, before.get(rank))
            needed_s = max(needed_s, time_s)
            last_s = max(last_s, now_s if works else worked.get(rank, float("-inf")))
            if works:
                working.append(rank)
                doing = doing or clause
    waited_s = waited_s if working else min(waited_s, now_s - last_s)
    return Leading(fault, waited_s, needed_s, tuple(working), doing)


def judge(picture: Picture, found: Leading, others: tuple[int, ...]) -> TraceVerdict:
    """Name who is at fault inside NCCL. `others`: ranks that did not come to what rings show."""
    fault = found.fault
    confidence: Confidence = fault.confidence
    evidence = _lines(picture, fault)
    if others and fault.ranks and not set(others) & {*fault.ranks, *fault.suspects}:
        confidence = _LESS[confidence]
        evidence = (
            f"the ring of calls says otherwise: {picture.who(others)} did not come to where others wait",
            *evidence,
        )
    return _drafted(picture, fault, evidence, confidence)


def _drafted(picture: Picture, fault: NcclFault, evidence: tuple[str, ...], confidence: Confidence) -> TraceVerdict:
    here = _place_of(picture, fault)
    ranks = tuple(sorted({*fault.ranks, *fault.suspects}))
    verdict = draft(
        picture,
        kind=_kind(picture, fault),
        ranks=ranks,
        rule=f"nccl_{fault.rule.replace('-', '_')}",
        sentence=fault.sentence,
        confidence=confidence,
        here=here,
        over_evicted=() if len(ranks) < 2 or (fault.scope == "node" and len(fault.nodes) == 1) else ranks,
        evidence=evidence,
    )
    group = picture.inside.group_of(fault.comm) if picture.inside is not None else None
    return verdict if group is None else msgspec.structs.replace(verdict, group=picture.label(group))


def attested(picture: Picture, verdict: TraceVerdict, *, proven: bool) -> TraceVerdict:
    """Return a verdict of the rings' with what NCCL says of the same: less certain where that is another rank.

    `proven`: no matter what NCCL shows, which then is a consequence.
    """
    if picture.inside is None or not picture.inside.diagnosis.faults:
        return verdict
    fault = picture.inside.diagnosis.faults[0]
    if fault.kind == "straggler":
        return verdict
    agree = bool({*fault.ranks, *fault.suspects} & set(verdict.ranks)) or not fault.ranks
    added = (f"NCCL: {fault.sentence}", *fault.evidence[:_ADDED])
    if agree or proven or fault.confidence != "high":
        return msgspec.structs.replace(verdict, evidence=(*added, *verdict.evidence)[:40])
    added = (f"NCCL's traces say otherwise: {fault.sentence}", *fault.evidence[:_ADDED])
    return msgspec.structs.replace(
        verdict, confidence=_LESS[verdict.confidence], evidence=(*added, *verdict.evidence)[:40]
    )


def slow(picture: Picture) -> TraceVerdict | None:
    """Name a rank that comes again and again later than its peers to what NCCL does; None without one."""
    if picture.inside is None:
        return None
    late = [fault for fault in picture.inside.diagnosis.faults if fault.kind == "straggler"]
    if not late:
        return None
    verdict = _drafted(picture, late[0], _lines(picture, late[0]), late[0].confidence)
    ranks = tuple(sorted({rank for fault in late for rank in fault.ranks}))
    return msgspec.structs.replace(
        verdict, kind="slow", rule=late[0].rule, ranks=ranks, nodes=picture.nodes(ranks), over_evicted=(), onset_s=None
    )


def post_mortem(picture: Picture, least_s: float) -> TraceVerdict | None:
    """Name who kept the others waiting inside NCCL until a time limit ended all: they had waited for so long when the first
    ended."""
    inside = picture.inside
    fault = _main(picture)
    if inside is None or fault is None or fault.confidence == "low" or not fault.waiting:
        return None
    ends = [sight.ended_at_s for sight in picture.scene.ranks if sight.ended_at_s is not None]
    since = [inside.waiting[rank] for rank in fault.waiting if rank in inside.waiting]
    if not ends or not since or min(ends) - max(since) < least_s:
        return None
    return _drafted(picture, fault, _lines(picture, fault), fault.confidence)


def lines(picture: Picture, limit: int) -> list[str]:
    """Say in lines for people what NCCL shows of the present waits, with its evidence; nothing without waits."""
    if picture.inside is None or not picture.inside.waiting:
        return []
    found: list[str] = []
    for fault in picture.inside.diagnosis.faults:
        if fault.kind != "straggler":
            found += [f"NCCL: {fault.sentence}", *(f"  {line}" for line in fault.evidence[:_ADDED])]
    return found[:limit]


def may_circle(picture: Picture) -> tuple[WaitPlace, ...]:
    """Return the calls among which a circle of waits is a deadlock: without those inside NCCL, if that shows another cause."""
    fault = _main(picture)
    if fault is None or fault.kind == "deadlock":
        return picture.places
    return tuple(here for here in picture.places if not here.inside)


def _main(picture: Picture) -> NcclFault | None:
    faults = picture.inside.diagnosis.faults if picture.inside is not None else ()
    return next((fault for fault in faults if fault.kind in INSIDE), None)


def _since(picture: Picture, fault: NcclFault) -> list[float]:
    """Return since when ranks wait for those at fault, or these themselves stand still."""
    waiting = picture.inside.waiting if picture.inside is not None else {}
    mine = [since_s for rank, since_s in waiting.items() if rank in fault.waiting or rank in fault.ranks]
    return mine or list(waiting.values())


def _kind(picture: Picture, fault: NcclFault) -> TraceKind:
    """Return what a fault is called outside NCCL."""
    sights = [picture.sights[rank] for rank in fault.ranks if rank in picture.sights]
    if fault.kind == "deadlock":
        return "desync"
    if fault.kind == "dead" and any(sight.is_done for sight in sights):
        return "desync"  # it ended too early
    return "hang" if fault.kind == "late" else "comm_stall"


def _place_of(picture: Picture, fault: NcclFault) -> WaitPlace | None:
    """Return the call that a fault shows in: of its communicator, by ranks that wait for it, the first."""
    inside = [here for here in picture.places if here.inside] or [here for here in picture.places if here.waiters]
    group = picture.inside.group_of(fault.comm) if picture.inside is not None else None
    mine = [here for here in inside if group is not None and here.group == group] or inside
    return min(mine, key=lambda here: here.since_s, default=None)


def _lines(picture: Picture, fault: NcclFault) -> tuple[str, ...]:
    """Return the counters that lead to a fault, how they came about, and what else NCCL shows."""
    faults = picture.inside.diagnosis.faults if picture.inside is not None else ()
    rest = [
        f"also inside NCCL: {other.sentence}" for other in faults if other is not fault and other.kind != "straggler"
    ]
    return (*fault.evidence[:12], *_logged(picture, fault), *rest[:_ADDED])


def _logged(picture: Picture, fault: NcclFault) -> list[str]:
    """Return the last changes of counters of the first rank at fault, from the log of the forming stall."""
    for rank in fault.ranks[:1]:
        sight = picture.sights.get(rank)
        if sight is not None and sight.nccl_log:
            return [
                f"rank {rank} {picture.scene.at_s - note.at_s:.1f} s ago: {note.direction}, channel {note.channel}, member "
                f"{note.peer}: posted {note.posted}, gpu_ready {note.gpu_ready}, transmitted {note.transmitted}, "
                f"done {note.done}"
                for note in sight.nccl_log[-_ADDED:]
            ]
    return []
