"""Whose communication is slow, by what all ranks wrote down of their calls; and what is added to a verdict on slow ranks."""

from __future__ import annotations

import pytest

from robust_run.tracer.degradation.explain import explained
from robust_run.tracer.degradation.groups import with_group
from robust_run.tracer.degradation.naming import odd_group
from robust_run.tracer.degradation.reported import reported
from robust_run.tracer.degradation.types import Seen
from robust_run.tracer.pace.types import NodePace, RankPace, Reported, RoundResult
from robust_run.tracer.types import Group, Op, RankTrace, TraceVerdict

SLOWER = TraceVerdict(kind="slow", ranks=(), nodes=(), confidence="medium", rule="slower_group", sentence="longer")


def traces(slow: str = "dp_1", by: float = 3.0) -> list[RankTrace]:
    """Four ranks in two groups of two; in each call one rank comes late, so that the other waits for it for a second."""
    found = []
    for rank in range(4):
        group = Group(name=f"dp_{rank % 2}", ranks=(rank % 2, rank % 2 + 2))
        took_s = 0.01 * (by if group.name == slow else 1.0)
        ops = tuple(
            Op(
                group=group.name,
                op="all_reduce",
                seq=seq,
                state="done",
                at_s=10.0 * seq + 1000.0 * rank - (1.0 if rank < 2 and seq % 2 else 0.0),  # no two clocks are the same
                done_at_s=10.0 * seq + 1000.0 * rank + took_s,
                numel=1 << 20,
            )
            for seq in range(1, 11)
        )
        found.append(
            RankTrace(rank=rank, world_size=4, pid=1, steps=10, last_at_s=0.0, blocked_s=0.0, ops=ops, groups=(group,))
        )
    return found


def test_the_group_whose_calls_take_longer_than_those_of_others_like_it_is_named() -> None:
    found = with_group(SLOWER, traces())
    assert found.group == "dp_1 (ranks 1 and 3)"
    assert found.sentence == "longer; it is that of group dp_1 (ranks 1 and 3)"
    assert found.evidence[-1] == "all_reduce of 1048576 elements takes 30 ms in it, 10 ms in the others like it"


@pytest.mark.parametrize("seen", [traces(by=1.2), traces()[:1], []])
def test_where_none_stands_out_or_nothing_is_known_none_is_named(seen: list[RankTrace]) -> None:
    assert with_group(SLOWER, seen) == SLOWER


def test_one_group_alone_is_compared_with_nothing() -> None:
    assert not odd_group({"dp_0": [30.0] * 10}) and not odd_group({"dp_0": [30.0] * 10, "dp_1": [1.0]})


def slow(late_ms: float) -> tuple[TraceVerdict, RoundResult, list[NodePace]]:
    verdict = TraceVerdict(
        kind="slow",
        ranks=(1,),
        nodes=("b",),
        confidence="high",
        rule="slow_rank",
        sentence="rank 1 is slow",
        evidence=("lost",),
    )
    newest = RoundResult(attempt=0, began_s=0, ended_s=10, node_ranks=(("a", 1), ("b", 1)), step_ms=100.0, lost_ms=40.0)
    heard = [
        NodePace(0, "a", 0, 10, (RankPace(0, "a", 1, (50.0,) * 9, (100.0,) * 9, (2.0,) * 9),)),
        NodePace(0, "b", 0, 10, (RankPace(1, "b", 1, (90.0,) * 9, (100.0,) * 9, (late_ms,) * 9),)),
    ]
    return verdict, newest, heard


def test_a_slow_rank_is_told_with_what_it_costs_and_why() -> None:
    found = explained(*slow(late_ms=42.0), ())
    assert found.sentence == "rank 1 is slow; it waits for data 42 ms a step (its peers 2 ms)"
    assert found.evidence[:2] == ("lost", "it costs 40% of throughput, 19.2 rank-hours a day")
    assert "num_workers" in found.evidence[2] and "robust check --node b" in found.evidence[2]
    limit = Seen("b", "cpu_limit", "the CPU limit of their cgroup holds ranks back 80 % of the time")
    assert explained(*slow(2.0), (limit, Seen("a", "gpu_clock", "hot"))).sentence == (
        "rank 1 is slow; on b, the CPU limit of their cgroup holds ranks back 80 % of the time"
    )
    assert explained(*slow(2.0), ()).sentence == "rank 1 is slow"


@pytest.mark.parametrize(
    "points, wanted",
    [
        ([], None),
        ([(1.0, {"loss": 2.0})], None),
        ([(1.0, {"tokens": 100.0}), (3.0, {"tokens": 400.0})], Reported(200.0)),
        ([(1.0, {"tokens": 100.0, "tokens_per_s": 7.0}), (3.0, {"planned_step_s": 0.5})], Reported(7.0, None, 0.5)),
        ([(1.0, {"tokens": float("nan"), "planned_tokens_per_s": -1.0})], None),
    ],
)
def test_what_a_script_reports_of_its_throughput(
    points: list[tuple[float, dict[str, float]]], wanted: Reported
) -> None:
    assert reported(points) == wanted
