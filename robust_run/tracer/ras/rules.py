"""What NCCL's RAS says for or against a verdict. Pure.

It is a second witness, never the first: a verdict that it agrees with becomes more certain, one that it contradicts less, and
either way what it said is kept with the evidence. It accuses no rank by itself, because it counts what programs have launched:
ranks run ahead of each other as long as nothing is stuck, and a stall that all ranks are in looks like no difference at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from robust_run.tracer.nccl import recorder
from robust_run.tracer.ras.parse import total
from robust_run.tracer.ras.types import RasCommunicator, RasRank, RasReport
from robust_run.tracer.types import RankSight, Scene, TraceVerdict

__all__ = ["RasSign", "opinion", "second_opinion", "signs"]

SignKind = Literal["behind", "other", "silent", "gone", "error"]
"""behind: launched fewer operations than the others. other: as many, of other kinds. silent: its process does not answer. gone:
it gave the communicator up while others use it. error: NCCL has an error for it."""

#: Lines of evidence that are added to a verdict, and all lines that it may have.
LINES, EVIDENCE = 8, 40
RANKS_NAMED = 8
_MORE: dict[str, Literal["high", "medium", "low"]] = {"low": "medium", "medium": "high", "high": "high"}
_LESS: dict[str, Literal["high", "medium", "low"]] = {"low": "low", "medium": "low", "high": "medium"}
#: Kinds of verdicts that say that a rank keeps the others of a communicator waiting.
_JUDGED = frozenset({"hang", "stopped", "desync", "mismatch", "comm_stall"})


class RasSign(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that RAS says of some ranks of a communicator."""

    kind: SignKind
    ranks: tuple[int, ...]
    """Of the world."""
    line: str
    """For people."""


class _Names:
    """Which ranks of the world the ranks of communicators are, as far as other evidence tells."""

    def __init__(self, sights: Sequence[RankSight], world_size: int) -> None:
        self._members: dict[tuple[int, int], int] = {}
        self._names: dict[int, str] = {}
        self._world_size = world_size
        pids: dict[int, list[int]] = {}
        for sight in sights:
            for pid in _pids(sight):
                pids.setdefault(pid, []).append(sight.rank)
            for comm in sight.nccl.communicators if sight.nccl is not None else ():
                if comm.hash and comm.rank is not None:
                    self._members[comm.hash, comm.rank] = sight.rank
                    self._names[comm.hash] = comm.name or self._names.get(comm.hash, "")
        self._pids = {pid: ranks[0] for pid, ranks in pids.items() if len(ranks) == 1}

    def world(self, comm: RasCommunicator, rank: int, pid: int) -> int | None:
        """Return the rank of the world that a communicator's rank is, None where nothing tells."""
        known = self._members.get((comm.hash, rank))
        if known is None and comm.size == self._world_size and 0 <= rank < self._world_size:
            return rank  # a communicator of all ranks has them in their order
        return known if known is not None else self._pids.get(pid)

    def of(self, comm: RasCommunicator) -> str:
        """Return what people know a communicator as."""
        name = self._names.get(comm.hash, "")
        if name:
            return f"communicator {name}"
        return "the communicator of all ranks" if comm.size == self._world_size else f"communicator {comm.hash:x}"


def _pids(sight: RankSight) -> Iterable[int]:
    if sight.trace is not None and sight.trace.pid:
        yield sight.trace.pid
    elif sight.nccl is not None and sight.nccl.glance.pid:
        yield sight.nccl.glance.pid


def signs(report: RasReport, sights: Sequence[RankSight], world_size: int) -> tuple[RasSign, ...]:
    """Return what a report says of ranks that few enough share to mean something: at most half of a communicator."""
    names = _Names(sights, world_size)
    found: list[RasSign] = []
    for comm in report.communicators:
        for kind, rows in _of(comm).items():
            whole = comm.size or comm.answered + len(comm.missing)
            ranks = [names.world(comm, rank, pid) for rank, pid in rows]
            known = tuple(sorted({rank for rank in ranks if rank is not None}))
            if known and len(known) == len(rows) and (len(rows) * 2 <= whole or kind in ("silent", "error")):
                found.append(RasSign(kind=kind, ranks=known, line=_line(kind, known, comm, names.of(comm))))
    return tuple(found)


