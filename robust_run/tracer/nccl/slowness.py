"""Slow inside NCCL: who is suspicious, who stays slow window after window, and what part of the machine that is. Pure: every
answer is a new value.

A few ranks of the job are watched (`sampling`). Where a step of theirs takes longer than it did, everybody is wanted for some
windows; what is slow among all members in each of several of those in a row is told (`signs` says what is slow in one).
Communicators in which little happens are judged over longer windows: until each member has completed a few operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple, TypeVar

import msgspec

from robust_run.tracer.nccl.slow_fault import Lasting, told
from robust_run.tracer.nccl.slow_pairs import PairChanges, changes, is_slow_among, slow_both_ways
from robust_run.tracer.nccl.slow_signs import (
    LATE_SHARE,
    WIRE_FACTOR,
    MemberWork,
    Sign,
    Signs,
    Wire,
    by_comm,
    latenesses,
    signs,
)
from robust_run.tracer.nccl.work import RankWork, SlowFault

Key = TypeVar("Key", int, Wire)

#: How long a window is.
WINDOW_S = 2.0
#: Operations that each member has completed in what is judged.
FEWEST_OPS = 1
#: Windows after the first in which nothing is judged: ranks compile, tune, fill caches.
WARM_UP = 30
#: What is usual is the median of so many windows; with fewer than `FEWEST` nothing is suspicious.
USUAL, FEWEST = 60, 8
#: A step that takes so many times as long as usual is suspicious.
SUSPICIOUS = 1.06
#: All ranks are asked for for so many windows then, if so many are left of a store, to which each window adds a part of one.
EVERYBODY, REFILL, STORE = 8, 0.2, 48.0
#: In so many windows in a row a wire or a proxy thread must be slow to be told, and in so many a GPU, whose work differs more.
NEEDED, NEEDED_OF_GPUS = 3, 4
#: Windows since all ranks were asked for do not count for what is usual, for what is judged must not be its own measure; those
#: before so many do, for what lasts becomes usual.
RECENT = 24
#: A GPU is late in each of them by so much of what it is in another.
STEADY = 0.5
#: What was not seen for so many windows says nothing any more; a communicator is forgotten after so many without a step.
FORGOTTEN, CLOSED = 120, 600
#: What costs less of the time between two operations is not told.
LEAST_COST = 0.02


class _Seen(NamedTuple):
    """What of a rank alone may be suspicious: see `MemberWork`."""

    step_s: float
    late_s: float
    wire_s: float


class _Known(msgspec.Struct, frozen=True):
    """What is remembered of a communicator."""

    held: tuple[MemberWork, ...] = ()
    """Of windows in which too little was completed."""
    seen: Mapping[int, tuple[_Seen, ...]] = {}
    """Of each rank, window after window."""
    late_s: tuple[tuple[float, ...], ...] = ()
    """By how much those who were watched came later than the others, window after window (see `latenesses`)."""
    found: tuple[Signs, ...] = ()
    """In the newest windows, all of which all members were seen in."""
    pair: PairChanges | None = None
    """Of a group of two nodes how both ways changed, in the newest of them."""
    period_s: float = 0.0
    name: str = ""
    judged: int = 0
    """In which window it last was,"""
    heard: int = 0
    """and in which something was heard of it."""

    @property
    def is_slow(self) -> bool:
        """Tell whether something was slow in the newest window in which all were seen."""
        return bool(self.found) and any(self.found[-1])


class Slowness(msgspec.Struct, frozen=True, kw_only=True):
    """The windows of an attempt."""

    windows: int = 0
    asked: int = -(1 << 30)
    """Window in which all ranks were last asked for."""
    store: float = STORE
    """Windows for which they may yet be."""
    suspicious: bool = False
    """In the newest window something was."""
    comms: Mapping[int, _Known] = {}
    past: Mapping[int, RankWork] = {}
    """What ranks did before, by rank, of those that are looked at."""
    nodes: Mapping[int, str] = {}
    """The node of each rank that was seen."""

    @property
    def asks(self) -> bool:
        """Tell whether, with the newest window, all ranks are to be looked at for `EVERYBODY` windows."""
        return self.windows == self.asked

    def hear(self, works: Iterable[RankWork], past: Iterable[RankWork] = ()) -> Slowness:
        """Take in a window: `works` of the ranks that were looked at; `past` of those that are looked at anew, what they did
        before it."""
        works, now = tuple(works), self.windows + 1
        seen = {work.rank for work in works}
        is_fresh = now - self.asked <= EVERYBODY + 2  # later it is not what was before any more
        known_past = {rank: work for rank, work in self.past.items() if rank in seen and is_fresh}
        known_past |= {work.rank: work for work in past}
        before = by_comm(known_past.values())
        recent = min(now - self.asked, RECENT)
        comms, suspicious = dict(self.comms), False
        for comm, members in by_comm(works).items():
            of = {member.rank: member for member in before.get(comm, ())}
            comms[comm], is_slower = _heard(comms.get(comm, _Known()), members, of, recent, now)
            suspicious = suspicious or is_slower
        comms |= _with_pairs(comms, now)
        heard = msgspec.structs.replace(
            self,
            windows=now,
            suspicious=suspicious,
            comms={comm: known for comm, known in comms.items() if now - known.heard < CLOSED},
            past=known_past,
            nodes={**self.nodes, **{work.rank: work.node for work in works}},
        )
        return heard._asking()

    def _asking(self) -> Slowness:
        """Return the same, with all ranks asked for if that is due: where something is suspicious, and again while something is
        slow that they have not been looked at for long enough to be told. Where things are always suspicious, it is now and then.
        """
        since = self.windows - self.asked
        is_promising = since == EVERYBODY - 1 and self.store > 0 and any(known.is_slow for known in self.comms.values())
        is_due = self.suspicious and since >= EVERYBODY and self.store >= EVERYBODY
        if not is_promising and not is_due:
            return msgspec.structs.replace(self, store=min(STORE, self.store + REFILL))
        return msgspec.structs.replace(self, asked=self.windows, store=max(0.0, self.store - EVERYBODY))

    def fault(self) -> SlowFault | None:
        """Return what is slow, and has been in every one of the newest windows; None: nothing."""
        newest = [known for known in self.comms.values() if self.windows - known.judged < FORGOTTEN]
        return told([last for known in newest if (last := _lasting(known)) is not None], self.nodes)


def _lasting(known: _Known) -> Lasting | None:
    """Return what was slow in a communicator in all of the windows needed, and costs something.

    Where a wire was, one that was in all but the first of them is, too: what they have in common is at fault.
    """
    newest = known.found[-NEEDED:]
    wires = _in_all([of.wires for of in newest], NEEDED, known.period_s)
    if wires:
        wires |= _in_all([of.wires for of in newest[1:]], NEEDED - 1, known.period_s)
    proxies = _in_all([of.proxies for of in newest], NEEDED, known.period_s)
    late = _in_all([of.gpus for of in known.found], NEEDED_OF_GPUS, known.period_s)
    gpus = {rank: of for rank, of in late.items() if _is_steady(of)}
    return Lasting(known.name, wires, gpus, proxies, known.period_s) if wires or gpus or proxies else None


def _in_all(found: Sequence[Mapping[Key, Sign]], needed: int, period_s: float) -> dict[Key, tuple[Sign, ...]]:
    if len(found) < needed:
        return {}
    lasting = {key: tuple(of[key] for of in found) for key in found[0] if all(key in of for of in found)}
    return {key: of for key, of in lasting.items() if median(sign.cost_s for sign in of) >= LEAST_COST * period_s}


def _is_steady(found: Sequence[Sign]) -> bool:
    """Tell whether a GPU is as late in each window: uneven data makes another one late each time, and now and then the same."""
    costs = [sign.cost_s for sign in found]
    return min(costs) >= STEADY * max(costs)


def _heard(
    known: _Known, members: Sequence[MemberWork], past: Mapping[int, MemberWork], recent: int, now: int
) -> tuple[_Known, bool]:
    """Take in what members did; say too whether that is suspicious."""
    members = _with(known.held, members)
    if any(member.ops < FEWEST_OPS for member in members):
        return msgspec.structs.replace(known, held=tuple(members), heard=now), False
    if now <= WARM_UP:
        return msgspec.structs.replace(known, held=(), heard=now), False
    period_s = median(member.period_s for member in members)
    seen = {member.rank: _Seen(member.step_s, member.late_s, member.wire_s) for member in members}
    suspicious = any(_is_slower(of, known.seen.get(rank, ()), period_s) for rank, of in seen.items())
    is_whole = len(members) == (members[0].ranks or max(member.member for member in members) + 1)
    found: tuple[Signs, ...] = ()
    if is_whole and past:
        found = (*known.found, signs(members, past, _usual_late_s(known, recent)))[-NEEDED_OF_GPUS:]
    kept = {rank: (*known.seen.get(rank, ()), of)[-USUAL:] for rank, of in seen.items()}
    late = (*known.late_s, tuple(latenesses(members).values()))[-USUAL:]
    judged = _Known(
        seen={**known.seen, **kept},
        late_s=late,
        found=found,
        pair=changes(members, past) if found else None,
        period_s=period_s,
        name=members[0].name,
        judged=now,
        heard=now,
    )
    return judged, suspicious


def _with_pairs(comms: Mapping[int, _Known], now: int) -> dict[int, _Known]:
    """Return the groups of two nodes with those of their ways that are slow among the groups of the same nodes, too."""
    pairs = {comm: known.pair for comm, known in comms.items() if known.judged == now and known.pair is not None}
    both, found = slow_both_ways(pairs), {}
    for comm in pairs:
        newest = comms[comm].found[-1]
        one_way = {wire: sign for wire, sign in newest.wires.items() if is_slow_among(pairs, comm, wire)}
        judged = newest._replace(wires={**both.get(comm, {}), **one_way})
        found[comm] = msgspec.structs.replace(comms[comm], found=(*comms[comm].found[:-1], judged))
    return found


def _with(held: Sequence[MemberWork], members: Sequence[MemberWork]) -> list[MemberWork]:
    """Return what members did together with what was held; what was held of others than these is let go."""
    before = {member.rank: member for member in held}
    if before.keys() != {member.rank for member in members}:
        return list(members)
    return [before[member.rank].joined(member) for member in members]


def _is_slower(now: _Seen, usual: Sequence[_Seen], period_s: float) -> bool:
    """Tell whether the steps of a rank, its GPU or its wires take longer than they did; with the last two, others' work on the
    fabric may have ended at the same moment, and all takes as long as before."""
    if len(usual) < FEWEST:
        return False
    return (
        now.step_s >= SUSPICIOUS * median(of.step_s for of in usual)
        or now.late_s - median(of.late_s for of in usual) >= LATE_SHARE * period_s
        or now.wire_s >= WIRE_FACTOR * median(of.wire_s for of in usual) > 0
    )


def _usual_late_s(known: _Known, recent: int) -> float:
    """Return by how much a GPU here is later than others in one of twenty windows, without the `recent` newest ones."""
    before = sorted(late_s for window in known.late_s[: max(FEWEST, len(known.late_s) - recent)] for late_s in window)
    return before[len(before) * 19 // 20] if before else 0.0
