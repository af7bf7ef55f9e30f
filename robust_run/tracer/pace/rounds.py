"""Rounds: who stands out again and again, and what is said of them. Pure: every answer is a new value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from robust_run.tracer.pace.judge import judge_round
from robust_run.tracer.pace.types import (
    FAR_AHEAD,
    MISSES_ALLOWED,
    ROUNDS_NEEDED,
    STEADINESS,
    NodePace,
    RoundResult,
    SlowRank,
)
from robust_run.tracer.types import Group, TraceVerdict

MOST_ROUNDS = 16
"""That are remembered."""
LEAST_VARIANCE = 0.05**2
"""Of shares between rounds: chance alone makes as much."""


class Rounds(msgspec.Struct, frozen=True):
    """The newest rounds of an attempt that counted, oldest first."""

    attempt: int = -1
    results: tuple[RoundResult, ...] = ()

    @property
    def through_step(self) -> int:
        """The newest step that was judged; 0 before the first round."""
        return self.results[-1].through_step if self.results else 0

    def hear(
        self, nodes: Sequence[NodePace], groups: Sequence[Group], p2p_pairs: Collection[tuple[int, int]]
    ) -> Rounds:
        """Judge what the nodes said in this round (of the newest attempt among them) and return the rounds with it.

        Times of all nodes are of the controller's clock. Nothing changes while there are too few new steps.
        """
        if not nodes:
            return self
        attempt = max(node.attempt for node in nodes)
        heard = [node for node in nodes if node.attempt == attempt]
        known = self if self.attempt == attempt else Rounds(attempt)
        began_s = known.results[-1].ended_s if known.results else min(node.began_s for node in heard)
        result = judge_round(
            [pace for node in heard for pace in node.ranks],
            groups,
            p2p_pairs,
            began_s=began_s,
            ended_s=max(node.ended_s for node in heard),
            attempt=attempt,
            since_step=known.through_step,
            timed=[pace for node in heard for pace in node.timed],
        )
        return known.add(result)

    def add(self, result: RoundResult) -> Rounds:
        """Return the rounds with one more. Another attempt begins anew; a round without enough new steps does not count."""
        known = self if self.attempt == result.attempt else Rounds(result.attempt)
        if result.steps == 0 or result.through_step <= known.through_step:
            return known
        return Rounds(known.attempt, (*known.results, result)[-MOST_ROUNDS:])

    def verdict(self, rounds_needed: int = ROUNDS_NEEDED, misses_allowed: int = MISSES_ALLOWED) -> TraceVerdict | None:
        """Return who is slow; None unless a rank was suspect in the newest round and in nearly all of the rounds needed.

        A node is at fault where (nearly) all of its two or more ranks are, and others are not; otherwise its ranks are.
        """
        recent = self.results[-rounds_needed:]
        if rounds_needed < 1 or len(recent) < rounds_needed:
            return None
        flagged = Counter(suspect.rank for result in recent for suspect in result.suspects)
        persistent = {
            suspect.rank: suspect
            for suspect in recent[-1].suspects
            if flagged[suspect.rank] >= max(1, rounds_needed - misses_allowed)
        }
        persistent = {
            rank: suspect
            for rank, suspect in persistent.items()
            if _is_steady(_seen(recent, rank)) and _is_far_ahead(recent, suspect, persistent)
        }
        if not persistent:
            return None
        return _verdict(recent, persistent, flagged)


def _verdict(recent: Sequence[RoundResult], persistent: dict[int, SlowRank], flagged: Counter[int]) -> TraceVerdict:
    seen = {rank: _seen(recent, rank) for rank in persistent}
    nodes = _slow_nodes(recent[-1], persistent)
    alone = sorted(rank for rank, suspect in persistent.items() if suspect.node not in nodes)
    span = RoundSpan(
        rounds=len(recent),
        flagged=min(flagged[rank] for rank in persistent),
        length_s=(recent[-1].ended_s - recent[0].began_s) / len(recent),
    )
    parts = [slow_node(node, [seen[r] for r in seen if persistent[r].node == node], span) for node in nodes]
    parts += [slow_rank(seen[rank], span) for rank in alone]
    sure = span.flagged == span.rounds and all(_share(seen[rank]) >= 0.5 for rank in persistent)
    return TraceVerdict(
        kind="slow",
        ranks=tuple(sorted(persistent)),
        nodes=tuple(sorted({suspect.node for suspect in persistent.values()})),
        confidence="high" if sure else "medium",
        rule="slow_node" if nodes else "slow_rank",
        sentence="; ".join(parts[:4]) + (f"; and {len(parts) - 4} more" if len(parts) > 4 else ""),
        evidence=evidence(recent, persistent),
        onset_s=min(rounds[0].since_s for rounds in seen.values()),
    )


def _seen(recent: Sequence[RoundResult], rank: int) -> list[SlowRank]:
    """Return what was said of a rank in the rounds in which it was suspect, oldest first."""
    return [suspect for result in recent for suspect in result.suspects if suspect.rank == rank]


def _is_steady(seen: Sequence[SlowRank]) -> bool:
    """Whether the surplus of slow steps is large against its changes from round to round (a t-statistic)."""
    surplus = [one.share - one.usual_share for one in seen]
    mean = sum(surplus) / len(surplus)
    variance = sum((value - mean) ** 2 for value in surplus) / max(1, len(surplus) - 1)
    error = math.sqrt(max(variance, LEAST_VARIANCE) / len(surplus))
    return mean >= STEADINESS * error


def _is_far_ahead(recent: Sequence[RoundResult], suspect: SlowRank, persistent: Collection[int]) -> bool:
    """Whether it is slow much more often than any peer that is not itself persistently slow, all rounds together."""
    total: dict[int, float] = {}
    for result in recent:
        for rank, share in result.shares:
            total[rank] = total.get(rank, 0.0) + share
    others = [total.get(rank, 0.0) for rank in suspect.peers if rank not in persistent]
    return total.get(suspect.rank, 0.0) >= FAR_AHEAD * max(others, default=0.0)


def _slow_nodes(newest: RoundResult, persistent: dict[int, SlowRank]) -> list[str]:
    """Return the nodes whose ranks are slow: at least 7 of 8, where there are nodes with others than slow ranks."""
    sizes = dict(newest.node_ranks)
    slow = Counter(suspect.node for suspect in persistent.values())
    if all(name in slow for name in sizes):
        return []
    return sorted(name for name, count in slow.items() if sizes[name] >= 2 and 8 * count >= 7 * sizes[name])


def _share(rounds: Sequence[SlowRank]) -> float:
    """Return in which share of the steps of these rounds a rank was slow."""
    return sum(one.slow_steps for one in rounds) / sum(one.steps for one in rounds)


class RoundSpan(msgspec.Struct, frozen=True):
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


def slow_rank(seen: Sequence[SlowRank], span: RoundSpan) -> str:
    """Return a clause about a rank that was suspect in these rounds."""
    newest = seen[-1]
    return (
        f"rank {newest.rank} (node {newest.node}) is slow: its own work takes {_ratio(seen):.3g} times that of its peers "
        f"({newest.own_ms:.0f} ms against {newest.peers_ms:.0f} ms) in {_percent(seen)} % of steps, {span}"
    )


def slow_node(node: str, ranks: Sequence[Sequence[SlowRank]], span: RoundSpan) -> str:
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
    lines += ["own times are those of the GPUs, without what they waited for peers"] if newest.timed else []
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
