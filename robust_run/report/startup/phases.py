"""Phases of a start over all ranks: how long they took, and who took much longer than the others. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from robust_run.report.startup.types import (
    MOST_STRAGGLERS,
    PHASES,
    WAITS,
    Phase,
    PhaseSummary,
    RankRow,
    StartStraggler,
)

#: A rank is a straggler in a phase that takes it so many times as long as the median,
STRAGGLER_RATIO = 1.3
#: and so much longer in seconds and as a part of the whole start.
STRAGGLER_S, STRAGGLER_PART = 0.3, 0.03
#: Phases that belong to a node: stragglers in them are nodes.
NODE_PHASES: frozenset[Phase] = frozenset({"queue", "script", "agent", "image", "snapshot", "meet"})


def seconds_of(row: RankRow) -> dict[Phase, float]:
    """Return how long a rank was in each phase; phases in which it was not are left out."""
    found: dict[Phase, float] = {}
    for span in row.spans:
        found[span.phase] = found.get(span.phase, 0.0) + span.ended_s - span.began_s
    return found


def phases_of(rows: Sequence[RankRow], total_s: float) -> tuple[PhaseSummary, ...]:
    """Return each phase that any rank was in, with the ranks and nodes that took much longer than the others in it."""
    seconds = [(seconds_of(row), row) for row in rows]
    present = set(chain.from_iterable(each for each, _ in seconds))
    return tuple(
        _phase(phase, [(each.get(phase, 0.0), row) for each, row in seconds], total_s)
        for phase in PHASES
        if phase in present
    )


def _phase(phase: Phase, taken: list[tuple[float, RankRow]], total_s: float) -> PhaseSummary:
    ordered = sorted(seconds for seconds, _ in taken)
    median_s = ordered[(len(ordered) - 1) // 2]
    longest_s, slowest = max(taken, key=lambda each: (each[0], -each[1].rank))
    found = [] if phase in WAITS else _stragglers(phase, taken, median_s, total_s)
    return PhaseSummary(
        phase=phase,
        median_s=round(median_s, 3),
        p90_s=round(ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))], 3),
        longest_s=round(longest_s, 3),
        node=slowest.node,
        rank=slowest.rank,
        stragglers=tuple(found[:MOST_STRAGGLERS]),
        straggler_count=len(found),
    )


def _stragglers(
    phase: Phase, taken: list[tuple[float, RankRow]], median_s: float, total_s: float
) -> list[StartStraggler]:
    """Return who takes much longer, slowest first; a node where most of its ranks do."""
    limit_s = slow_from_s(median_s, total_s)
    slow = [(seconds, row) for seconds, row in taken if seconds > limit_s]
    ranks_of: dict[str, int] = {}
    for _, row in taken:
        ranks_of[row.node] = ranks_of.get(row.node, 0) + 1
    slow_of: dict[str, list[float]] = {}
    for seconds, row in slow:
        slow_of.setdefault(row.node, []).append(seconds)
    several = len(ranks_of) > 1
    whole = {
        node: max(of_node)
        for node, of_node in slow_of.items()
        if several and (phase in NODE_PHASES or 2 * len(of_node) > ranks_of[node])
    }
    found = [StartStraggler(node, -1, round(seconds, 3)) for node, seconds in whole.items()]
    found += [StartStraggler(row.node, row.rank, round(seconds, 3)) for seconds, row in slow if row.node not in whole]
    return sorted(found, key=lambda each: (-each.seconds, each.rank))


def slow_from_s(median_s: float, total_s: float) -> float:
    """Return above what a phase is slow, where its median is that and the whole start took so long."""
    return max(STRAGGLER_RATIO * median_s, median_s + max(STRAGGLER_S, STRAGGLER_PART * total_s))
