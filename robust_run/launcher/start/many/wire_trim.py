"""Trims reports to what the controller needs. Pure.

A rank's last words are kilobytes; 80,000 ranks that lose their connections at once would send and have on record hundreds of
megabytes, of which a verdict names one rank. So a node sends the words of those of its ranks that may be the one, and for the
others what the verdict counts. All words are in the run directory of the node.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from robust_run.health.types import Finding
from robust_run.launcher.core.diagnosis.verdict import RankFailure, own_failure
from robust_run.launcher.model.events import AttemptEnded, NodeEvent, RankExited
from robust_run.launcher.model.job import RankEvidence


def brief(event: NodeEvent) -> NodeEvent:
    """Return an event without words that cannot end up in a verdict."""
    if isinstance(event, RankExited) and event.finding is not None:
        return msgspec.structs.replace(event, finding=_without_words(event.finding))
    if isinstance(event, AttemptEnded):
        kept = _who_may_be_named(event.ranks)
        ranks = tuple(_with_words(rank) if rank.rank in kept else _silent(rank) for rank in event.ranks)
        return msgspec.structs.replace(event, ranks=ranks)
    return event


def _who_may_be_named(ranks: Iterable[RankEvidence]) -> set[int]:
    """Return the ranks that `verdict.attribute` may choose of these, whatever other nodes say: the first of each sort."""
    first: dict[tuple[bool, bool], RankFailure] = {}
    for failure in filter(None, map(own_failure, ranks)):
        sort = (failure.by_words, failure.is_peer_error)
        best = first.get(sort)
        if best is None or (failure.at_s, failure.evidence.rank) < (best.at_s, best.evidence.rank):
            first[sort] = failure
    return {failure.evidence.rank for failure in first.values()}


def _with_words(rank: RankEvidence) -> RankEvidence:
    """An incident shows the traceback or, where there is none, the tail."""
    has_excerpt = rank.finding is not None and bool(rank.finding.excerpt)
    return msgspec.structs.replace(rank, stderr_tail="") if has_excerpt else rank


def _silent(rank: RankEvidence) -> RankEvidence:
    finding = _without_words(rank.finding) if rank.finding is not None else None
    return msgspec.structs.replace(rank, stderr_tail="", finding=finding)


def _without_words(finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, message="", excerpt="")
