"""GPUs that all stand where the others do: they compute something else first, and nobody is singled out."""

from __future__ import annotations

import msgspec
import pytest
from tracer.nccl.playing import StartRank
from tracer.verdict.inside_scenes import asleep

from robust_run.tracer.nccl.rules import diagnose
from robust_run.tracer.nccl.types import NcclSight, NcclTrace
from robust_run.tracer.types import RankSight, Scene
from robust_run.tracer.verdict import RankPatience, look


def enqueued(start_rank: StartRank, ranks: int, func: str) -> list[NcclTrace]:
    """Traces of ranks whose proxy threads offer a buffer for the third operation, which no GPU has begun."""
    traces = []
    for number in range(ranks):
        rank = start_rank(6)
        rank.play(f"comm 0 dp_0 4096 {ranks} {ranks} {number}")
        for call in range(3):
            following, before = (number + 1) % ranks, (number - 1) % ranks
            rank.play(
                f"coll 0 1 {call} {func} 1024 ncclFloat32 0",
                "stop 1",
                f"op 0 2 1 0 0 {following} 4 1",
                f"op 0 3 1 0 0 {before} 4 0",
            )
            if call < 2:
                rank.play("steps 0 2 0 4 1", "steps 0 3 0 4 0", "stop 2", "stop 3")
            else:
                rank.play("step 0 4 2 0", "state 4 8 0", "step 0 5 3 0", "state 5 10 0")
        traces.append(rank.trace())
    return traces


@pytest.mark.parametrize("per_node", [1, 2, 4])
@pytest.mark.parametrize("func", ["AllReduce", "AllGather", "ReduceScatter"])
def test_nobody_is_singled_out(start_rank: StartRank, func: str, per_node: int) -> None:
    traces = enqueued(start_rank, 4, func)
    sights = [
        NcclSight(rank=rank, node=f"node{rank // per_node}", trace=trace, before=trace)
        for rank, trace in enumerate(traces)
    ]
    (fault,) = diagnose(sights).faults
    assert (fault.kind, fault.ranks, fault.confidence) == ("gpu", (0, 1, 2, 3), "low")
    assert fault.sentence.endswith("of dp_0; none of their GPUs goes on with it (ranks 0-3)")


def test_they_are_given_the_time_of_work(start_rank: StartRank) -> None:
    traces = enqueued(start_rank, 2, "AllGather")
    last_s = max(trace.glance.event_s or 0.0 for trace in traces)
    sights = tuple(
        RankSight(rank=rank, node=f"node{rank}", nccl=trace, nccl_before=trace, processes=(asleep(100 + rank),))
        for rank, trace in enumerate(traces)
    )
    patience = RankPatience(after_s=5.0)
    scene = Scene(at_s=last_s + 60.0, attempt=0, world_size=2, ranks=sights)
    assert look(scene, patience).verdict is None
    late = msgspec.structs.replace(scene, at_s=last_s + patience.working_s + 5.0)
    verdict = look(late, patience).verdict
    assert verdict is not None
    assert (verdict.kind, verdict.ranks, verdict.over_evicted) == ("comm_stall", (0, 1), (0, 1))
    assert verdict.confidence == "low"
