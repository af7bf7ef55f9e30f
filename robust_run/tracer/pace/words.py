"""What is said of slow ranks and nodes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from robust_run.tracer.pace.types import RoundResult, SlowRank


class Span(msgspec.Struct, frozen=True):
    """The rounds that a verdict rests on."""

    rounds: int
    flagged: int
    """In how many of them."""
    length_s: float
    """Of one."""

    def __str__(self) -> str:
        length = f"{self.length_s:.3g} s"
        if self.flagged < self.rounds:
            return f"{self.flagged} of {self.rounds} rounds of {length}"
        return f"{self.rounds} rounds of {length} in a row"


def slow_rank(seen: Sequence[SlowRank], span: Span) -> str:
    """Return a clause about a rank that was suspect in these rounds."""
    newest = seen[-1]
    return (
        f"rank {newest.rank} (node {newest.node}) is slow: its own work takes {_ratio(seen):.3g} times that of its peers "
        f"({newest.own_ms:.0f} ms against {newest.peers_ms:.0f} ms) in {_percent(seen)} % of steps, {span}"
    )


def slow_node(node: str, ranks: Sequence[Sequence[SlowRank]], span: Span) -> str:
    """Return a clause about a node whose ranks were suspect in these rounds."""
    newest = [seen[-1] for seen in ranks]
    slow = sorted(one.slow_steps for one in newest)[(len(newest) - 1) // 2]
    ratio = sum(map(_ratio, ranks)) / len(ranks)
    return (
        f"node {node} is slow: its {len(ranks)} ranks need {ratio:.3g} times as long as their peers "
        f"in {slow} of {newest[0].steps} steps, {span}"
    )


def evidence(recent: Sequence[RoundResult], ranks: Collection[int]) -> tuple[str, ...]:
    """Return what the steps lose, and a line for each rank and round, at most 40 lines."""
    newest = recent[-1]
    lines = [
        f"a step takes {newest.step_ms:.1f} ms, {newest.lost_ms:.1f} ms less without what is slow "
        f"({newest.lost_ms / max(newest.step_ms, 1e-3):.0%})"
    ]
    for number, result in enumerate(recent, start=1):
        lines += [
            f"round {number}, steps to {result.through_step}: rank {one.rank} (node {one.node}) slow in "
            f"{one.slow_steps} of {one.steps} steps, {one.own_ms:.1f} ms against {one.peers_ms:.1f} ms"
            for one in result.suspects
            if one.rank in ranks
        ]
    return tuple(lines[:40])


def _ratio(seen: Sequence[SlowRank]) -> float:
    """Return the median of the ratios of these rounds."""
    return sorted(one.ratio for one in seen)[(len(seen) - 1) // 2]


def _percent(seen: Sequence[SlowRank]) -> int:
    return round(100 * sum(one.slow_steps for one in seen) / sum(one.steps for one in seen))
