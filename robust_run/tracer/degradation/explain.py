"""What is added to a verdict on ranks that are slower than their peers: why, what it costs, what to do. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from robust_run.tracer.degradation.causes import OF_DATA, OF_WORK, advice, most_telling
from robust_run.tracer.degradation.types import Cause, Cost, Degradation, Seen
from robust_run.tracer.degradation.words import costs, length
from robust_run.tracer.pace.types import NodePace, RoundResult
from robust_run.tracer.types import TraceVerdict

LATE_PART = 0.2
"""A rank is late by its data that waits for them so much of its own time, and by half of what is lost longer than its peers."""


def explained(
    verdict: TraceVerdict, newest: RoundResult, heard: Sequence[NodePace], seen: Sequence[Seen]
) -> TraceVerdict:
    """Return the verdict with a clause on each. `newest`: the round that it rests on; `heard`: what nodes said in it."""
    size = sum(count for _, count in newest.node_ranks)
    cost = Cost(newest.step_ms, max(newest.step_ms - newest.lost_ms, 0.0), size, newest.timed)
    late_ms, peers_ms, work_ms = _waits(verdict, heard)
    waits = late_ms >= LATE_PART * work_ms and late_ms - peers_ms >= 0.5 * newest.lost_ms
    here = [one for one in seen if one.node in verdict.nodes]
    cause: Cause = most_telling(here, OF_DATA if waits else OF_WORK) or ("data" if waits else "")
    because = next((f"; on {one.node}, {one.words}" for one in here if one.cause == cause), "")
    if waits:
        because = f"; it waits for data {length(late_ms)} a step (its peers {length(peers_ms)}){because}"
    found = Degradation(
        kind="node" if verdict.rule == "slow_node" else "rank",
        ranks=verdict.ranks,
        nodes=verdict.nodes,
        cause=cause,
        cost=cost,
        since_s=verdict.onset_s or 0.0,
    )
    lines = [f"it costs {costs(cost)}", f"to do: {advice(found)}"]
    lines += [f"on {one.node}: {one.words}" for one in here]
    return msgspec.structs.replace(
        verdict,
        sentence=f"{verdict.sentence}{because}",
        evidence=(*verdict.evidence[:1], *lines, *verdict.evidence[1:])[:40],
    )


def _waits(verdict: TraceVerdict, heard: Sequence[NodePace]) -> tuple[float, float, float]:
    """Return how long ranks at fault and the others wait for data in a step, and how long those at fault work; milliseconds."""
    slow, others, work = [], [], []
    for pace in (pace for node in heard for pace in node.ranks):
        data_ms = _median(pace.data_ms)
        if pace.rank in verdict.ranks:
            slow.append(data_ms)
            work.append(_median(pace.own_ms))
        else:
            others.append(data_ms)
    return _median(slow), _median(others), _median(work)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else 0.0