def _of(comm: RasCommunicator) -> dict[SignKind, list[tuple[int, int]]]:
    """Return ranks of a communicator (and their pids) by what is odd about them."""
    found: dict[SignKind, list[tuple[int, int]]] = {}
    most = max([total(comm.usual), *(total(row.counts) for row in comm.odd)])
    for row in comm.odd:
        kind = _kind(row, comm, most)
        if kind is not None:
            found.setdefault(kind, []).append((row.rank, row.pid))
    for lost in comm.missing:
        found.setdefault("silent" if lost.unresponsive or lost.dead else "gone", []).append((lost.rank, lost.pid))
    return found


def _kind(row: RasRank, comm: RasCommunicator, most: int) -> SignKind | None:
    """Return what is odd about a rank; None: it is only ahead of the others, or makes what they use already."""
    if row.error:
        return "error"
    if row.state in ("finalize", "abort") and comm.usual_state == "running":
        return "gone"
    if total(row.counts) < most:
        return "behind"
    return "other" if row.counts != comm.usual and total(row.counts) == total(comm.usual) else None


def _line(kind: SignKind, ranks: Sequence[int], comm: RasCommunicator, name: str) -> str:
    who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:RANKS_NAMED]))}"
    who += f" and {len(ranks) - RANKS_NAMED} more" if len(ranks) > RANKS_NAMED else ""
    many = len(ranks) > 1
    if kind == "behind":
        rows = [row for row in comm.odd if total(row.counts) < total(comm.usual)]
        what = _difference(rows, dict(comm.usual))
        return f"NCCL's RAS: {who} launched fewer operations in {name}{what}"
    if kind == "other":
        return f"NCCL's RAS: {who} launched other kinds of operations in {name} than the other ranks"
    if kind == "silent":
        return f"NCCL's RAS: the process{'es' if many else ''} of {who} in {name} {'do' if many else 'does'} not answer"
    if kind == "gone":
        return f"NCCL's RAS: {who} gave up {name}, which others use"
    return f"NCCL's RAS: NCCL reports an error for {who} in {name}"


def _difference(rows: Sequence[RasRank], usual: Mapping[str, int]) -> str:
    """Return the largest difference in words: ` (AllReduce: 99, most ranks: 100)`."""
    apart = [
        (number - dict(row.counts).get(kind, 0), kind, dict(row.counts).get(kind, 0), number)
        for row in rows
        for kind, number in usual.items()
    ]
    lack, kind, has, number = max(apart, default=(0, "", 0, 0))
    return f" ({kind}: {has}, most ranks: {number})" if lack > 0 else ""


def opinion(ranks: Sequence[int], found: Sequence[RasSign]) -> Literal["confirms", "contradicts", "nothing"]:
    """Say whether signs confirm that these ranks are at fault, or speak against it; nothing where they do both, or neither."""
    accused = set(ranks)
    if not accused:
        return "nothing"
    agrees = any(accused & set(sign.ranks) for sign in found)
    others = any(sign.kind in ("behind", "silent") and not accused & set(sign.ranks) for sign in found)
    if agrees == others:
        return "nothing"
    return "confirms" if agrees else "contradicts"


def second_opinion(verdict: TraceVerdict, scene: Scene) -> TraceVerdict:
    """Return a verdict with what RAS and torch's flight recorder say of its scene, and as certain as that makes it.

    Who is at fault never changes.
    """
    if verdict.kind not in _JUDGED:
        return verdict
    reports = [sight.ras for sight in scene.ranks if sight.ras is not None]
    found: tuple[RasSign, ...] = ()
    if reports:
        report = max(reports, key=lambda one: sum(comm.answered for comm in one.communicators))
        found = signs(report, scene.ranks, scene.world_size)
    says = opinion(verdict.ranks, found)
    lines = [sign.line for sign in found][:LINES]
    confidence = verdict.confidence
    if says != "nothing":
        confidence = (_MORE if says == "confirms" else _LESS)[confidence]
    if says == "contradicts":
        lines = [f"{line} (this speaks against the verdict)" for line in lines]
    lines += recorder.lines(scene.ranks, verdict.ranks)
    kept = verdict.evidence[: EVIDENCE - len(lines)]
    proven = verdict.proven and says != "contradicts"
    return msgspec.structs.replace(verdict, confidence=confidence, evidence=(*kept, *lines), proven=proven)
