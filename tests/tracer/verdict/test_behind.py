"""Nobody is seen to wait, but torch has work under way to which a rank has not come: who is named, and who only looks like it."""

from __future__ import annotations

from typing import Any

import msgspec
from seen_ranks import GETS, SAVES, SPINS, TORCH, process, sight, stack

from robust_run.tracer.types import FlightSight, Group, Op, RankSight, RankTrace, Scene, StepMark
from robust_run.tracer.verdict import RankPatience, look

NOW_S = 100.0
#: A thread that waits for its GPU is in C++, wherever in the program that is.
SYNCHRONIZES = stack("/app/train.py:60 loss_of", "/app/train.py:90 <module>")
IN_GRAPH = stack(f"{TORCH}/_ops.py:1279 __call__", "/tmp/torchinductor_me/ab/cabc.py:71 call", "/app/train.py:9 step")


def calls(count: int, open_ones: int, *, nccl: bool = True, since_s: float = 90.0) -> tuple[Op, ...]:
    return tuple(
        Op(
            group="5",
            op="all_reduce",
            seq=seq,
            state="done" if seq <= count - open_ones else "waiting",
            at_s=since_s if seq > count - open_ones else since_s - 10.0,
            on_gpu=None if not nccl else seq <= count - open_ones or None,
        )
        for seq in range(1, count + 1)
    )


def rank(number: int, recorded: tuple[Op, ...], *processes: Any, last_s: float = 90.0, **fields: Any) -> RankSight:
    trace = RankTrace(
        rank=number,
        world_size=4,
        pid=10,
        steps=3,
        last_at_s=last_s,
        blocked_s=0.0,
        ops=(),
        groups=(Group(name="5", desc="dp_1", ranks=(0, 1, 2, 3), limit_s=600.0, backends="cuda:nccl"),),
        marks=(StepMark(at_s=last_s, blocked_s=0.0),),
    )
    seen = processes or (process(SYNCHRONIZES, SYNCHRONIZES, cpu=1.0),)
    return sight(*seen, rank=number, recorded=recorded, **{"trace": trace} | fields)


def scene(*ranks: RankSight) -> Scene:
    return Scene(at_s=NOW_S, attempt=0, world_size=4, ranks=ranks)


def three_and(late: RankSight, **fields: Any) -> Scene:
    """Ranks 0, 2 and 3 have given collectives 11 and 12 to NCCL ten seconds ago; nothing has happened since."""
    others = [rank(number, calls(12, 2), **fields) for number in (0, 2, 3)]
    return scene(others[0], late, *others[1:])


def asleep(number: int = 1, count: int = 10, **fields: Any) -> RankSight:
    return rank(number, calls(count, 0), process(GETS, GETS), **fields)


def test_the_rank_behind_is_named_with_its_group_and_by_how_much() -> None:
    found = look(three_and(asleep()), RankPatience()).verdict
    assert found is not None
    assert (found.kind, found.rule, found.ranks, found.group) == ("hang", "behind", (1,), "group dp_1")
    assert found.sentence == (
        "rank 1 is 2 collectives behind in group dp_1: 3 ranks (0,2-3) have had all_reduce #11 under way for 10.0 s"
        " without it; it is in data.py:88 batch in queue.py get"
    )
    assert found.evidence[:2] == (
        "torch's flight recorder: rank 1: #10 in group dp_1",
        "torch's flight recorder: 3 ranks (0,2-3): #12 in group dp_1",
    )


def test_it_is_no_proof_and_ends_where_torchs_own_watchdog_would_end_it() -> None:
    found = look(three_and(asleep()), RankPatience()).verdict
    assert found is not None
    assert (found.proven, found.onset_s, found.expires_s) == (False, 90.0, 690.0)
    assert (found.at_work, found.only_told) == (False, False)


def test_where_no_watchdog_would_end_it_nothing_is_done_about_it() -> None:
    ranks = []
    for seen in three_and(asleep()).ranks:
        assert seen.trace is not None
        groups = tuple(msgspec.structs.replace(group, backends="cpu:gloo") for group in seen.trace.groups)
        ranks.append(msgspec.structs.replace(seen, trace=msgspec.structs.replace(seen.trace, groups=groups)))
    found = look(scene(*ranks), RankPatience()).verdict
    assert found is not None and (found.only_told, found.at_work) == (True, False)


def test_a_rank_that_works_has_as_long_as_any_that_works() -> None:
    saving = rank(1, calls(10, 0), process(SAVES, SAVES, io_bytes=50_000_000))
    found = look(three_and(saving), RankPatience())
    assert found.verdict is None
    assert found.again_s is not None and found.worked == ((1, NOW_S),)
    assert "work of 3 ranks has been under way for 10.0 s without rank 1: writing" in found.reason


