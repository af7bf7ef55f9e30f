"""Rule 6: nobody is seen to wait, but what ranks have given to torch is not completed, since a member has not come to it.

What C++ and compiled graphs start no ring shows, and where a GPU takes what it is given nobody waits in a call. torch's flight
recorder has both: who has begun how many collectives of a group, and which of them are done. It is asked only where no rank
waits by its ring, stack or NCCL's traces, since those know more; and it never proves anything: whose work is under way may go
on with something else and be in no hurry.

A rank counts as kept waiting only if it does nothing else: no call, no step and no completed work since, no I/O, no stack
that moves. Who is behind is given as much time as what it does deserves, as everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from robust_run.tracer.flight.types import OF_RECORDER
from robust_run.tracer.stacks.activity import activity_of
from robust_run.tracer.types import Op, RankSight, Scene, SceneLook, TraceVerdict
from robust_run.tracer.verdict.draft import Confidence, draft
from robust_run.tracer.verdict.limits import place_expires_s
from robust_run.tracer.verdict.picture import Picture, WaitPlace
from robust_run.tracer.verdict.rules import ended
from robust_run.tracer.verdict.rules.absent import newest_event_s, time_for
from robust_run.tracer.verdict.types import RankPatience
from robust_run.tracer.words import count_words, ranks_words

_OPEN = frozenset({"entered", "issued", "waiting"})
#: Lines on how far ranks are.
_LINES = 8


class Behind(NamedTuple):
    """A collective that is under way without some of its members."""

    here: WaitPlace
    newest: Mapping[int, int]
    """By rank, the number of the newest collective of the group that it has begun."""

    def count(self, rank: int) -> int:
        """How many collectives a rank is behind those that wait for it."""
        return max(self.newest[waiter] for waiter in self.here.waiters) - self.newest.get(rank, 0)


def look(
    picture: Picture, patience: RankPatience, previous: Scene | None, worked: Mapping[int, float]
) -> SceneLook | None:
    """Judge a scene in which no rank is seen to wait for long; None if nothing is under way for long either."""
    found = [one for one in behind(picture) if picture.waited_s(one.here) >= patience.after_s * ended.NEARLY]
    if not found:
        return None
    first = max(found, key=lambda one: (len(one.here.waiters), picture.waited_s(one.here)))
    before = {sight.rank: sight for sight in previous.ranks} if previous is not None else {}
    waited_s, now_s = picture.waited_s(first.here), picture.scene.at_s
    due, working, reasons = [], [], []
    for rank in first.here.missing:
        sight = picture.sights[rank]
        works, needed_s, doing = time_for(sight, patience, now_s, before.get(rank))
        # Since it was last seen at work: patience begins anew then.
        patient_s = waited_s if works else min(waited_s, now_s - worked.get(rank, -math.inf))
        due += [rank] if patient_s >= needed_s else []
        working += [rank] if works else []
        reasons.append(doing)
    if due:
        return SceneLook(verdict=_verdict(picture, first, tuple(due), at_work=set(due) <= set(working)))
    words = f"work of {count_words(len(first.here.waiters))} has been under way for {waited_s:.1f} s"
    return SceneLook(
        again_s=patience.look_again_s * (2 if working else 1),
        reason=f"{words} without {picture.who(first.here.missing)}: {reasons[0]}",
        worked=tuple((rank, now_s) for rank in working),
    )


def behind(picture: Picture) -> list[Behind]:
    """Return the collectives that are under way without some of their members, on ranks that do nothing else meanwhile."""
    newest: dict[tuple[str, int, int, int], dict[int, int]] = {}
    oldest: dict[tuple[tuple[str, int, int, int], int], list[tuple[int, Op, float]]] = {}
    for sight in picture.scene.ranks:
        for op in sight.recorded:
            known = newest.setdefault(picture.key(sight.rank, op.group), {})
            known[sight.rank] = max(op.seq, known.get(sight.rank, 0))
        waits = _kept_waiting(sight)
        if waits is not None:
            op, since_s = waits
            oldest.setdefault((picture.key(sight.rank, op.group), op.seq), []).append((sight.rank, op, since_s))
    found = []
    for (key, seq), calls in oldest.items():
        group, known = picture.group_of(key), newest[key]
        # Of whom nothing is recorded in this group may have come.
        missing = tuple(rank for rank in group.ranks if known.get(rank, seq) < seq)
        if missing:
            here = WaitPlace(
                group=group,
                op=calls[0][1].op,
                seq=seq,
                waiters=tuple(rank for rank, _, _ in calls),
                missing=missing,
                since_s=max(since_s for _, _, since_s in calls),
            )
            found.append(Behind(here, known))
    return found


def _kept_waiting(sight: RankSight) -> tuple[Op, float] | None:
    """Return the oldest collective that a rank has under way, and since when it has done nothing; None if it does something."""
    pending = [op for op in sight.recorded if op.state in _OPEN]
    if not pending or sight.exit_code is not None or not sight.processes:
        return None
    if sight.trace is not None and any("ended its process groups" in doubt for doubt in sight.trace.doubts):
        return None  # numbers may be those of a group that is gone
    if activity_of(sight).kind == "working":
        return None
    first = min(pending, key=lambda op: op.at_s)
    return first, max(first.at_s, newest_event_s(sight) or 0.0)


def _verdict(picture: Picture, found: Behind, ranks: tuple[int, ...], *, at_work: bool) -> TraceVerdict:
    here = found.here
    waiters = f"{ranks_words(here.waiters)} {'has' if len(here.waiters) == 1 else 'have'}"
    where = picture.where(ranks[0])
    subject = "it" if len(ranks) == 1 else f"rank {ranks[0]}"
    most = max(found.count(rank) for rank in ranks)
    verb = "is" if len(ranks) == 1 else "are"
    said = (
        f"{picture.who(ranks)} {verb} {count_words(most, 'collective')} behind in {picture.label(here.group)}:"
        f" {waiters} had {here.op} #{here.seq} under way for {picture.waited_s(here):.1f} s without"
        f" {'it' if len(ranks) == 1 else 'them'}"
    )
    confidence: Confidence = "medium" if where and len(ranks) <= max(1, len(here.group.ranks) // 4) else "low"
    verdict = draft(
        picture,
        kind="hang",
        ranks=ranks,
        rule="behind",
        sentence=said + (f"; {subject} is in {where}" if where else ""),
        confidence=confidence,
        here=here,
        evidence=lines(picture, found),
    )
    # Where torch would not end it either nothing is done about it: nobody may be waiting.
    return msgspec.structs.replace(
        verdict,
        at_work=at_work,
        only_told=not _has_watchdog(picture, here),
        expires_s=place_expires_s(picture, here),
    )


def _has_watchdog(picture: Picture, here: WaitPlace) -> bool:
    """Whether torch ends a collective by itself that nobody waits for: NCCL's watchdog does, gloo tells whoever waits."""
    traces = [picture.sights[rank].trace for rank in here.waiters]
    groups = [group for trace in traces if trace is not None for group in trace.groups]
    return any("nccl" in group.backends for group in groups if group.name == here.group.name)


def lines(picture: Picture, found: Behind) -> tuple[str, ...]:
    """Say how far ranks are in a group by torch's own count, those that are least far first."""
    label = picture.label(found.here.group)
    alike: dict[int, list[int]] = {}
    for rank in found.here.group.ranks:
        if rank in found.newest:
            alike.setdefault(found.newest[rank], []).append(rank)
    said = [f"{OF_RECORDER}{ranks_words(alike[seq])}: #{seq} in {label}" for seq in sorted(alike)]
    if len(said) > _LINES:
        said = [*said[: _LINES - 1], f"{OF_RECORDER}{len(said) - _LINES + 1} more"]
    return tuple(said)
