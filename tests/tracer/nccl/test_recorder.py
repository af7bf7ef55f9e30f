"""torch's flight recorder tells whether the GPU of an accused rank has begun what the others wait for."""

from __future__ import annotations

from typing import Any

from robust_run.tracer.nccl.recorder import LINES, lines
from robust_run.tracer.ras.rules import second_opinion
from robust_run.tracer.types import Op, RankSight, Scene, TraceVerdict


def op(seq: int, on_gpu: bool | None, state: Any = "waiting") -> Op:
    return Op(group="dp_1", op="all_gather", seq=seq, state=state, at_s=float(seq), on_gpu=on_gpu)


def sight(rank: int, *ops: Op) -> RankSight:
    return RankSight(rank=rank, node="a", recorded=ops)


def test_the_oldest_under_way_is_told_of_the_accused_and_counted_of_the_others():
    sights = [
        sight(0, op(7, True, "done"), op(8, True)),
        sight(1, op(7, True, "done"), op(8, False), op(9, False)),
        sight(2, op(8, True)),
        sight(3, op(8, False)),
    ]
    assert lines(sights, [1]) == (
        "torch's flight recorder: all_gather #8 of group dp_1 has not begun on the GPU of rank 1",
        "torch's flight recorder: 2 of 3 other ranks have begun theirs on the GPU",
    )


def test_where_starts_are_not_known_nothing_is_said():
    assert lines([sight(0, op(8, None)), sight(1, op(8, None))], [1]) == ()
    assert lines([sight(0, op(8, True)), sight(1)], [1]) == ()


def test_of_many_accused_few_lines_are_made():
    assert len(lines([sight(rank, op(8, False)) for rank in range(50)], list(range(50)))) == LINES


def test_it_is_kept_with_the_evidence_and_changes_nothing_else():
    verdict = TraceVerdict(
        kind="comm_stall", ranks=(1,), nodes=("a",), confidence="medium", rule="r", sentence="s", evidence=("e",)
    )
    scene = Scene(at_s=10.0, attempt=0, world_size=2, ranks=(sight(0, op(8, True)), sight(1, op(8, True))))
    found = second_opinion(verdict, scene)
    assert (found.ranks, found.confidence, len(found.evidence)) == ((1,), "medium", 3)