def test_a_rank_that_evaluates_alone_works() -> None:
    forward = stack("/app/model.py:20 forward", "/app/eval.py:12 score", "/app/train.py:95 <module>")
    loss = stack("/app/loss.py:5 loss", "/app/eval.py:12 score", "/app/train.py:95 <module>")
    evaluates = process(forward, loss, forward, cpu=0.9)
    assert look(three_and(rank(1, calls(10, 0), evaluates)), RankPatience()).verdict is None


def test_one_whose_python_is_silent_but_whose_work_in_another_group_gets_done_is_not_hung() -> None:
    going = asleep(flight=FlightSight(at_s=99.0, moved_at_s=97.0))
    found = look(three_and(going), RankPatience())
    assert found.verdict is None
    assert "still making progress (3.0 s ago)" in found.reason
    stands = asleep(flight=FlightSight(at_s=99.0, moved_at_s=80.0))
    assert look(three_and(stands), RankPatience()).verdict is not None


def test_the_second_clock_counts_for_a_wait_in_a_call_too() -> None:
    waiting = tuple(msgspec.structs.replace(op, waiting_at_s=90.0) for op in calls(12, 1, nccl=False))
    seen = three_and(asleep())
    ranks = []
    for one in seen.ranks:
        assert one.trace is not None
        ops = calls(11, 0, nccl=False) if one.rank == 1 else waiting
        ranks.append(msgspec.structs.replace(one, recorded=(), trace=msgspec.structs.replace(one.trace, ops=ops)))
    quiet = look(scene(*ranks), RankPatience()).verdict
    assert quiet is not None and quiet.ranks == (1,) and quiet.rule == "never_joined"
    ranks[1] = msgspec.structs.replace(ranks[1], flight=FlightSight(at_s=99.0, moved_at_s=98.0))
    assert look(scene(*ranks), RankPatience()).verdict is None


def test_ranks_that_do_something_else_meanwhile_are_not_kept_waiting() -> None:
    busy = process(SAVES, SAVES, io_bytes=50_000_000)
    others = [rank(number, calls(12, 2), busy) for number in (0, 2, 3)]
    assert look(scene(others[0], asleep(), *others[1:]), RankPatience()).verdict is None


def test_nor_are_those_that_made_a_call_or_a_step_a_moment_ago() -> None:
    assert look(three_and(asleep(), last_s=98.0), RankPatience()).verdict is None


def test_nor_those_of_which_something_was_completed() -> None:
    assert look(three_and(asleep(), flight=FlightSight(at_s=99.0, moved_at_s=98.0)), RankPatience()).verdict is None


def test_a_member_of_which_nothing_is_recorded_in_the_group_may_have_come() -> None:
    assert look(three_and(rank(1, ())), RankPatience()).verdict is None


def test_where_all_have_come_a_gpu_may_have_other_work_first() -> None:
    assert look(three_and(rank(1, calls(12, 2))), RankPatience()).verdict is None


def test_a_broadcast_that_a_rank_is_done_with_does_not_make_the_others_late() -> None:
    done = [rank(number, calls(12, 0)) for number in (0, 2, 3)]
    assert look(scene(done[0], asleep(), *done[1:]), RankPatience()).verdict is None


def test_a_group_that_ranks_made_anew_is_not_compared() -> None:
    seen = three_and(asleep())
    doubt = ("ended its process groups and made them anew",)
    ranks = [msgspec.structs.replace(one, trace=msgspec.structs.replace(one.trace, doubts=doubt)) for one in seen.ranks]
    assert look(scene(*ranks), RankPatience()).verdict is None


def test_a_rank_asleep_in_a_compiled_graph_waits_in_what_torch_has_under_way() -> None:
    others = [rank(number, calls(12, 1, nccl=False), process(IN_GRAPH, IN_GRAPH)) for number in (0, 2, 3)]
    late = rank(1, calls(11, 0, nccl=False), process(GETS, GETS))
    found = look(scene(others[0], late, *others[1:]), RankPatience()).verdict
    assert found is not None and (found.rule, found.ranks) == ("never_joined", (1,))
    assert "never joined all_reduce #12 of group dp_1 (3 ranks have been waiting" in found.sentence


def test_one_that_computes_in_an_operator_does_not() -> None:
    computing = process(IN_GRAPH, IN_GRAPH, cpu=1.0)
    others = [rank(number, calls(12, 1, nccl=False), computing, last_s=98.0) for number in (0, 2, 3)]
    assert look(scene(others[0], asleep(count=11), *others[1:]), RankPatience()).verdict is None


def test_a_rank_that_spins_has_twice_as_long() -> None:
    spins = rank(1, calls(10, 0), process(SPINS, SPINS, cpu=1.0))
    assert look(three_and(spins), RankPatience(after_s=6.0)).verdict is None
    assert look(three_and(spins), RankPatience(after_s=5.0)).verdict is not None
