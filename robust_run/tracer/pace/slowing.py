"""When the steps of a job suddenly take many times what they took, for all or by one rank. Pure: every answer is a new value.

Only what lasts is said: a long step alone is an evaluation or a checkpoint. It is compared with what nine of ten steps before it
were shorter than, so a job with steps of two lengths, or whose steps grow, is compared with its long ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from robust_run.tracer.pace.types import CpuShort, NodePace, RankPace, TimedPace
from robust_run.tracer.words import duration, ranks_words

RATIO = 10.0
"""Steps are slow that take so many times as long as usual,"""
LEAST_MS = 1000.0
"""at least so long each,"""
NEEDED, LASTS_MS = 5, 10_000.0
"""for so many steps and so long together."""
NEARLY_ALL = 0.8
"""Of those, so many take at least half of that."""
STEADY, USUAL = 30, 64
"""Steps that are needed to know what is usual, and that are looked at."""
REMEMBERED = 2 * USUAL
OVER_RATIO, OVER_MS = 3.0, 500.0
"""It is over when steps take less than so many times the usual, or than this."""
OWN_SHARE, OWN_RATIO = 0.5, 3.0
"""A rank is slower by itself that works for this share of a slow step, so many times as long as it did."""
MOST = 5
"""More often it is not said in an attempt."""
HELD_SHARE, PRESSURE_PERCENT = 0.1, 50.0
"""Of a round in which a CPU limit held ranks back, of ten seconds in which work waited for a CPU: said as what may be why."""


class Slowing(msgspec.Struct, frozen=True, kw_only=True):
    """The newest steps of an attempt, as its first rank sees them, and whether they are slow."""

    attempt: int = -1
    through: int = 0
    """The newest step that was taken in."""
    lengths_ms: tuple[float, ...] = ()
    """Of the newest steps, oldest first."""
    usual_ms: float = 0.0
    """Nine of ten steps were shorter before they became slow; 0: they are not slow."""
    slow_ms: float = 0.0
    """For how long they have been slow."""
    times: int = 0
    """How often they became slow."""

    def hear(self, nodes: Sequence[NodePace], short: Mapping[str, CpuShort] = {}) -> tuple[Slowing, str]:
        """Take in what the nodes said in a round; return a line too where steps have become slow, or are as they were.

        `short`: how short CPU time is, by name of the node.
        """
        attempt = max((node.attempt for node in nodes), default=-1)
        known = self if self.attempt == attempt else Slowing(attempt=attempt)
        paces = [pace for node in nodes if node.attempt == attempt for pace in node.ranks]
        teller = min(paces, key=lambda pace: pace.rank, default=None)
        if teller is None:
            return known, ""
        new = teller.step_ms[max(known.through + 1 - teller.first_step, 0) :]
        if not new:
            return known, ""
        known = msgspec.structs.replace(
            known,
            through=teller.first_step + len(teller.step_ms) - 1,
            lengths_ms=(*known.lengths_ms, *new)[-REMEMBERED:],
        )
        if known.usual_ms:
            return known._going_on(new)
        timed = [pace for node in nodes if node.attempt == attempt for pace in node.timed]
        return known._begun(paces, timed, short)

    def _begun(
        self, paces: Sequence[RankPace], timed: Sequence[TimedPace], short: Mapping[str, CpuShort]
    ) -> tuple[Slowing, str]:
        count = _slow_steps(self.lengths_ms) if self.times < MOST else 0
        if not count:
            return self, ""
        tail, before = self.lengths_ms[-count:], self.lengths_ms[:-count][-USUAL:]
        line = (
            f"steps have taken {_words(_median(tail))} instead of {_words(_median(before))} for {duration(sum(tail) / 1e3)}"
            f"{_who(_told(paces, timed, self.through, count))}{_why(short)}"
        )
        slow = msgspec.structs.replace(self, usual_ms=_usual(before), slow_ms=sum(tail), times=self.times + 1)
        return slow, line

    def _going_on(self, new: Sequence[float]) -> tuple[Slowing, str]:
        limit_ms = max(OVER_RATIO * self.usual_ms, OVER_MS)
        fast = next((n for n, length in enumerate(reversed(self.lengths_ms)) if length >= limit_ms), REMEMBERED)
        newest = self.lengths_ms[-NEEDED:]
        if _median(newest) >= limit_ms:
            return msgspec.structs.replace(self, slow_ms=self.slow_ms + sum(new)), ""
        lasted = duration((self.slow_ms + sum(length for length in new if length >= limit_ms)) / 1e3)
        line = f"steps take {_words(_median(newest))} again; they were slow for {lasted}"
        return msgspec.structs.replace(self, lengths_ms=self.lengths_ms[-fast:] if fast else (), usual_ms=0.0), line


def _slow_steps(lengths_ms: Sequence[float]) -> int:
    """Return how many of the newest steps are slow by what was usual before them; 0 if they are not, or not for long enough."""
    for count in range(len(lengths_ms) - STEADY, NEEDED - 1, -1):
        tail = lengths_ms[-count:]
        limit_ms = max(RATIO * _usual(lengths_ms[:-count][-USUAL:]), LEAST_MS)
        lasts = sum(tail) >= LASTS_MS
        slow = sum(length >= limit_ms / 2 for length in tail)
        if lasts and tail[0] >= limit_ms / 2 and slow >= NEARLY_ALL * count and _median(tail) >= limit_ms:
            return count
    return 0


_Lengths = tuple[float, ...]
_Told = tuple[int, _Lengths, _Lengths, int]
"""Of a rank: own times and lengths of steps, oldest first, and how many of the newest are slow."""


def _told(paces: Sequence[RankPace], timed: Sequence[TimedPace], through: int, count: int) -> list[_Told]:
    """Return what ranks, or the GPUs of all of them, say of so many newest steps through one, and of those before."""
    on_gpus = {pace.rank: pace for pace in timed}
    told: list[_Told] = [(pace.rank, pace.own_ms, pace.step_ms, count) for pace in paces]
    if all(pace.rank in on_gpus for pace in paces):
        told = []
        for pace in on_gpus.values():
            last = pace.first_step + pace.stride * (len(pace.own_ms) - 1)
            told.append((pace.rank, pace.own_ms, pace.step_ms, (last - (through - count)) // pace.stride))
    return [one for one in told if one[3] > 0 and len(one[1]) == len(one[2]) >= one[3] + NEEDED]


def _who(told: Sequence[_Told]) -> str:
    """Say which ranks need so long by themselves, without what they wait for each other."""
    slow = tuple(rank for rank, own_ms, step_ms, count in told if _is_slow(own_ms, step_ms, count))
    if len(told) < 2:
        return ""
    if len(slow) == len(told):
        return "; all ranks are slower"
    if not slow:
        return "; no rank is slower by itself, they wait for each other for longer"
    return f"; {ranks_words(slow)} {'is' if len(slow) == 1 else 'are'} slower"


def _is_slow(own_ms: _Lengths, step_ms: _Lengths, count: int) -> bool:
    newest_ms = _median(own_ms[-count:])
    return newest_ms >= OWN_SHARE * _median(step_ms[-count:]) and newest_ms >= OWN_RATIO * _median(own_ms[:-count])


def _why(short: Mapping[str, CpuShort]) -> str:
    """Say where CPU time is short."""
    node = max(short, key=lambda name: short[name].held_share, default="")
    if node and short[node].held_share >= HELD_SHARE:
        share = f"{short[node].held_share * 100:.0f} % of the time"
        return f"; on {node} the CPU limit of their cgroup holds ranks back {share}"
    node = max(short, key=lambda name: short[name].pressure_percent, default="")
    if node and short[node].pressure_percent >= PRESSURE_PERCENT:
        return f"; on {node} work waits for a CPU {short[node].pressure_percent:.0f} % of the time"
    return ""


def _usual(lengths_ms: Sequence[float]) -> float:
    ordered = sorted(lengths_ms)
    return ordered[int(0.9 * (len(ordered) - 1))]


def _median(lengths_ms: Sequence[float]) -> float:
    ordered = sorted(lengths_ms)
    return ordered[len(ordered) // 2]


def _words(length_ms: float) -> str:
    return duration(length_ms / 1e3) if length_ms >= LEAST_MS else f"{length_ms / 1e3:.2g} s"
