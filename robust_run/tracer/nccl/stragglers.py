"""Ranks that come again and again later than their peers to the same operation (Mycroft, arXiv 2509.03018, section 5). Pure.

Of each collective that all known members have ended, the last to start and the last to end are looked at. One that is more than a
second later than the peer before it is late; one that is late again and again is a straggler. A late start is its own (what it
computes takes longer), a late end is its GPU's or its network's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from robust_run.tracer.nccl.teams import Team
from robust_run.tracer.nccl.types import NcclOp

#: Later than the peer before it by so much is late.
LATE_S = 1.0
#: So many operations a rank must be late in, and in so large a share of those that were looked at.
REPEATED = 3
SHARE = 0.5
#: Operations of one communicator that are looked at.
NEWEST = 64


class NcclStraggler(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that is again and again the last."""

    world: int
    team: int
    func: str
    seq: int
    """Newest operation in which it was."""
    at: str
    """`start` or `end`."""
    late: int
    """Operations in which it was."""
    of: int
    """Operations that were looked at."""
    late_s: float
    """By how much, the median."""


def stragglers(teams: Iterable[Team]) -> list[NcclStraggler]:
    """Return the ranks that are again and again the last, at most one at the start and one at the end for each communicator."""
    found = []
    for team in teams:
        calls = _calls(team)
        start = _repeated(team, calls, "start")
        end = None if start is not None else _repeated(team, calls, "end")
        found += [straggler for straggler in (start, end) if straggler is not None]
    return found


def _calls(team: Team) -> list[tuple[str, int, dict[int, tuple[float, float]]]]:
    """Return the newest operations that all members have ended: when each began and ended, in one clock, by rank of the world."""
    times: dict[tuple[str, int], dict[int, tuple[float, float]]] = {}
    for member in team.members.values():
        sight = member.sight
        assert sight.trace is not None
        for op in sight.trace.ops:
            span = _span(op)
            if op.comm == member.communicator.serial and op.kind == "collective" and span is not None:
                at = times.setdefault((op.func, op.seq), {})
                at[sight.rank] = (span[0] + sight.shift_s, span[1] + sight.shift_s)
    whole = [(func, seq, of) for (func, seq), of in times.items() if len(of) == len(team.members) > 1]
    whole.sort(key=lambda call: min(begun for begun, _ in call[2].values()))
    return whole[-NEWEST:]


def _span(op: NcclOp) -> tuple[float, float] | None:
    """Return when an operation was called and when it ended; None: it has not."""
    if op.proxy_last_s is None or op.closed < op.opened:
        return None
    return op.started_s, op.proxy_last_s


def _repeated(
    team: Team, calls: Sequence[tuple[str, int, Mapping[int, tuple[float, float]]]], at: str
) -> NcclStraggler | None:
    """Return the rank that was late in enough of the calls."""
    late: dict[int, list[tuple[float, str, int]]] = {}
    for func, seq, of in calls:
        order = sorted((span[at == "end"], world) for world, span in of.items())
        by = order[-1][0] - order[-2][0]
        if by > LATE_S:
            late.setdefault(order[-1][1], []).append((by, func, seq))
    for world, times in late.items():
        if len(times) >= max(REPEATED, SHARE * len(calls)):
            by = sorted(by for by, _, _ in times)[len(times) // 2]
            _, func, seq = times[-1]
            return NcclStraggler(
                world=world, team=team.hash, func=func, seq=seq, at=at, late=len(times), of=len(calls), late_s=by
            )
    return None
