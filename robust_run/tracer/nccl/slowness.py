"""Slow inside NCCL: who is suspicious, who stays slow window after window, and what part of the machine that is. Pure: every answer
is a new value.

A few ranks of the job are watched (`sampling`). Where a step of theirs takes longer than it did, everybody is wanted for some
windows; what is slow among all members in each of several of those in a row is told (`signs` says what is slow in one).
Communicators in which little happens are judged over longer windows: until each member has completed a few operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TypeVar

import msgspec

from robust_run.tracer.nccl.slow_fault import Lasting, told
from robust_run.tracer.nccl.slow_signs import MemberWork, Sign, Signs, Wire, by_comm, latenesses, signs
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
#: Everybody is wanted for so many windows after that.
EVERYBODY = 8
#: In so many windows in a row a wire or a proxy thread must be slow to be told, and in so many a GPU, whose work differs more.
NEEDED, NEEDED_OF_GPUS = 3, 4
#: Windows since everybody was wanted do not count for what is usual, for what is judged must not be its own measure; those before
#: so many do, for what lasts becomes usual.
RECENT = 24
#: A GPU is late in each of them by so much of what it is in another.
STEADY = 0.5
#: What costs less of the time between two operations is not told.
LEAST_COST = 0.02


class _Known(msgspec.Struct, frozen=True):
    """What is remembered of a communicator."""

    held: tuple[MemberWork, ...] = ()
    """Of windows in which too little was completed."""
    step_s: Mapping[int, tuple[float, ...]] = {}
    """By rank, window after window: see `MemberWork.step_s`."""
    late_s: tuple[tuple[float, ...], ...] = ()
    """By how much those who were watched came later than the others, window after window (see `latenesses`)."""
    found: tuple[Signs, ...] = ()
    """In the newest windows, all of which all members were seen in."""
    period_s: float = 0.0
    name: str = ""


class Slowness(msgspec.Struct, frozen=True, kw_only=True):
    """The windows of an attempt."""

    windows: int = 0
    everybody_since: int = 0
    everybody_until: int = 0
    """Windows from and until which all ranks are wanted."""
    comms: Mapping[int, _Known] = {}
    past: Mapping[int, RankWork] = {}
    """What ranks did before, by rank: from when everybody was first wanted."""
    nodes: Mapping[int, str] = {}
    """The node of each rank that was seen."""

    @property
    def wants_everybody(self) -> bool:
        """Tell whether all ranks are to be looked at, not only those that are sampled."""
        return self.windows < self.everybody_until

    def hear(self, works: Iterable[RankWork], past: Mapping[int, RankWork] = {}) -> Slowness:
        """Take in a window: `works` of the ranks that were looked at; `past` of those that are looked at anew, what they did
        before it."""
        works = tuple(works)
        now = self.windows + 1
        known_past = {**self.past, **past} if self.wants_everybody else dict(past)
        before = by_comm(known_past.values())
        comms, suspicious = dict(self.comms), False
        recent = min(now - self.everybody_since, RECENT) if self.wants_everybody else 0
        for comm, members in by_comm(works).items():
            of = {member.rank: member for member in before.get(comm, ())}
            comms[comm], is_slower = _heard(comms.get(comm, _Known()), members, of, recent, now <= WARM_UP)
            suspicious = suspicious or is_slower
        return Slowness(
            windows=now,
            everybody_since=self.everybody_since if self.wants_everybody else now,
            everybody_until=now + EVERYBODY if suspicious else self.everybody_until,
            comms=comms,
            past=known_past,
            nodes={**self.nodes, **{work.rank: work.node for work in works}},
        )

    def fault(self) -> SlowFault | None:
        """Return what is slow, and has been in every one of the newest windows; None: nothing."""
        return told([last for known in self.comms.values() if (last := _lasting(known)) is not None], self.nodes)


def _lasting(known: _Known) -> Lasting | None:
    """Return what was slow in a communicator in all of the windows needed, and costs something."""
    newest = known.found[-NEEDED:]
    wires = _in_all([of.wires for of in newest], NEEDED, known.period_s)
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
    known: _Known, members: Sequence[MemberWork], past: Mapping[int, MemberWork], recent: int, is_warming_up: bool
) -> tuple[_Known, bool]:
    """Take in what members did; say too whether that is suspicious."""
    members = _with(known.held, members)
    if any(member.ops < FEWEST_OPS for member in members):
        return msgspec.structs.replace(known, held=tuple(members)), False
    if is_warming_up:
        return msgspec.structs.replace(known, held=()), False
    suspicious = any(_is_slower(member, known.step_s.get(member.rank, ())) for member in members)
    is_whole = len(members) == (members[0].ranks or max(member.member for member in members) + 1)
    found: tuple[Signs, ...] = ()
    if is_whole and past:
        found = (*known.found, signs(members, past, _usual_late_s(known, recent)))[-NEEDED_OF_GPUS:]
    steps = {member.rank: (*known.step_s.get(member.rank, ()), member.step_s)[-USUAL:] for member in members}
    late = (*known.late_s, tuple(latenesses(members).values()))[-USUAL:]
    period_s = median(member.period_s for member in members)
    return _Known(
        step_s={**known.step_s, **steps}, late_s=late, found=found, period_s=period_s, name=members[0].name
    ), suspicious


def _with(held: Sequence[MemberWork], members: Sequence[MemberWork]) -> list[MemberWork]:
    """Return what members did together with what was held; what was held of others than these is let go."""
    before = {member.rank: member for member in held}
    if before.keys() != {member.rank for member in members}:
        return list(members)
    return [before[member.rank].joined(member) for member in members]


def _is_slower(member: MemberWork, usual: Sequence[float]) -> bool:
    return len(usual) >= FEWEST and member.step_s >= SUSPICIOUS * median(usual)


def _usual_late_s(known: _Known, recent: int) -> float:
    """Return by how much a GPU here is later than others in one of twenty windows, without the `recent` newest ones."""
    before = sorted(late_s for window in known.late_s[: max(FEWEST, len(known.late_s) - recent)] for late_s in window)
    return before[len(before) * 19 // 20] if before else 0.0
