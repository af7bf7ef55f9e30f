"""A collective of the program's own beside the backward pass of DDP, which gloo ends by aborting whoever got the wrong sizes."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tracer.verdict.scenes import Call, World, ended

from robust_run.health.types import Finding
from robust_run.tracer.types import BACKWARD, WENT_ON, Scene, TraceVerdict
from robust_run.tracer.verdict import RankPatience, look, post_mortem

ABORT = Finding(
    kind="native_crash",
    line="what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 336 vs 184.",
    trouble="mismatch",
)
OTHER_ABORT = Finding(kind="native_crash", line="what():  decoder queue is broken", trouble="native_crash")
LOST_PEER = Finding(kind="peer_connection", line="RuntimeError: Connection reset by peer", trouble="peer")
PASS = Call("collective", op=BACKWARD, numel=-1, line=8)
EXTRA = Call("collective", op="all_reduce", numel=500, line=16)


def dead(
    extra: set[int], size: int = 3, *, victim: int = 0, call: Call = EXTRA, finding: Finding | None = ABORT
) -> Scene:
    """After three steps ranks in `extra` make a call of their own, all others the next backward pass: gloo aborts `victim`."""
    start = Call("collective", op="broadcast", numel=1, peer=0, line=4)
    before = [start, *[PASS] * 3]
    programs = [[*before, *([call] if rank in extra else []), PASS, PASS] for rank in range(size)]
    groups = {"0": (tuple(range(size)), "default_pg")}
    scene = numbered_apart(World(groups, programs).run().scene(waited_s=0.2))
    scene = ended(scene, victim, -6, scene.at_s - 0.1, finding=finding)
    for sight in scene.ranks:
        if sight.exit_code is None:
            scene = ended(scene, sight.rank, 1, scene.at_s, finding=LOST_PEER)
    return scene


def numbered_apart(scene: Scene) -> Scene:
    """As a ring counts: backward passes for themselves."""
    ranks = []
    for sight in scene.ranks:
        assert sight.trace is not None
        counts, ops = {True: 0, False: 0}, []
        for op in sight.trace.ops:
            counts[op.op == BACKWARD] += 1
            ops.append(msgspec.structs.replace(op, seq=counts[op.op == BACKWARD]))
        ranks.append(msgspec.structs.replace(sight, trace=msgspec.structs.replace(sight.trace, ops=tuple(ops))))
    return msgspec.structs.replace(scene, ranks=tuple(ranks))


def judged(scene: Scene) -> TraceVerdict:
    found = post_mortem(scene)
    assert found is not None
    return found


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_the_one_rank_in_a_call_of_its_own_is_named_whomever_gloo_aborted(victim: int) -> None:
    found = judged(dead({1}, victim=victim))
    assert (found.kind, found.ranks, found.rule, found.confidence) == ("mismatch", (1,), "beside_backward", "high")
    assert found.sentence == (
        "rank 1 called all_reduce of 500 float32 as #2 of the world (at train.py:16 step), "
        "where 2 others are in the backward pass #4 (at train.py:8 step)"
    )
    assert found.over_evicted == ()


def test_the_one_rank_that_left_such_a_call_out_is_named() -> None:
    found = judged(dead({0, 2}))
    assert (found.kind, found.ranks, found.confidence) == ("mismatch", (1,), "high")
    assert found.sentence == (
        "rank 1 is in the backward pass #4 of the world (at train.py:8 step), "
        "where 2 others called all_reduce of 500 float32 as #2 (at train.py:16 step)"
    )


def test_of_two_ranks_both_are_named_and_neither_is_accused() -> None:
    found = judged(dead({1}, size=2))
    assert (found.kind, found.ranks, found.over_evicted, found.confidence) == ("mismatch", (0, 1), (0, 1), "low")
    assert "rank 1 called all_reduce of 500 float32 as #2 of the world" in found.sentence
    assert "where rank 0 is in the backward pass #4" in found.sentence


def test_a_call_that_was_begun_and_not_waited_for_is_found_too() -> None:
    found = judged(dead({1}, call=replace(EXTRA, asynchronous=True)))
    assert (found.kind, found.ranks) == ("mismatch", (1,))
    assert "rank 1 called all_reduce of 500 float32 as #2" in found.sentence


def test_that_a_rank_s_call_failed_is_no_doubt() -> None:
    scene = dead({1})
    ranks = [
        msgspec.structs.replace(sight, trace=msgspec.structs.replace(sight.trace, doubts=(WENT_ON,)))
        for sight in scene.ranks
        if sight.trace is not None
    ]
    assert judged(msgspec.structs.replace(scene, ranks=tuple(ranks))).confidence == "high"


def test_a_real_crash_while_ranks_are_in_different_calls_stays_one() -> None:
    """Ranks are apart for a moment in each step: only gloo's own word says that their calls met."""
    assert post_mortem(dead({1}, finding=OTHER_ABORT)) is None
    found = look(dead({1}, finding=OTHER_ABORT), RankPatience()).verdict
    assert found is not None and (found.kind, found.ranks) == ("crash", (0,))


def test_where_all_are_in_the_same_pass_nobody_is_named_for_it() -> None:
    scene = dead(set())
    assert post_mortem(scene) is None
    found = look(scene, RankPatience()).verdict
    assert found is not None
    assert (found.kind, found.rule, found.confidence) == ("mismatch", "other_size", "low")
    assert found.over_evicted == found.ranks == (0,)
    assert "ranks called different collectives" in found.sentence


def test_a_rank_that_is_further_than_its_peers_makes_no_call_beside_them() -> None:
    """It has come through the pass that the others are about to leave, and waits for them in the next call of all."""
    programs = [[PASS, PASS, *([EXTRA] if rank == 1 else [])] for rank in range(3)]
    scene = numbered_apart(World({"0": ((0, 1, 2), "default_pg")}, programs).run().scene(waited_s=0.2))
    ranks = list(scene.ranks)
    for rank in (0, 2):
        trace = ranks[rank].trace
        assert trace is not None
        last = msgspec.structs.replace(trace.ops[-1], state="waiting", done_at_s=None)
        trace = msgspec.structs.replace(trace, ops=(*trace.ops[:-1], last))
        ranks[rank] = msgspec.structs.replace(ranks[rank], trace=trace, exit_code=1, ended_at_s=scene.at_s)
    scene = msgspec.structs.replace(scene, ranks=tuple(ranks))
    assert post_mortem(ended(scene, 0, -6, scene.at_s - 0.1, finding=ABORT)) is None
