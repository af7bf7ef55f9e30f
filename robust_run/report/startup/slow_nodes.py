"""Which nodes are slow again and again, from many starts. Pure.

A node is compared with the others of the same start only: so a far origin, a cold cache of all, or a heavier program make nobody
slow. What looks like a slow node and is none, and so is not named:

- the node with rank 0, which has more to do in most programs: it is not judged in that start;
- a start of one node, and one of which only the slowest nodes are known: nobody is judged, as those
  who were not slow are missing;
- phases in which ranks wait for each other: who waits long there is fast;
- chance. Some node is slow in nearly every start of a large job; one is named if it was slow more often than chance explains
  at the rate of all others, with as many nodes looked at;
- one bad day: the starts of one run share what was wrong then, so where there are several runs, chance must not explain in how
  many of them it was slow, either.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from robust_run.report.startup.phases import seconds_of, slow_from_s
from robust_run.report.startup.profile_types import SlowNode, SlowPhase
from robust_run.report.startup.types import PHASES, WAITS, AttemptStartup, Phase

LEAST_STARTS = 3
#: Slow in a smaller part of its starts, a node is not worth a look, however sure that is.
LEAST_SHARE = 0.1
#: How likely it may be that any node is named by chance.
CHANCE = 0.01
#: Nobody is slow less often than that.
LEAST_RATE = 0.02
#: The same for all nodes of a job.
_OF_THE_JOB: frozenset[Phase] = frozenset({"queue", "script"})
JUDGED: tuple[Phase, ...] = tuple(phase for phase in PHASES if phase not in WAITS | _OF_THE_JOB)


class Slowness(msgspec.Struct, frozen=True):
    """One phase in which a node was slow, in one start."""

    phase: Phase
    seconds: float
    peers_s: float


class _Record:
    """What is known of one node."""

    __slots__ = ("_run", "runs", "slow", "slow_runs", "starts")

    def __init__(self) -> None:
        self.starts = self.runs = self.slow_runs = 0
        self.slow: list[tuple[Slowness, ...]] = []
        self._run = ("", False)

    def add(self, run: str, slow: tuple[Slowness, ...]) -> None:
        """Add one start. Starts of a run come one after the other."""
        name, was_slow = self._run
        is_same, is_slow = name == run, bool(slow)
        self.starts += 1
        self.runs += not is_same
        self.slow_runs += is_slow and not (is_same and was_slow)
        self._run = (run, is_slow or (is_same and was_slow))
        if slow:
            self.slow.append(slow)


def judged(attempt: AttemptStartup) -> dict[str, tuple[Slowness, ...]]:
    """Return the nodes that can be judged in a start, each with the phases in which it was slow."""
    rows = {row.node: row for row in attempt.node_rows}
    names = {*rows, *attempt.other_nodes}
    if attempt.nodes < 2 or len(names) != attempt.nodes:
        return {}
    taken = {node: seconds_of(row) for node, row in rows.items()}
    first = {node for node, row in rows.items() if row.rank < attempt.ranks // attempt.nodes}
    found: dict[str, tuple[Slowness, ...]] = dict.fromkeys(names - first, ())
    for phase in JUDGED:
        summary = next((each for each in attempt.phases if each.phase == phase), None)
        if summary is None or summary.longest_s <= slow_from_s(0.0, attempt.total_s):
            continue  # nobody can be slow
        ordered = sorted(each.get(phase, 0.0) for each in taken.values())
        for node in rows.keys() - first:
            seconds = taken[node].get(phase, 0.0)
            peers_s = summary.median_s if attempt.other_nodes else median_without(ordered, seconds)
            if seconds > slow_from_s(peers_s, attempt.total_s):
                found[node] += (Slowness(phase, seconds, peers_s),)
    return found


def median_without(ordered: Sequence[float], value: float) -> float:
    """Return the median of all but one of them, which has this value. There are two at least."""
    place, count = bisect_left(ordered, value), len(ordered) - 1
    low, high = (count - 1) // 2, count // 2
    return (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2


class SlowNodes:
    """Gathers starts, and says at the end who was slow too often."""

    def __init__(self) -> None:
        self.starts = 0
        self._records: dict[str, _Record] = {}

    def add(self, run: str, attempt: AttemptStartup) -> None:
        """Look at one start of a run, which all its ranks have made."""
        found = judged(attempt)
        self.starts += bool(found)
        for node, slow in found.items():
            self._records.setdefault(node, _Record()).add(run, slow)

    @property
    def nodes(self) -> int:
        """How many have been judged at least once."""
        return len(self._records)

    def named(self, runs: int) -> tuple[SlowNode, ...]:
        """Return those that are slow again and again, the most often first. `runs`: how many there are in all."""
        records = self._records.values()
        all_starts, all_slow = sum(each.starts for each in records), sum(len(each.slow) for each in records)
        all_runs, all_slow_runs = sum(each.runs for each in records), sum(each.slow_runs for each in records)
        found = []
        for node, record in self._records.items():
            count, others = len(record.slow), all_starts - record.starts
            others_slow = all_slow - count
            if count < LEAST_STARTS or count < LEAST_SHARE * record.starts:
                continue
            chance = tail(count, record.starts, _rate(others_slow, others))
            if runs > 1:
                rate = _rate(all_slow_runs - record.slow_runs, all_runs - record.runs)
                chance = max(chance, tail(record.slow_runs, record.runs, rate))
            if self.nodes * chance < CHANCE:
                found.append(
                    SlowNode(
                        node=node,
                        slow_starts=count,
                        starts=record.starts,
                        runs=record.slow_runs,
                        runs_compared=record.runs,
                        phases=_by_phase(record.slow),
                        others_share=round(others_slow / others, 4) if others else 0.0,
                    )
                )
        return tuple(sorted(found, key=lambda each: (-each.slow_starts / each.starts, -each.slow_starts, each.node)))


def _rate(slow: int, compared: int) -> float:
    """Return how often others are slow, cautiously: of few it is not known well."""
    return max((slow + 1) / (compared + 2), LEAST_RATE)


def _by_phase(slow: Iterable[tuple[Slowness, ...]]) -> tuple[SlowPhase, ...]:
    by_phase: dict[Phase, list[Slowness]] = {}
    for start in slow:
        for each in start:
            by_phase.setdefault(each.phase, []).append(each)
    phases = [
        SlowPhase(
            phase=phase,
            starts=len(found),
            extra_s=round(median(each.seconds - each.peers_s for each in found), 3),
            times=round(median(each.seconds / each.peers_s if each.peers_s else 0.0 for each in found), 2),
        )
        for phase, found in by_phase.items()
    ]
    return tuple(sorted(phases, key=lambda each: (-each.starts, -each.extra_s)))


def tail(count: int, trials: int, rate: float) -> float:
    """Return how likely at least `count` of `trials` are by chance, if each is at this rate (above 0 and below 1)."""
    if count <= rate * trials:
        return 1.0
    log_rate, log_rest = math.log(rate), math.log1p(-rate)
    total = 0.0
    for number in range(count, trials + 1):
        chosen = math.lgamma(trials + 1) - math.lgamma(number + 1) - math.lgamma(trials - number + 1)
        part = math.exp(chosen + number * log_rate + (trials - number) * log_rest)
        total += part
        if part < 1e-6 * total:  # from here on they only shrink
            break
    return min(total, 1.0)
