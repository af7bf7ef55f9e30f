"""How a rank is told that others waited for until their calls failed: of an attempt that is over, where nobody waits any more.

Of the dead no stack can be had, so the place is that of the last look, as long as the rank has recorded nothing since.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from robust_run.tracer.stacks.activity import activity_of
from robust_run.tracer.stacks.normal import main_stacks, place
from robust_run.tracer.types import RankSight, Scene, TraceVerdict
from robust_run.tracer.verdict.graph import dependents
from robust_run.tracer.verdict.limits import limit_s
from robust_run.tracer.verdict.picture import Picture
from robust_run.tracer.verdict.rules.absent import SuspectRank, newest_event_s, omission
from robust_run.tracer.words import count_words, duration

#: gloo's own words for a call that it has ended.
_SAID = re.compile(r"Timed out waiting (\d{1,12}) ?ms|monitoredBarrier in (\d{1,12}) ?ms")
#: torch's clock and ours start at other moments.
_NEARLY = 0.95


def told(picture: Picture, verdict: TraceVerdict, missed: SuspectRank, before: Scene | None) -> TraceVerdict:
    """Return the verdict with who waited for how long, what ended that, and where the rank was; `before`: the last look."""
    waiters = sorted(dependents(picture, (missed.rank,)))
    seen = _last_seen(picture, missed.rank, before)
    where = place(main_stacks(seen)[-1]) if seen is not None else ""
    asleep = ", asleep" if seen is not None and activity_of(seen).reason.startswith("asleep") else ""
    was = f"when last seen it was in {where}{asleep}" if where else "where it was is not known"
    limit = _reached_s(picture, missed, waiters)
    end = f"until torch's time limit of {duration(limit)} ended that" if limit else "then their calls failed"
    waited = f"{count_words(len(waiters))} waited for {missed.waited_s:.1f} s, {end}"
    sentence = f"{picture.who((missed.rank,))} {omission(picture, missed.here)} ({waited}); {was}"
    return msgspec.structs.replace(verdict, sentence=sentence, where=where)


def _last_seen(picture: Picture, rank: int, before: Scene | None) -> RankSight | None:
    """Return what was last seen of a rank while it lived; None if it has recorded more since, or there is no stack."""
    if before is None or before.attempt != picture.scene.attempt:
        return None
    seen = next((sight for sight in before.ranks if sight.rank == rank), None)
    newest_s = newest_event_s(picture.sights[rank]) if rank in picture.sights else None
    if seen is None or not main_stacks(seen) or (newest_s is not None and newest_s > before.at_s):
        return None
    return seen


def _reached_s(picture: Picture, missed: SuspectRank, waiters: Iterable[int]) -> float:
    """Return torch's time limit that ended the wait; 0 if it was something else."""
    for rank in waiters:
        finding = picture.sights[rank].finding if rank in picture.sights else None
        said = _SAID.search(f"{finding.line} {finding.message}") if finding is not None else None
        if said is not None:
            return int(said.group(1) or said.group(2)) / 1e3
    limit = limit_s(picture, missed.here)
    return limit if missed.waited_s >= limit * _NEARLY else 0.0
